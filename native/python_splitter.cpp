// groundup._native.Splitter: a compiled split pattern.
#include "python_support.h"

namespace groundup::python {

namespace {

struct SplitterObject {
    PyObject_HEAD
    std::shared_ptr<const Splitter>* splitter;
};

std::string text_of(PyObject* object) {
    const Text text(object);
    return {reinterpret_cast<const char*>(text.span().data), text.span().size};
}

PyObject* splitter_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *stages, *behaviours;
    const char *scanner = "", *vectors = "";
    if (!PyArg_ParseTuple(args, "OO|ss", &stages, &behaviours, &scanner, &vectors)) return nullptr;
    return guarded([&] {
        std::vector<Stage> parsed;
        each_item(stages, [&](PyObject* item) { parsed.push_back({text_of(item), Behaviour::kIsolated}); });
        size_t i = 0;
        each_item(behaviours, [&](PyObject* item) {
            if (i < parsed.size()) parsed[i++].behaviour = behaviour_from_name(text_of(item));
        });
        const Vectors chosen = *vectors ? vectors_from_name(vectors) : vectors_in_use();
        auto splitter = without_gil([&] { return std::make_shared<const Splitter>(parsed, scanner, chosen); });
        SplitterObject* self = new_object<SplitterObject>(type);
        self->splitter = new std::shared_ptr<const Splitter>(std::move(splitter));
        return reinterpret_cast<PyObject*>(self);
    });
}

void splitter_dealloc(SplitterObject* self) {
    delete self->splitter;
    free_object(self);
}

PyObject* splitter_split(SplitterObject* self, PyObject* data) {
    return guarded([&] {
        const Text text(data);
        return to_buffer(without_gil([&] {
            const Splitter& splitter = **self->splitter;
            std::vector<uint64_t> bounds;
            std::vector<uint32_t> ends(kMaxEnds);
            for (Cursor cursor(splitter); cursor.at < text.span().size;) {
                size_t begin;
                const size_t count = splitter.scan(text.span(), cursor, begin, ends.data());
                for (size_t i = 0; i < count; i++)
                    bounds.insert(bounds.end(), {begin + (i ? ends[i - 1] : 0), begin + ends[i]});
            }
            return bounds;
        }));
    });
}

PyMethodDef splitter_methods[] = {
    {"split", reinterpret_cast<PyCFunction>(splitter_split), METH_O, "text -> Buffer of uint64 bounds of pre-tokens"},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot splitter_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(splitter_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(splitter_dealloc)},
    {Py_tp_methods, splitter_methods},
    {Py_tp_doc, const_cast<char*>("Splitter(stages, behaviours, scanner, vectors)")},
    {0, nullptr},
};
}  // namespace

std::shared_ptr<const Splitter> splitter_of(PyObject* object) {
    if (!PyObject_TypeCheck(object, splitter_type)) throw InputError("the argument is not a Splitter");
    return *reinterpret_cast<SplitterObject*>(object)->splitter;
}

PyType_Spec splitter_spec = {"groundup._native.Splitter", sizeof(SplitterObject), 0, Py_TPFLAGS_DEFAULT,
                             splitter_slots};

}  // namespace groundup::python
