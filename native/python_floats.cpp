// Functions of groundup._native on rows of float32: arrays are checked here, trusted in float_rows.
#include <algorithm>

#include "float_rows.h"
#include "python_support.h"

namespace groundup::python {

namespace {

using FloatArray = Array<float>;

template <class Work>
PyObject* run_without_gil(const Work& work, Py_ssize_t num_threads) {
    unlocked([&] { run(work, static_cast<size_t>(std::max<Py_ssize_t>(num_threads, 1))); });
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
        const FloatArray total_(total, size, true, addend == Py_None), out_(out, size, true), scale_(scale, num_rows, true);
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

// The arrays that both directions of attention take, and how large they have to be.
struct AttentionArrays {
    size_t batch, seq, num_heads, d_head, size, num_rows;
    FloatArray packed, cos, sin, gains, out, log_sums;
    Array<int64_t> starts;
    float eps;

    AttentionArrays(PyObject* const (&arrays)[7], const Py_ssize_t (&sizes)[4], float eps, bool backward)
        : batch(product({sizes[0]})), seq(product({sizes[1]})), num_heads(product({sizes[2]})),
          d_head(product({sizes[3]})), size(product({sizes[0], sizes[1], sizes[2], sizes[3]})),
          num_rows(product({sizes[0], sizes[1], sizes[2]})),
          packed(arrays[0], product({3, sizes[0], sizes[1], sizes[2], sizes[3]})),
          cos(arrays[1], product({sizes[1], sizes[3]}) / 2, false, true),
          sin(arrays[2], product({sizes[1], sizes[3]}) / 2, false, arrays[1] == Py_None),
          gains(arrays[3], product({2, sizes[3]}), false, true), out(arrays[4], size, !backward),
          log_sums(arrays[5], num_rows, !backward),
          starts(arrays[6], product({sizes[0], sizes[1]}), false, true), eps(eps) {
        if (cos.data() && d_head % 2) throw InputError("a rotation needs heads of an even size");
        for (size_t i = 0; starts.data() && i < batch * seq; i++) {
            const int64_t position = static_cast<int64_t>(i % seq), least = position ? starts.data()[i - 1] : 0;
            if (starts.data()[i] < least || starts.data()[i] > position)
                throw InputError("positions that are seen must begin in order and not behind their own");
        }
    }

    AttentionShape shape() const {
        return {batch, seq, num_heads, d_head, cos.data(), sin.data(), gains.data(), starts.data(), eps};
    }
};

PyObject* py_attend(PyObject*, PyObject* args) {
    PyObject* arrays[7];
    Py_ssize_t sizes[4], num_threads;
    float eps;
    if (!PyArg_ParseTuple(args, "OOOOOOOnnnnfn", &arrays[0], &arrays[1], &arrays[2], &arrays[3], &arrays[4], &arrays[5],
                          &arrays[6], &sizes[0], &sizes[1], &sizes[2], &sizes[3], &eps, &num_threads))
        return nullptr;
    return guarded([&] {
        const AttentionArrays made(arrays, sizes, eps, false);
        return run_without_gil(
            Attention{made.shape(), made.packed.data(), made.out.data(), made.log_sums.data()}, num_threads);
    });
}

PyObject* py_attend_back(PyObject*, PyObject* args) {
    PyObject *arrays[7], *d_out, *d_packed, *d_gains;
    Py_ssize_t sizes[4], num_threads;
    float eps;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOnnnnfn", &arrays[0], &arrays[1], &arrays[2], &arrays[3], &arrays[4],
                          &arrays[5], &arrays[6], &d_out, &d_packed, &d_gains, &sizes[0], &sizes[1], &sizes[2], &sizes[3], &eps,
                          &num_threads))
        return nullptr;
    return guarded([&] {
        const AttentionArrays made(arrays, sizes, eps, true);
        const FloatArray d_out_(d_out, made.size), d_packed_(d_packed, 3 * made.size, true);
        const FloatArray d_gains_(d_gains, 2 * made.d_head, true, !made.gains.data());
        return run_without_gil(AttentionGradient{made.shape(), made.packed.data(), made.out.data(),
                                                 made.log_sums.data(), d_out_.data(), d_packed_.data(),
                                                 d_gains_.data()},
                               num_threads);
    });
}

PyObject* py_orthogonalize(PyObject*, PyObject* args) {
    PyObject *matrices, *coefficients, *out;
    Py_ssize_t count, rows, columns, steps, num_threads;
    if (!PyArg_ParseTuple(args, "OOOnnnnn", &matrices, &coefficients, &out, &count, &rows, &columns, &steps,
                          &num_threads))
        return nullptr;
    return guarded([&] {
        const size_t size = product({count, rows, columns});
        const FloatArray matrices_(matrices, size), coefficients_(coefficients, product({steps, 3}));
        const FloatArray out_(out, size, true);
        return run_without_gil(
            Orthogonalization{matrices_.data(), coefficients_.data(), out_.data(), static_cast<size_t>(count),
                              static_cast<size_t>(rows), static_cast<size_t>(columns), static_cast<size_t>(steps)},
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
    {"attend", py_attend, METH_VARARGS, "causal attention on packed projections, with norm and rotation if given"},
    {"attend_back", py_attend_back, METH_VARARGS, "the gradient of attend, packed"},
    {"orthogonalize", py_orthogonalize, METH_VARARGS, "Muon's matrices, by the coefficients of each step"},
    {"loss_rows", py_loss_rows, METH_VARARGS, "cross-entropy, and its gradient in place of the logits"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace groundup::python
