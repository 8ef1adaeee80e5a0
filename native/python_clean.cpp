// What groundup._native knows of cleaning: measures of documents, their shingles, their duplicates.
#include "minhash.h"
#include "python_support.h"

namespace groundup::python {

namespace {

PyObject* py_measure_documents(PyObject*, PyObject* args) {
    PyObject *data, *bounds_buffer;
    Py_ssize_t num_words, num_threads;
    if (!PyArg_ParseTuple(args, "OOnn", &data, &bounds_buffer, &num_words, &num_threads)) return nullptr;
    return guarded([&] {
        const Text text(data), packed(bounds_buffer);
        const CheckedBounds bounds = bounds_of(packed, text.span());
        if (num_words < 1 || num_threads < 1) throw InputError("words and threads are at least 1");
        GrowingBlock block;
        const size_t size = bounds.count * sizeof(MeasuredDocument);
        block.resize(size ? size : 1);
        unlocked([&] {
            measure_documents(text.span(), bounds.data, bounds.count, static_cast<size_t>(num_words),
                              static_cast<size_t>(num_threads), reinterpret_cast<MeasuredDocument*>(block.data()));
        });
        return to_buffer(std::move(block), size);
    });
}

PyObject* py_hash_shingles(PyObject*, PyObject* args) {
    PyObject *data, *bounds_buffer;
    Py_ssize_t num_words;
    if (!PyArg_ParseTuple(args, "OOn", &data, &bounds_buffer, &num_words)) return nullptr;
    return guarded([&] {
        const Text text(data), packed(bounds_buffer);
        const CheckedBounds bounds = bounds_of(packed, text.span());
        if (num_words < 1) throw InputError("a shingle has at least 1 word");
        return to_buffer(unlocked([&] {
            return hash_shingles(text.span(), bounds.data, bounds.count, static_cast<size_t>(num_words));
        }));
    });
}

struct DuplicateIndexObject {
    PyObject_HEAD
    DuplicateIndex* index;
    bool is_in_use;
};

PyObject* index_new(PyTypeObject* type, PyObject* args, PyObject*) {
    Py_ssize_t num_bands;
    double threshold;
    if (!PyArg_ParseTuple(args, "nd", &num_bands, &threshold)) return nullptr;
    return guarded([&] {
        if (num_bands < 0) throw InputError("a signature has no such number of bands");
        auto index = std::make_unique<DuplicateIndex>(static_cast<size_t>(num_bands), threshold);
        DuplicateIndexObject* self = new_object<DuplicateIndexObject>(type);
        self->index = index.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

void index_dealloc(DuplicateIndexObject* self) {
    delete self->index;
    free_object(self);
}

PyObject* index_add(DuplicateIndexObject* self, PyObject* measured) {
    return guarded([&] {
        const Text documents(measured);
        const size_t count = documents.span().size / sizeof(MeasuredDocument);
        const MeasuredDocument* rows = reinterpret_cast<const MeasuredDocument*>(documents.span().data);
        std::vector<int64_t> found(count);
        const InUse in_use(self->is_in_use);
        unlocked([&] {
            for (size_t i = 0; i < count; i++) found[i] = static_cast<int64_t>(self->index->add(rows[i]));
        });
        return to_buffer(found);
    });
}

PyMethodDef index_methods[] = {
    {"add", reinterpret_cast<PyCFunction>(index_add), METH_O,
     "measured documents -> Buffer of int64: 0 kept, 1 like an earlier one, 2 the same as one"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot index_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(index_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(index_dealloc)},
    {Py_tp_methods, index_methods},
    {Py_tp_doc, const_cast<char*>("DuplicateIndex(num_bands, threshold)")},
    {0, nullptr},
};
}  // namespace

PyMethodDef clean_functions[] = {
    {"measure_documents", py_measure_documents, METH_VARARGS,
     "(data, bounds, words in a shingle, threads) -> Buffer of measured documents"},
    {"hash_shingles", py_hash_shingles, METH_VARARGS, "(data, bounds, words in a shingle) -> Buffer of uint64"},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Spec duplicate_index_spec = {"groundup._native.DuplicateIndex", sizeof(DuplicateIndexObject), 0,
                                    Py_TPFLAGS_DEFAULT, index_slots};

}  // namespace groundup::python
