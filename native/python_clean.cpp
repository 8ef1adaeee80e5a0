// What groundup._native knows of cleaning: measures of documents and their shingles.
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

}  // namespace

PyMethodDef clean_functions[] = {
    {"measure_documents", py_measure_documents, METH_VARARGS,
     "(data, bounds, words in a shingle, threads) -> Buffer of measured documents"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace groundup::python
