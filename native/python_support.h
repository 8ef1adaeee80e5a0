// Shared by the Python bindings in python_*.cpp. No other header includes Python.h.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "documents.h"
#include "encoder.h"

namespace groundup::python {

// The types and functions that each file adds to the module.
extern PyType_Spec buffer_spec, encoder_spec, splitter_spec, word_counter_spec;
extern PyTypeObject *buffer_type, *splitter_type;
extern PyMethodDef float_functions[], text_functions[];

// Thrown when a Python exception is already set.
struct PythonError {};

// Runs `body` and converts a C++ exception to a Python one, returning null.
template <class Body>
PyObject* guarded(Body body) {
    try {
        return body();
    } catch (const PythonError&) {
    } catch (const InputError& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

// Releases the GIL for the lifetime of the object.
class GilReleased {
public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    // During shutdown, the interpreter unwinds a thread that asks for the GIL. Destructors on the way must
    // not run without the GIL, so the thread waits here for the process to end.
    ~GilReleased() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

private:
    PyThreadState* state_;
};

// Returns the result of `work`, which runs without the GIL.
template <class Work>
auto without_gil(const Work& work) {
    const GilReleased released;
    return work();
}

// Marks an object as in use by one thread while it releases the GIL. Set and cleared with the GIL held.
class InUse {
public:
    explicit InUse(bool& flag) : flag_(flag) {
        if (flag) throw InputError("another thread is using this object");
        flag = true;
    }
    ~InUse() { flag_ = false; }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

private:
    bool& flag_;
};

inline PyObject* checked(PyObject* object) {
    if (!object) throw PythonError();
    return object;
}

// An owned reference.
class Owned {
public:
    explicit Owned(PyObject* object) : object_(checked(object)) {}
    ~Owned() { Py_XDECREF(object_); }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    PyObject* get() const { return object_; }
    PyObject* release() {
        PyObject* object = object_;
        object_ = nullptr;
        return object;
    }

private:
    PyObject* object_;
};

// A view of a bytes-like object or of a string's UTF-8, which it keeps alive. Python caches the UTF-8 of a
// string, so encoding a text again does not transcode it again.
class Text {
public:
    explicit Text(PyObject* object) {
        if (!PyUnicode_Check(object)) {
            if (PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) != 0) throw PythonError();
            return;
        }
        Py_ssize_t size;
        const char* data = PyUnicode_AsUTF8AndSize(object, &size);
        if (!data || PyBuffer_FillInfo(&view_, object, const_cast<char*>(data), size, 1, PyBUF_SIMPLE) != 0)
            throw PythonError();
    }
    ~Text() { PyBuffer_Release(&view_); }
    Text(const Text&) = delete;
    Text& operator=(const Text&) = delete;
    Span span() const { return {static_cast<const Byte*>(view_.buf), static_cast<size_t>(view_.len)}; }

private:
    Py_buffer view_;
};

inline std::string bytes_of(PyObject* object, const char* what) {
    char* data;
    Py_ssize_t size;
    if (!PyBytes_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be bytes", what);
        throw PythonError();
    }
    if (PyBytes_AsStringAndSize(object, &data, &size) != 0) throw PythonError();
    return std::string(data, static_cast<size_t>(size));
}

// Calls visit(item) for every item of a list or tuple.
template <class Visit>
void each_item(PyObject* sequence, Visit visit) {
    const Py_ssize_t size = PySequence_Size(sequence);
    if (size < 0) throw PythonError();
    for (Py_ssize_t i = 0; i < size; i++) {
        const Owned item(PySequence_GetItem(sequence, i));
        visit(item.get());
    }
}

inline SpecialTokens special_tokens_from(PyObject* list) {
    std::vector<std::pair<std::string, uint32_t>> tokens;
    each_item(list, [&](PyObject* item) {
        tokens.emplace_back(bytes_of(item, "a special token"), static_cast<uint32_t>(tokens.size()));
    });
    return SpecialTokens(tokens);
}

inline PyTypeObject* make_type(PyObject* module, PyType_Spec* spec) {
    return reinterpret_cast<PyTypeObject*>(checked(PyType_FromModuleAndSpec(module, spec, nullptr)));
}

template <class Object>
void free_object(Object* self) {
    PyTypeObject* type = Py_TYPE(reinterpret_cast<PyObject*>(self));
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

template <class Object>
Object* new_object(PyTypeObject* type) {
    const auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    return reinterpret_cast<Object*>(checked(alloc(type, 0)));
}

// The splitter inside a Python Splitter.
std::shared_ptr<const Splitter> splitter_of(PyObject* object);

// The documents of a text, given a buffer of (begin, end) pairs.
inline std::vector<Span> documents_of(const Text& buffer, Span text) {
    const Bounds* const bounds = reinterpret_cast<const Bounds*>(buffer.span().data);
    std::vector<Span> documents;
    for (size_t i = 0; i < buffer.span().size / sizeof(Bounds); i++) {
        const auto [begin, end] = bounds[i];
        if (begin < 0 || end < begin || static_cast<size_t>(end) > text.size)
            throw InputError("a document's bounds lie outside the text");
        documents.push_back({text.data + begin, static_cast<size_t>(end - begin)});
    }
    return documents;
}

// Wraps native memory in a Python Buffer.
PyObject* to_buffer(GrowingBlock block, size_t size);
PyObject* to_buffer(IdBuffer& ids);

template <class Value>
PyObject* to_buffer(const std::vector<Value>& values) {
    GrowingBlock block;
    block.resize(values.size() * sizeof(Value));
    if (!values.empty()) std::memcpy(block.data(), values.data(), values.size() * sizeof(Value));
    return to_buffer(std::move(block), values.size() * sizeof(Value));
}

}  // namespace groundup::python
