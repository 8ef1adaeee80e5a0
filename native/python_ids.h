// The ids that Python gives to decode: a list, or an array of any integer type.
#pragma once
#include "python_support.h"

namespace groundup::python {

[[noreturn]] inline void unknown_id(long long id, size_t vocab_size) {
    PyErr_Format(PyExc_KeyError, "%lld is not an id of this vocabulary of %zu", id, vocab_size);
    throw PythonError();
}

// The ids of a list or array, checked against the vocabulary.
class Ids {
public:
    Ids(const Encoder& encoder, PyObject* object) : encoder_(encoder) {
        Py_buffer view;
        if (PyObject_CheckBuffer(object) && PyObject_GetBuffer(object, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) == 0) {
            const bool ok = read_buffer(view);
            PyBuffer_Release(&view);
            if (bad_) unknown_id(bad_id_, encoder.vocab_size());
            if (ok) return;
        }
        PyErr_Clear();
        each_item(object, [&](PyObject* item) {
            int overflow = 0;
            const long long id = PyLong_AsLongLongAndOverflow(item, &overflow);
            if (id == -1 && !overflow && PyErr_Occurred()) throw PythonError();
            if (overflow) {
                PyErr_Format(PyExc_KeyError, "%R is not an id of this vocabulary of %zu", item,
                             encoder.vocab_size());
                throw PythonError();
            }
            if (id < 0 || !encoder.knows(static_cast<uint64_t>(id))) unknown_id(id, encoder.vocab_size());
            values.push_back(static_cast<uint32_t>(id));
        });
    }

    std::vector<uint32_t> values;

private:
    template <class Value>
    void read(const Py_buffer& view) {
        const Value* from = static_cast<const Value*>(view.buf);
        const size_t count = static_cast<size_t>(view.len) / sizeof(Value);
        values.resize(count);
        const GilReleased released;
        for (size_t i = 0; i < count; i++) {
            const uint64_t id = static_cast<uint64_t>(from[i]);
            if (!encoder_.knows(id)) {
                bad_ = true;
                bad_id_ = static_cast<long long>(from[i]);
                return;
            }
            values[i] = static_cast<uint32_t>(id);
        }
    }
    bool read_buffer(const Py_buffer& view) {
        const char* format = view.format ? view.format : "B";
        while (*format == '@' || *format == '=' || *format == '<') format++;
        const bool is_signed = std::strchr("bhilq", *format) != nullptr;
        if (!*format || !std::strchr("bBhHiIlLqQ", *format) || format[1]) return false;
        switch (view.itemsize * (is_signed ? -1 : 1)) {
            case 1: read<uint8_t>(view); return true;
            case 2: read<uint16_t>(view); return true;
            case 4: read<uint32_t>(view); return true;
            case 8: read<uint64_t>(view); return true;
            case -1: read<int8_t>(view); return true;
            case -2: read<int16_t>(view); return true;
            case -4: read<int32_t>(view); return true;
            case -8: read<int64_t>(view); return true;
            default: return false;
        }
    }

    const Encoder& encoder_;
    bool bad_ = false;
    long long bad_id_ = 0;
};

}  // namespace groundup::python
