// Bindings of functions on text: finding, hashing and measuring documents, and others.
#include "minhash.h"
#include "python_support.h"
#include "unicode.h"
#include "vectors.h"

namespace groundup::python {

namespace {

PyObject* py_find_invalid_utf8(PyObject*, PyObject* data) {
    return guarded([&] {
        const Text text(data);
        const int64_t at = without_gil([&] { return find_invalid_utf8(text.span()); });
        return checked(PyLong_FromLongLong(at));
    });
}

PyObject* py_find_documents(PyObject*, PyObject* args) {
    PyObject *data, *separators;
    if (!PyArg_ParseTuple(args, "OO", &data, &separators)) return nullptr;
    return guarded([&] {
        const Text text(data);
        const SpecialTokens tokens = special_tokens_from(separators);
        return to_buffer(without_gil([&] {
            std::vector<Bounds> bounds;
            bool more = true;
            for (size_t at = 0; more;) {
                SpecialTokens::Match match{text.span().size, 0, 0};
                more = tokens.find(text.span(), at, match);
                if (match.begin > at) bounds.push_back({static_cast<int64_t>(at), static_cast<int64_t>(match.begin)});
                at = match.begin + match.size;
            }
            return bounds;
        }));
    });
}

PyObject* py_hash_documents(PyObject*, PyObject* args) {
    PyObject *data, *bounds_buffer;
    if (!PyArg_ParseTuple(args, "OO", &data, &bounds_buffer)) return nullptr;
    return guarded([&] {
        const Text text(data), packed(bounds_buffer);
        const std::vector<Span> documents = documents_of(packed, text.span());
        std::vector<uint64_t> hashes;
        without_gil([&] {
            for (const Span document : documents) hashes.push_back(hash_document(document));
        });
        return to_buffer(hashes);
    });
}

PyObject* py_measure_documents(PyObject*, PyObject* args) {
    PyObject *data, *bounds_buffer;
    Py_ssize_t num_words, num_threads;
    if (!PyArg_ParseTuple(args, "OOnn", &data, &bounds_buffer, &num_words, &num_threads)) return nullptr;
    return guarded([&] {
        const Text text(data), packed(bounds_buffer);
        const std::vector<Span> documents = documents_of(packed, text.span());
        if (num_words < 1 || num_threads < 1) throw InputError("the numbers of words and threads must be at least 1");
        GrowingBlock block;
        const size_t size = documents.size() * sizeof(MeasuredDocument);
        block.resize(size ? size : 1);
        without_gil([&] {
            measure_documents(documents, static_cast<size_t>(num_words), static_cast<size_t>(num_threads),
                              reinterpret_cast<MeasuredDocument*>(block.data()));
        });
        return to_buffer(std::move(block), size);
    });
}

PyObject* py_vectors(PyObject*, PyObject*) {
    return guarded([&] {
        const Owned names(PyList_New(0));
        for (const Vectors vectors : available_vectors()) {
            const Owned name(PyUnicode_FromString(name_of(vectors)));
            if (PyList_Append(names.get(), name.get()) != 0) throw PythonError();
        }
        return checked(Py_BuildValue("sO", name_of(vectors_in_use()), names.get()));
    });
}

PyObject* py_recover_merges(PyObject*, PyObject* list) {
    return guarded([&] {
        std::vector<std::string> tokens;
        each_item(list, [&](PyObject* item) { tokens.push_back(bytes_of(item, "a token")); });
        return to_buffer(without_gil([&] { return recover_merges(tokens); }));
    });
}

PyObject* py_class_of(PyObject*, PyObject* code_point) {
    const unsigned long value = PyLong_AsUnsignedLong(code_point);
    if (PyErr_Occurred()) return nullptr;
    return PyLong_FromLong(value < 0x110000 ? class_of_code_point(static_cast<uint32_t>(value)) : 0);
}

}  // namespace

PyMethodDef text_functions[] = {
    {"find_invalid_utf8", py_find_invalid_utf8, METH_O, "offset of the first invalid byte, or -1"},
    {"find_documents", py_find_documents, METH_VARARGS, "(data, separators) -> Buffer of int64 bounds"},
    {"hash_documents", py_hash_documents, METH_VARARGS, "(data, bounds) -> Buffer of uint64"},
    {"measure_documents", py_measure_documents, METH_VARARGS,
     "(data, bounds, words per shingle, threads) -> Buffer of MeasuredDocument"},
    {"vectors", py_vectors, METH_NOARGS, "the SIMD instruction set in use, and all that this CPU supports"},
    {"recover_merges", py_recover_merges, METH_O, "tokens by rank -> Buffer of int32 pairs, -1 for none"},
    {"class_of", py_class_of, METH_O, "the CharClass of a code point (native/unicode.h)"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace groundup::python
