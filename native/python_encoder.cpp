// groundup._native.Encoder: encodes text to ids and decodes ids.
#include <algorithm>

#include "python_support.h"

namespace groundup::python {

namespace {

struct EncoderObject {
    PyObject_HEAD
    Encoder* encoder;
    std::vector<PyObject*>* ints;  // one Python int per id, shared by all returned lists
};

PyObject* encoder_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *tokens, *merges, *special_tokens, *splitter;
    int whole_words;
    if (!PyArg_ParseTuple(args, "OOOOp", &tokens, &merges, &special_tokens, &splitter, &whole_words))
        return nullptr;
    return guarded([&] {
        Vocabulary vocabulary;
        vocabulary.whole_words = whole_words != 0;
        each_item(tokens, [&](PyObject* item) {
            vocabulary.present.push_back(item != Py_None);
            vocabulary.tokens.push_back(item == Py_None ? std::string() : bytes_of(item, "a token"));
        });
        each_item(merges, [&](PyObject* item) {
            const Owned left(PySequence_GetItem(item, 0)), right(PySequence_GetItem(item, 1));
            vocabulary.merges.emplace_back(bytes_of(left.get(), "a merge"), bytes_of(right.get(), "a merge"));
        });
        each_item(special_tokens, [&](PyObject* item) {
            const Owned token(PySequence_GetItem(item, 0)), id(PySequence_GetItem(item, 1));
            const unsigned long number = PyLong_AsUnsignedLong(id.get());
            if (PyErr_Occurred()) throw PythonError();
            vocabulary.special_tokens.emplace_back(bytes_of(token.get(), "a special token"),
                                                   static_cast<uint32_t>(number));
        });
        auto pattern = splitter_of(splitter);
        auto encoder =
            without_gil([&] { return std::make_unique<Encoder>(std::move(vocabulary), std::move(pattern)); });
        auto ints = std::make_unique<std::vector<PyObject*>>();
        for (size_t id = 0; id < encoder->vocab_size(); id++)
            ints->push_back(checked(PyLong_FromSize_t(id)));
        EncoderObject* self = new_object<EncoderObject>(type);
        self->encoder = encoder.release();
        self->ints = ints.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

void encoder_dealloc(EncoderObject* self) {
    if (self->ints) {
        for (PyObject* number : *self->ints) Py_DECREF(number);
    }
    delete self->ints;
    delete self->encoder;
    free_object(self);
}

PyObject* list_of(const EncoderObject* self, const IdBuffer& ids) {
    PyObject* list = checked(PyList_New(static_cast<Py_ssize_t>(ids.count)));
    for (size_t i = 0; i < ids.count; i++) {
        PyObject* number = (*self->ints)[ids.at(i)];
        Py_INCREF(number);
        PyList_SetItem(list, static_cast<Py_ssize_t>(i), number);
    }
    return list;
}

// For shorter text, releasing the GIL costs more than encoding.
constexpr size_t kMaxBytesWithGil = 256;

template <class Work>
void work_on(size_t num_bytes, Work work) {
    if (num_bytes < kMaxBytesWithGil) return work();
    without_gil(work);
}

IdBuffer encode_text(const Encoder& encoder, PyObject* text) {
    const Text input(text);
    IdBuffer ids(encoder.id_bytes());
    work_on(input.span().size, [&] { encoder.encode(input.span(), ids); });
    return ids;
}

PyObject* encoder_encode(EncoderObject* self, PyObject* text) {
    return guarded([&] { return list_of(self, encode_text(*self->encoder, text)); });
}

PyObject* encoder_encode_array(EncoderObject* self, PyObject* text) {
    return guarded([&] {
        IdBuffer ids = encode_text(*self->encoder, text);
        return to_buffer(ids);
    });
}

// The ids of the prefix of a text that later text cannot affect, and the size of the prefix.
PyObject* encoder_encode_stream(EncoderObject* self, PyObject* text) {
    return guarded([&] {
        const Encoder& encoder = *self->encoder;
        const Text input(text);
        IdBuffer ids(encoder.id_bytes());
        size_t used;
        work_on(input.span().size, [&] { used = encoder.encode_stream(input.span(), ids); });
        const Owned result(list_of(self, ids));
        return checked(Py_BuildValue("On", result.get(), static_cast<Py_ssize_t>(used)));
    });
}

PyObject* encode_spans(const Encoder& encoder, const std::vector<Span>& documents, Py_ssize_t num_threads,
                       long long end_id) {
    IdBuffer ids(encoder.id_bytes());
    std::vector<int64_t> offsets;
    without_gil([&] {
        encode_batch(encoder, documents, static_cast<size_t>(std::max<Py_ssize_t>(num_threads, 1)),
                     end_id < 0 ? kNone : static_cast<uint32_t>(end_id), ids, offsets);
    });
    const Owned id_buffer(to_buffer(ids)), offset_buffer(to_buffer(offsets));
    return checked(Py_BuildValue("OO", id_buffer.get(), offset_buffer.get()));
}

PyObject* encoder_encode_batch(EncoderObject* self, PyObject* args) {
    PyObject* texts;
    Py_ssize_t num_threads;
    long long end_id;
    if (!PyArg_ParseTuple(args, "OnL", &texts, &num_threads, &end_id)) return nullptr;
    return guarded([&] {
        std::vector<std::unique_ptr<Text>> inputs;
        std::vector<Span> documents;
        each_item(texts, [&](PyObject* item) {
            inputs.push_back(std::make_unique<Text>(item));
            documents.push_back(inputs.back()->span());
        });
        return encode_spans(*self->encoder, documents, num_threads, end_id);
    });
}

PyObject* encoder_encode_documents(EncoderObject* self, PyObject* args) {
    PyObject *data, *bounds_buffer;
    Py_ssize_t num_threads;
    long long end_id;
    if (!PyArg_ParseTuple(args, "OOnL", &data, &bounds_buffer, &num_threads, &end_id)) return nullptr;
    return guarded([&] {
        const Text text(data), packed(bounds_buffer);
        return encode_spans(*self->encoder, documents_of(packed, text.span()), num_threads, end_id);
    });
}

// Reads ids from a list or an array of uint16, uint32 or int64, and checks that the vocabulary has them.
std::vector<uint32_t> ids_of(const Encoder& encoder, PyObject* object) {
    std::vector<uint32_t> ids;
    const auto refuse = [&](PyObject* id) {
        PyErr_Format(PyExc_KeyError, "%R is not an id of this vocabulary of %zu", id, encoder.vocab_size());
        throw PythonError();
    };
    const auto read = [&](const auto* from, size_t size) {
        ids.resize(size / sizeof *from);
        const size_t known = without_gil([&] {
            size_t i = 0;
            for (; i < ids.size(); i++) {
                const uint64_t id = static_cast<uint64_t>(from[i]);
                if (!encoder.knows(id)) break;
                ids[i] = static_cast<uint32_t>(id);
            }
            return i;
        });
        if (known < ids.size()) refuse(Owned(PyLong_FromLongLong(static_cast<long long>(from[known]))).get());
    };
    if (PyObject_CheckBuffer(object)) {
        const Text array(object);
        Py_ssize_t width = PyObject_Size(object);
        if (width < 0) throw PythonError();
        width = width ? static_cast<Py_ssize_t>(array.span().size) / width : 0;
        const Byte* const data = array.span().data;
        if (width == 2) read(reinterpret_cast<const uint16_t*>(data), array.span().size);
        if (width == 4) read(reinterpret_cast<const uint32_t*>(data), array.span().size);
        if (width == 8) read(reinterpret_cast<const int64_t*>(data), array.span().size);
        if (width != 1) return ids;
    }
    each_item(object, [&](PyObject* item) {
        int overflow = 0;
        const long long id = PyLong_AsLongLongAndOverflow(item, &overflow);
        if (id == -1 && !overflow && PyErr_Occurred()) throw PythonError();
        if (overflow || id < 0 || !encoder.knows(static_cast<uint64_t>(id))) refuse(item);
        ids.push_back(static_cast<uint32_t>(id));
    });
    return ids;
}

template <class Make>
PyObject* decode_with(EncoderObject* self, PyObject* object, Make make) {
    return guarded([&] {
        const std::vector<uint32_t> ids = ids_of(*self->encoder, object);
        GrowingBlock out;
        const size_t size = without_gil([&] {
            const size_t needed = self->encoder->decoded_size(ids.data(), ids.size());
            out.resize(needed + 16);
            self->encoder->decode(ids.data(), ids.size(), out.data());
            return needed;
        });
        return checked(make(reinterpret_cast<const char*>(out.data()), static_cast<Py_ssize_t>(size)));
    });
}

PyObject* encoder_decode(EncoderObject* self, PyObject* ids) {
    return decode_with(self, ids, [](const char* data, Py_ssize_t size) {
        return PyUnicode_DecodeUTF8(data, size, "replace");
    });
}

PyObject* encoder_decode_bytes(EncoderObject* self, PyObject* ids) {
    return decode_with(self, ids, [](const char* data, Py_ssize_t size) {
        return PyBytes_FromStringAndSize(data, size);
    });
}

PyMethodDef encoder_methods[] = {
    {"encode", reinterpret_cast<PyCFunction>(encoder_encode), METH_O, "text -> list of ids"},
    {"encode_array", reinterpret_cast<PyCFunction>(encoder_encode_array), METH_O, "text -> Buffer of ids"},
    {"encode_stream", reinterpret_cast<PyCFunction>(encoder_encode_stream), METH_O,
     "UTF-8 so far -> (ids that later text cannot affect, their size in bytes)"},
    {"encode_batch", reinterpret_cast<PyCFunction>(encoder_encode_batch), METH_VARARGS,
     "(texts, num_threads, end_id) -> (Buffer of ids, Buffer of int64 offsets)"},
    {"encode_documents", reinterpret_cast<PyCFunction>(encoder_encode_documents), METH_VARARGS,
     "(data, int64 bounds, num_threads, end_id) -> (Buffer of ids, Buffer of int64 offsets)"},
    {"decode", reinterpret_cast<PyCFunction>(encoder_decode), METH_O, "ids -> text"},
    {"decode_bytes", reinterpret_cast<PyCFunction>(encoder_decode_bytes), METH_O, "ids -> bytes"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot encoder_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(encoder_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(encoder_dealloc)},
    {Py_tp_methods, encoder_methods},
    {Py_tp_doc, const_cast<char*>("Encoder(tokens, merges, special_tokens, splitter, whole_words)")},
    {0, nullptr},
};
}  // namespace

PyType_Spec encoder_spec = {"groundup._native.Encoder", sizeof(EncoderObject), 0, Py_TPFLAGS_DEFAULT,
                            encoder_slots};

}  // namespace groundup::python
