// What a training step on a CPU does to rows of float32 between its matmuls: each of these
// is one pass over memory where separate operations would take three to six.
//
// Rows are shared among threads in blocks that do not depend on how many there are, so that sums
// come out the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace groundup {

// out = (x + addend) · scale · gain, scale = 1 / sqrt(mean((x + addend)²) + eps). Without an addend
// no total is written either.
struct NormRows {
    const float *x, *addend, *gain;
    float *total, *out, *scale;
    size_t num_rows, width;
    float eps;
};

// Its gradient, with `x` the total; d_total comes to d_x besides. `d_gain` is written.
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
// side by side. Queries and keys are normalized if there are gains, first those of queries, and then
// rotated if there are cosines and sines. `starts` has the first position that each one sees: in a
// sequence no less than the one before has, and not behind itself. Without it all see the first.
struct AttentionShape {
    size_t batch, seq, num_heads, d_head;
    const float *cos, *sin, *gains;
    const int64_t* starts;
    float eps;
};

struct Attention {
    AttentionShape shape;
    const float* packed;
    // For each query of each head the logarithm, to base 2, of the sum that its weights are divided by.
    float *out, *log_sums;
};

// `d_gains` is written.
struct AttentionGradient {
    AttentionShape shape;
    const float *packed, *out, *log_sums, *d_out;
    float *d_packed, *d_gains;
};

// Each matrix X, of no more rows than columns: X / ‖X‖ and then a X + b (X Xᵀ) X + c (X Xᵀ)² X for every
// (a, b, c) of the coefficients.
struct Orthogonalization {
    const float *matrices, *coefficients;
    float* out;
    size_t count, rows, columns, num_steps;
};

// losses = log Z - l_target + z_loss · (log Z)², and the gradient in place of the logits.
struct LossRows {
    float *logits, *losses;
    const int64_t* targets;
    size_t num_rows, width;
    float z_loss;
};

// For each of the above.
template <class Work>
void run(const Work& work, size_t num_threads);

}  // namespace groundup
