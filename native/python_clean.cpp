// What groundup._native knows of cleaning: measures of documents, their shingles, their duplicates.
#include "duplicates.h"
#include "python_support.h"

namespace groundup::python {

namespace {

PyObject* py_measure_documents(PyObject*, PyObject* args) {
    PyObject *data, *bounds_buffer, *ranges;
    Py_ssize_t num_words, num_threads;
    if (!PyArg_ParseTuple(args, "OOOnn", &data, &bounds_buffer, &ranges, &num_words, &num_threads)) return nullptr;
    return guarded([&] {
        const Text text(data), packed(bounds_buffer), script(ranges);
        const CheckedBounds bounds = bounds_of(packed, text.span());
        if (num_words < 1 || num_threads < 1) throw InputError("words and threads are at least 1");
        std::vector<CodePoints> points(script.span().size / sizeof(CodePoints));
        if (!points.empty()) std::memcpy(points.data(), script.span().data, points.size() * sizeof(CodePoints));
        GrowingBlock block;
        const size_t size = bounds.count * sizeof(MeasuredDocument);
        block.resize(size ? size : 1);
        {
            const GilReleased released;
            measure_documents(text.span(), bounds.data, bounds.count, points, static_cast<size_t>(num_words),
                              static_cast<size_t>(num_threads), reinterpret_cast<MeasuredDocument*>(block.data()));
        }
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
        std::vector<int64_t> counts(bounds.count);
        std::vector<uint64_t> hashes;
        {
            const GilReleased released;
            hashes = hash_shingles(text.span(), bounds.data, bounds.count, static_cast<size_t>(num_words),
                                   counts.data());
        }
        const Owned first(to_buffer(hashes)), second(to_buffer(counts));
        return checked(Py_BuildValue("OO", first.get(), second.get()));
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

PyObject* index_add(DuplicateIndexObject* self, PyObject* args) {
    PyObject *measured, *numbers;
    if (!PyArg_ParseTuple(args, "OO", &measured, &numbers)) return nullptr;
    return guarded([&] {
        const Text documents(measured);
        const size_t count = documents.span().size / sizeof(MeasuredDocument);
        const Array<int64_t> names(numbers, count);
        const MeasuredDocument* rows = reinterpret_cast<const MeasuredDocument*>(documents.span().data);
        std::vector<DuplicateIndex::Match> matches;
        matches.reserve(count);
        const InUse in_use(self->is_in_use);
        {
            const GilReleased released;
            for (size_t i = 0; i < count; i++)
                matches.push_back(self->index->add(names.data()[i], rows[i].hash, rows[i].signature));
        }
        return to_buffer(matches);
    });
}

PyObject* index_memory_bytes(DuplicateIndexObject* self, void*) {
    return PyLong_FromSize_t(self->index->memory_bytes());
}

PyMethodDef index_methods[] = {
    {"add", reinterpret_cast<PyCFunction>(index_add), METH_VARARGS,
     "(measured documents, int64 numbers) -> Buffer of (int64 number found or -1, int64 is the same, float64 similarity)"},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef index_getters[] = {
    {"memory_bytes", reinterpret_cast<getter>(index_memory_bytes), nullptr, "of the tables", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot index_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(index_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(index_dealloc)},
    {Py_tp_methods, index_methods},
    {Py_tp_getset, index_getters},
    {Py_tp_doc, const_cast<char*>("DuplicateIndex(num_bands, threshold)")},
    {0, nullptr},
};
}  // namespace

PyMethodDef clean_functions[] = {
    {"measure_documents", py_measure_documents, METH_VARARGS,
     "(data, bounds, int64 ranges of code points, words in a shingle, threads) -> Buffer of measured documents"},
    {"hash_shingles", py_hash_shingles, METH_VARARGS,
     "(data, bounds, words in a shingle) -> (Buffer of uint64, Buffer of int64 counts)"},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Spec duplicate_index_spec = {"groundup._native.DuplicateIndex", sizeof(DuplicateIndexObject), 0,
                                    Py_TPFLAGS_DEFAULT, index_slots};

}  // namespace groundup::python
