// groundup._native.WordCounter: counts pre-tokens and learns merges from the counts.
#include <algorithm>

#include "python_support.h"
#include "stream_cut.h"
#include "trainer.h"

namespace groundup::python {

namespace {

struct WordCounterObject {
    PyObject_HEAD
    std::shared_ptr<const Splitter>* splitter;
    SpecialTokens* special_tokens;
    std::vector<WordCounts>* tables;
    bool is_in_use;
};

PyObject* counter_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *splitter, *special_tokens;
    Py_ssize_t num_threads, longest = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTuple(args, "OOn|n", &splitter, &special_tokens, &num_threads, &longest)) return nullptr;
    return guarded([&] {
        auto pattern = std::make_unique<std::shared_ptr<const Splitter>>(splitter_of(splitter));
        auto specials = std::make_unique<SpecialTokens>(special_tokens_from(special_tokens));
        auto tables = std::make_unique<std::vector<WordCounts>>();
        for (Py_ssize_t i = 0; i < std::max<Py_ssize_t>(num_threads, 1); i++)
            tables->emplace_back(static_cast<size_t>(std::max<Py_ssize_t>(longest, 1)));
        WordCounterObject* self = new_object<WordCounterObject>(type);
        self->splitter = pattern.release();
        self->special_tokens = specials.release();
        self->tables = tables.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

void counter_dealloc(WordCounterObject* self) {
    delete self->splitter;
    delete self->special_tokens;
    delete self->tables;
    free_object(self);
}

PyObject* counter_add_text(WordCounterObject* self, PyObject* data) {
    return guarded([&] {
        const Text text(data);
        const InUse in_use(self->is_in_use);
        without_gil([&] { count_words(text.span(), **self->splitter, *self->special_tokens, *self->tables); });
        Py_RETURN_NONE;
    });
}

PyObject* counter_add_words(WordCounterObject* self, PyObject* args) {
    PyObject *words, *counts;
    if (!PyArg_ParseTuple(args, "OO", &words, &counts)) return nullptr;
    return guarded([&] {
        const InUse in_use(self->is_in_use);
        Py_ssize_t i = 0;
        each_item(words, [&](PyObject* item) {
            const Owned number(PySequence_GetItem(counts, i++));
            const unsigned long long count = PyLong_AsUnsignedLongLong(number.get());
            if (PyErr_Occurred()) throw PythonError();
            const std::string word = bytes_of(item, "a word");
            const Byte* bytes = reinterpret_cast<const Byte*>(word.data());
            (*self->tables)[0].add(bytes, word.size(), count, bytes + word.size());
        });
        Py_RETURN_NONE;
    });
}

// Where `data` may be cut, at or after `from`, without changing its pre-tokens.
PyObject* counter_find_cut(WordCounterObject* self, PyObject* args) {
    PyObject* data;
    Py_ssize_t from;
    if (!PyArg_ParseTuple(args, "On", &data, &from)) return nullptr;
    return guarded([&] {
        const Text text(data);
        const size_t first = static_cast<size_t>(std::max<Py_ssize_t>(from, 0));
        return checked(PyLong_FromSize_t(find_cut(text.span(), first, **self->splitter, *self->special_tokens)));
    });
}

// The last position found where a stream may be cut; 0 if there is none yet.
PyObject* counter_find_last_cut(WordCounterObject* self, PyObject* data) {
    return guarded([&] {
        const Text text(data);
        const size_t cut = without_gil([&] {
            return find_stream_cut(text.span(), **self->splitter, *self->special_tokens);
        });
        return checked(PyLong_FromSize_t(cut));
    });
}

PyObject* counter_items(WordCounterObject* self, PyObject*) {
    return guarded([&] {
        const InUse in_use(self->is_in_use);
        join(*self->tables);
        const Owned dict(PyDict_New());
        self->tables->front().for_each([&](const Byte* word, size_t size, uint64_t number) {
            const Owned key(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(word), static_cast<Py_ssize_t>(size)));
            const Owned count(PyLong_FromUnsignedLongLong(number));
            if (PyDict_SetItem(dict.get(), key.get(), count.get()) != 0) throw PythonError();
        });
        Py_INCREF(dict.get());
        return dict.get();
    });
}

// The counter is empty afterwards.
PyObject* counter_train(WordCounterObject* self, PyObject* args) {
    Py_ssize_t num_merges, num_within = 0;
    PyObject* splitter = Py_None;
    if (!PyArg_ParseTuple(args, "n|On", &num_merges, &splitter, &num_within)) return nullptr;
    return guarded([&] {
        const auto within = splitter == Py_None ? nullptr : splitter_of(splitter);
        const auto check_signals = [] {
            const PyGILState_STATE state = PyGILState_Ensure();
            const bool ok = PyErr_CheckSignals() == 0;
            PyGILState_Release(state);
            if (!ok) throw PythonError();
        };
        const InUse in_use(self->is_in_use);
        const Training training = without_gil([&] {
            return train(*self->tables, static_cast<size_t>(num_merges), check_signals, within.get(), static_cast<size_t>(num_within));
        });
        const Owned merges(to_buffer(training.merges));
        return checked(Py_BuildValue("OKKn", merges.get(), static_cast<unsigned long long>(training.num_bytes),
                                     static_cast<unsigned long long>(training.num_symbols),
                                     static_cast<Py_ssize_t>(training.num_words)));
    });
}

PyMethodDef counter_methods[] = {
    {"add_text", reinterpret_cast<PyCFunction>(counter_add_text), METH_O, "count the pre-tokens of a text in UTF-8"},
    {"add_words", reinterpret_cast<PyCFunction>(counter_add_words), METH_VARARGS, "(words, counts)"},
    {"find_cut", reinterpret_cast<PyCFunction>(counter_find_cut), METH_VARARGS,
     "(data, from) -> where data may be cut without changing its pre-tokens"},
    {"find_last_cut", reinterpret_cast<PyCFunction>(counter_find_last_cut), METH_O,
     "text so far -> the last position found where it may be cut, or 0"},
    {"items", reinterpret_cast<PyCFunction>(counter_items), METH_NOARGS, "{pre-token: count}"},
    {"train", reinterpret_cast<PyCFunction>(counter_train), METH_VARARGS,
     "(num_merges, within, num_within) -> (Buffer of uint32 pairs, num_bytes, num_symbols, num_words)"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot counter_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(counter_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(counter_dealloc)},
    {Py_tp_methods, counter_methods},
    {Py_tp_doc, const_cast<char*>("WordCounter(splitter, special_tokens, num_threads)")},
    {0, nullptr},
};
}  // namespace

PyType_Spec word_counter_spec = {"groundup._native.WordCounter", sizeof(WordCounterObject), 0,
                            Py_TPFLAGS_DEFAULT, counter_slots};

}  // namespace groundup::python
