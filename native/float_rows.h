// CPU kernels for the operations between the matmuls of a training step, on rows of float32: each makes
// one pass over memory where separate operations would make three to six.
//
// Rows are divided into blocks that do not depend on the number of threads, so that sums are
// reproducible.
#pragma once

#include <cstddef>
#include <cstdint>

namespace groundup {

// out = (x + addend) · scale · gain, scale = 1 / sqrt(mean((x + addend)²) + eps), total = x + addend.
// Without an addend, no total is written.
struct NormRows {
    const float *x, *addend, *gain;
    float *total, *out, *scale;
    size_t num_rows, width;
    float eps;
};

// The gradient of NormRows, where `x` is the total; d_total is added to d_x. Overwrites d_gain.
struct NormGradientRows {
    const float *d_out, *d_total, *x, *gain, *scale;
    float *d_x, *d_gain;
    size_t num_rows, width;
};

// out = silu(gate) · up, with gate and up side by side in a row of `packed`.
struct GateRows {
    const float* packed;
    float* out;
    size_t num_rows, width;
};

struct GateGradientRows {
    const float *packed, *d_out;
    float* d_packed;
    size_t num_rows, width;
};

// Causal attention of every head of every sequence. A row of `packed` has queries, keys and values
// side by side. Queries and keys are normalized if there are `gains` (first the queries', then the
// keys'), and then rotated if there are `cos` and `sin`. starts[i] is the first position that i attends
// to: non-decreasing within a sequence and at most i; without `starts` it is 0.
struct AttentionShape {
    size_t batch, seq, num_heads, d_head;
    const float *cos, *sin, *gains;
    const int64_t* starts;
    float eps;
};

struct Attention {
    AttentionShape shape;
    const float* packed;
    // log_sums: log2 of the softmax denominator of every query of every head.
    float *out, *log_sums;
};

// Overwrites d_gains.
struct AttentionGradient {
    AttentionShape shape;
    const float *packed, *out, *log_sums, *d_out;
    float *d_packed, *d_gains;
};

// For every matrix X with at most as many rows as columns: X ← X / ‖X‖, then X ← a X + b (X Xᵀ) X +
// c (X Xᵀ)² X for every (a, b, c) of the coefficients.
struct Orthogonalization {
    const float *matrices, *coefficients;
    float* out;
    size_t count, rows, columns, num_steps;
};

// losses = log Z - l_target + z_loss · (log Z)²; the logits are overwritten by their gradient.
struct LossRows {
    float *logits, *losses;
    const int64_t* targets;
    size_t num_rows, width;
    float z_loss;
};

// Defined for each struct above.
template <class Work>
void run(const Work& work, size_t num_threads);

}  // namespace groundup
