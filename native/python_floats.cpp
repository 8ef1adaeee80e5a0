// Functions of groundup._native on rows of float32: arrays are checked here, trusted in float_rows.
#include <algorithm>

#include "float_rows.h"
#include "python_support.h"

namespace groundup::python {

namespace {

using FloatArray = Array<float>;

template <class Work>
PyObject* run_without_gil(const Work& work, Py_ssize_t num_threads) {
    {
        const GilReleased released;
        run(work, static_cast<size_t>(std::max<Py_ssize_t>(num_threads, 1)));
    }
    Py_RETURN_NONE;
}
PyObject* py_norm_rows(PyObject*, PyObject* args) {
    PyObject *x, *addend, *gain, *total, *out, *scale;
    Py_ssize_t rows, width, num_threads;
    float eps;
    if (!PyArg_ParseTuple(args, "OOOOOOnnfn", &x, &addend, &gain, &total, &out, &scale, &rows, &width, &eps,
                          &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), size = product({rows, width});
        const FloatArray x_(x, size), addend_(addend, size, false, true), gain_(gain, product({width}));
        const FloatArray total_(total, size, true, true), out_(out, size, true), scale_(scale, num_rows, true);
        return run_without_gil(NormRows{x_.data(), addend_.data(), gain_.data(), total_.data(), out_.data(),
                                        scale_.data(), num_rows, static_cast<size_t>(width), eps},
                               num_threads);
    });
}

PyObject* py_norm_gradient_rows(PyObject*, PyObject* args) {
    PyObject *d_out, *d_total, *x, *gain, *scale, *d_x, *d_gain;
    Py_ssize_t rows, columns, num_threads;
    if (!PyArg_ParseTuple(args, "OOOOOOOnnn", &d_out, &d_total, &x, &gain, &scale, &d_x, &d_gain, &rows, &columns,
                          &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), width = product({columns}), size = product({rows, columns});
        const FloatArray d_out_(d_out, size), d_total_(d_total, size, false, true), x_(x, size), gain_(gain, width);
        const FloatArray scale_(scale, num_rows), d_x_(d_x, size, true), d_gain_(d_gain, width, true);
        return run_without_gil(NormGradientRows{d_out_.data(), d_total_.data(), x_.data(), gain_.data(),
                                                scale_.data(), d_x_.data(), d_gain_.data(), num_rows, width},
                               num_threads);
    });
}

PyObject* py_gate_rows(PyObject*, PyObject* args) {
    PyObject *packed, *out;
    Py_ssize_t rows, columns, num_threads;
    if (!PyArg_ParseTuple(args, "OOnnn", &packed, &out, &rows, &columns, &num_threads)) return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), width = product({columns});
        const FloatArray packed_(packed, product({2, rows, columns})), out_(out, product({rows, columns}), true);
        return run_without_gil(GateRows{packed_.data(), out_.data(), num_rows, width}, num_threads);
    });
}

PyObject* py_gate_gradient_rows(PyObject*, PyObject* args) {
    PyObject *packed, *d_out, *d_packed;
    Py_ssize_t rows, columns, num_threads;
    if (!PyArg_ParseTuple(args, "OOOnnn", &packed, &d_out, &d_packed, &rows, &columns, &num_threads)) return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), width = product({columns}), size = product({2, rows, columns});
        const FloatArray packed_(packed, size), d_out_(d_out, product({rows, columns})), d_packed_(d_packed, size, true);
        return run_without_gil(GateGradientRows{packed_.data(), d_out_.data(), d_packed_.data(), num_rows, width},
                               num_threads);
    });
}

PyObject* py_rotate_packed(PyObject*, PyObject* args) {
    PyObject *packed, *cos, *sin, *query, *key;
    Py_ssize_t batch, positions, heads, head_size, num_threads;
    if (!PyArg_ParseTuple(args, "OOOOOnnnnn", &packed, &cos, &sin, &query, &key, &batch, &positions, &heads,
                          &head_size, &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t seq = product({positions}), num_rows = product({batch, positions});
        const size_t num_heads = product({heads}), d_head = product({head_size}), width = product({heads, head_size});
        const size_t size = product({batch, positions, heads, head_size});
        const size_t num_angles = product({positions, head_size}) / 2;
        const FloatArray packed_(packed, product({3, batch, positions, heads, head_size}));
        const FloatArray cos_(cos, num_angles), sin_(sin, num_angles), query_(query, size, true), key_(key, size, true);
        return run_without_gil(RotationRows{{packed_.data(), packed_.data() + width}, nullptr, cos_.data(), sin_.data(),
                                            {query_.data(), key_.data()}, nullptr,
                                            num_rows, 3 * width, width, seq, num_heads, d_head, false},
                               num_threads);
    });
}

PyObject* py_rotate_back(PyObject*, PyObject* args) {
    PyObject *d_query, *d_key, *d_value, *cos, *sin, *d_packed;
    Py_ssize_t batch, positions, heads, head_size, num_threads;
    if (!PyArg_ParseTuple(args, "OOOOOOnnnnn", &d_query, &d_key, &d_value, &cos, &sin, &d_packed, &batch, &positions,
                          &heads, &head_size, &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t seq = product({positions}), num_rows = product({batch, positions});
        const size_t num_heads = product({heads}), d_head = product({head_size}), width = product({heads, head_size});
        const size_t size = product({batch, positions, heads, head_size});
        const size_t num_angles = product({positions, head_size}) / 2;
        const FloatArray d_query_(d_query, size), d_key_(d_key, size), d_value_(d_value, size);
        const FloatArray cos_(cos, num_angles), sin_(sin, num_angles);
        const FloatArray d_packed_(d_packed, product({3, batch, positions, heads, head_size}), true);
        float* const to = d_packed_.data();
        return run_without_gil(RotationRows{{d_query_.data(), d_key_.data()}, d_value_.data(), cos_.data(), sin_.data(),
                                            {to, to + width}, to + 2 * width,
                                            num_rows, width, 3 * width, seq, num_heads, d_head, true},
                               num_threads);
    });
}

PyObject* py_loss_rows(PyObject*, PyObject* args) {
    PyObject *logits, *targets, *losses;
    Py_ssize_t rows, columns, num_threads;
    float z_loss;
    if (!PyArg_ParseTuple(args, "OOOnnfn", &logits, &targets, &losses, &rows, &columns, &z_loss, &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t num_rows = product({rows}), width = product({columns});
        const FloatArray logits_(logits, product({rows, columns}), true), losses_(losses, num_rows, true);
        const Array<int64_t> targets_(targets, num_rows);
        for (size_t row = 0; row < num_rows; row++)
            if (targets_.data()[row] < 0 || static_cast<size_t>(targets_.data()[row]) >= width)
                throw InputError("target " + std::to_string(targets_.data()[row]) + " is not a column of the logits");
        return run_without_gil(LossRows{logits_.data(), losses_.data(), targets_.data(), num_rows, width, z_loss},
                               num_threads);
    });
}

}  // namespace

PyMethodDef float_functions[] = {
    {"norm_rows", py_norm_rows, METH_VARARGS, "root-mean-square norm of rows, of a sum if an addend is given"},
    {"norm_gradient_rows", py_norm_gradient_rows, METH_VARARGS, "the gradient of norm_rows"},
    {"gate_rows", py_gate_rows, METH_VARARGS, "silu(gate) * up"},
    {"gate_gradient_rows", py_gate_gradient_rows, METH_VARARGS, "the gradient of gate_rows"},
    {"rotate_packed", py_rotate_packed, METH_VARARGS, "queries and keys of packed projections, rotated"},
    {"rotate_back", py_rotate_back, METH_VARARGS, "the gradient of rotate_packed, packed"},
    {"loss_rows", py_loss_rows, METH_VARARGS, "cross-entropy, and its gradient in place of the logits"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace groundup::python
