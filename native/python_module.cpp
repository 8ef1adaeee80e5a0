// groundup._native: the module, and Buffer, memory passed to Python. Only python_*.cpp files include Python.h.
#include "python_support.h"

namespace groundup::python {

namespace {

struct BufferObject {
    PyObject_HEAD
    GrowingBlock block;
    Py_ssize_t size;
};

void buffer_dealloc(BufferObject* self) {
    self->block.~GrowingBlock();
    free_object(self);
}

int buffer_get(PyObject* object, Py_buffer* view, int flags) {
    BufferObject* self = reinterpret_cast<BufferObject*>(object);
    return PyBuffer_FillInfo(view, object, self->block.data(), self->size, 0, flags);
}

Py_ssize_t buffer_length(BufferObject* self) { return self->size; }

PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(buffer_dealloc)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(buffer_get)},
    {Py_sq_length, reinterpret_cast<void*>(buffer_length)},
    {Py_tp_doc, const_cast<char*>("Memory allocated by the native core, for numpy.frombuffer.")},
    {0, nullptr},
};

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "groundup._native", "The native core: the tokenizer, and kernels on rows of float32.",
    -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyTypeObject *buffer_type = nullptr, *splitter_type = nullptr;
PyType_Spec buffer_spec = {"groundup._native.Buffer", sizeof(BufferObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, buffer_slots};

PyObject* to_buffer(GrowingBlock block, size_t size) {
    if (!block.data()) block.resize(1);
    BufferObject* self = new_object<BufferObject>(buffer_type);
    new (&self->block) GrowingBlock(std::move(block));
    self->size = static_cast<Py_ssize_t>(size);
    return reinterpret_cast<PyObject*>(self);
}

PyObject* to_buffer(IdBuffer& ids) {
    ids.shrink();
    return to_buffer(ids.take(), ids.count * ids.id_bytes());
}

}  // namespace groundup::python

using namespace groundup::python;

PyMODINIT_FUNC PyInit__native() {
    return guarded([] {
        Owned module(PyModule_Create(&module_definition));
        for (PyMethodDef* functions : {text_functions, float_functions})
            if (PyModule_AddFunctions(module.get(), functions) != 0) throw PythonError();
        buffer_type = make_type(module.get(), &buffer_spec);
        splitter_type = make_type(module.get(), &splitter_spec);
        const std::pair<const char*, PyTypeObject*> types[] = {
            {"Buffer", buffer_type},
            {"Encoder", make_type(module.get(), &encoder_spec)},
            {"Splitter", splitter_type},
            {"WordCounter", make_type(module.get(), &word_counter_spec)},
        };
        for (const auto& [name, type] : types) {
            PyObject* object = reinterpret_cast<PyObject*>(type);
            if (PyModule_AddObjectRef(module.get(), name, object) != 0) throw PythonError();
        }
        return module.release();
    });
}
