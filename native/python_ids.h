// The ids that Python gives to decode: a list, or an array of uint16, uint32 or int64.
#pragma once
#include "python_support.h"

namespace groundup::python {

// The ids of a list or array, checked against the vocabulary.
inline std::vector<uint32_t> ids_of(const Encoder& encoder, PyObject* object) {
    std::vector<uint32_t> ids;
    const auto refuse = [&](PyObject* id) {
        PyErr_Format(PyExc_KeyError, "%R is not an id of this vocabulary of %zu", id, encoder.vocab_size());
        throw PythonError();
    };
    const auto read = [&](const auto* from, size_t size) {
        ids.resize(size / sizeof *from);
        const size_t known = unlocked([&] {
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

}  // namespace groundup::python
