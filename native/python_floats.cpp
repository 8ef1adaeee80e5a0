// Bindings of the kernels on rows of float32: array sizes are checked here and trusted in float_rows.
#include <algorithm>

#include "float_rows.h"
#include "python_support.h"

namespace groundup::python {

namespace {

// Reads the arguments of a call in order: sizes, floats and contiguous arrays.
class Arguments {
public:
    explicit Arguments(PyObject* tuple) : tuple_(tuple) {}
    ~Arguments() {
        for (Py_buffer& view : views_) PyBuffer_Release(&view);
    }
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;

    size_t size() {
        const Py_ssize_t value = PyLong_AsSsize_t(next());
        if (value == -1 && PyErr_Occurred()) throw PythonError();
        if (value < 0 || value > INT32_MAX) throw InputError("a dimension is out of range");
        return static_cast<size_t>(value);
    }
    float real() {
        const double value = PyFloat_AsDouble(next());
        if (value == -1 && PyErr_Occurred()) throw PythonError();
        return static_cast<float>(value);
    }

    // Arrays with exactly these dimensions; null for None if `optional`.
    const float* read(std::initializer_list<size_t> dimensions, bool optional = false) {
        return array<float>(dimensions, optional, PyBUF_SIMPLE);
    }
    float* write(std::initializer_list<size_t> dimensions, bool optional = false) {
        return array<float>(dimensions, optional, PyBUF_WRITABLE);
    }
    const int64_t* read_positions(std::initializer_list<size_t> dimensions, bool optional = false) {
        return array<int64_t>(dimensions, optional, PyBUF_SIMPLE);
    }

private:
    PyObject* next() { return checked(PyTuple_GetItem(tuple_, at_++)); }

    template <class Value>
    Value* array(std::initializer_list<size_t> dimensions, bool optional, int flags) {
        PyObject* const object = next();
        if (optional && object == Py_None) return nullptr;
        size_t size = sizeof(Value);
        for (const size_t dimension : dimensions)
            if (__builtin_mul_overflow(size, dimension, &size)) throw InputError("an array is too large");
        Py_buffer view;
        if (PyObject_GetBuffer(object, &view, flags) != 0) throw PythonError();
        views_.push_back(view);
        if (static_cast<size_t>(view.len) != size)
            throw InputError("an array has " + std::to_string(view.len) + " bytes, not " + std::to_string(size));
        return static_cast<Value*>(view.buf);
    }

    PyObject* tuple_;
    Py_ssize_t at_ = 0;
    std::vector<Py_buffer> views_;
};

// Runs the work that `make` reads from the arguments; the last argument is the number of threads.
template <class Make>
PyObject* run_pass(PyObject* args, Make make) {
    return guarded([&] {
        Arguments given(args);
        const auto work = make(given);
        const size_t num_threads = given.size();
        without_gil([&] { run(work, num_threads); });
        Py_RETURN_NONE;
    });
}

PyObject* py_norm_rows(PyObject*, PyObject* args) {
    return run_pass(args, [](Arguments& given) {
        const size_t rows = given.size(), width = given.size();
        const float eps = given.real(), *const x = given.read({rows, width}), *const addend = given.read({rows, width}, true);
        return NormRows{x, addend, given.read({width}), given.write({rows, width}, !addend), given.write({rows, width}),
                        given.write({rows}), rows, width, eps};
    });
}

PyObject* py_norm_gradient_rows(PyObject*, PyObject* args) {
    return run_pass(args, [](Arguments& given) {
        const size_t rows = given.size(), width = given.size();
        return NormGradientRows{given.read({rows, width}), given.read({rows, width}, true), given.read({rows, width}),
                                given.read({width}), given.read({rows}), given.write({rows, width}),
                                given.write({width}), rows, width};
    });
}

PyObject* py_gate_rows(PyObject*, PyObject* args) {
    return run_pass(args, [](Arguments& given) {
        const size_t rows = given.size(), width = given.size();
        return GateRows{given.read({2, rows, width}), given.write({rows, width}), rows, width};
    });
}

PyObject* py_gate_gradient_rows(PyObject*, PyObject* args) {
    return run_pass(args, [](Arguments& given) {
        const size_t rows = given.size(), width = given.size();
        return GateGradientRows{given.read({2, rows, width}), given.read({rows, width}), given.write({2, rows, width}),
                                rows, width};
    });
}

AttentionShape read_attention(Arguments& given) {
    const size_t batch = given.size(), seq = given.size(), num_heads = given.size(), d_head = given.size();
    const float eps = given.real(), *const cos = given.read({seq, d_head / 2}, true);
    const float *const sin = given.read({seq, d_head / 2}, !cos), *const gains = given.read({2, d_head}, true);
    const int64_t* const starts = given.read_positions({batch, seq}, true);
    if (cos && d_head % 2) throw InputError("rotary embeddings need an even d_head");
    for (size_t i = 0; starts && i < batch * seq; i++) {
        const int64_t position = static_cast<int64_t>(i % seq), minimum = position ? starts[i - 1] : 0;
        if (starts[i] < minimum || starts[i] > position)
            throw InputError("document starts must be in order and at most the position they belong to");
    }
    return {batch, seq, num_heads, d_head, cos, sin, gains, starts, eps};
}

PyObject* py_attend(PyObject*, PyObject* args) {
    return run_pass(args, [](Arguments& given) {
        const AttentionShape s = read_attention(given);
        return Attention{s, given.read({3, s.batch, s.seq, s.num_heads, s.d_head}),
                         given.write({s.batch, s.seq, s.num_heads, s.d_head}),
                         given.write({s.batch, s.seq, s.num_heads})};
    });
}

PyObject* py_attend_back(PyObject*, PyObject* args) {
    return run_pass(args, [](Arguments& given) {
        const AttentionShape s = read_attention(given);
        return AttentionGradient{s, given.read({3, s.batch, s.seq, s.num_heads, s.d_head}),
                                 given.read({s.batch, s.seq, s.num_heads, s.d_head}),
                                 given.read({s.batch, s.seq, s.num_heads}),
                                 given.read({s.batch, s.seq, s.num_heads, s.d_head}),
                                 given.write({3, s.batch, s.seq, s.num_heads, s.d_head}),
                                 given.write({2, s.d_head}, !s.gains)};
    });
}

PyObject* py_orthogonalize(PyObject*, PyObject* args) {
    return run_pass(args, [](Arguments& given) {
        const size_t count = given.size(), rows = given.size(), columns = given.size(), steps = given.size();
        return Orthogonalization{given.read({count, rows, columns}), given.read({steps, 3}),
                                 given.write({count, rows, columns}), count, rows, columns, steps};
    });
}

PyObject* py_loss_rows(PyObject*, PyObject* args) {
    return run_pass(args, [](Arguments& given) {
        const size_t rows = given.size(), width = given.size();
        const float z_loss = given.real();
        float *const logits = given.write({rows, width}), *const losses = given.write({rows});
        const int64_t* const targets = given.read_positions({rows});
        for (size_t row = 0; row < rows; row++)
            if (targets[row] < 0 || static_cast<size_t>(targets[row]) >= width)
                throw InputError("target " + std::to_string(targets[row]) + " is not a column of the logits");
        return LossRows{logits, losses, targets, rows, width, z_loss};
    });
}

}  // namespace

PyMethodDef float_functions[] = {
    {"norm_rows", py_norm_rows, METH_VARARGS, "RMSNorm of rows, or of x + addend if an addend is given"},
    {"norm_gradient_rows", py_norm_gradient_rows, METH_VARARGS, "the gradient of norm_rows"},
    {"gate_rows", py_gate_rows, METH_VARARGS, "silu(gate) * up"},
    {"gate_gradient_rows", py_gate_gradient_rows, METH_VARARGS, "the gradient of gate_rows"},
    {"attend", py_attend, METH_VARARGS, "causal attention on packed projections, with optional QK norm and RoPE"},
    {"attend_back", py_attend_back, METH_VARARGS, "the gradient of attend, packed"},
    {"orthogonalize", py_orthogonalize, METH_VARARGS, "Muon's orthogonalization, with coefficients per step"},
    {"loss_rows", py_loss_rows, METH_VARARGS, "cross-entropy; overwrites the logits with their gradient"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace groundup::python
