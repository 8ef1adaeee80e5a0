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

// Rotates the pairs of every head of two tensors by their rows' positions, or back, and copies a
// third. Row r has position r % seq; strides are in values.
struct RotationRows {
    const float *from[2], *copied_from, *cos, *sin;
    float *to[2], *copied_to;
    size_t num_rows, from_stride, to_stride, seq, num_heads, d_head;
    bool backward;
};

// losses = log Z - l_target + z_loss · (log Z)², and the gradient in place of the logits.
struct LossRows {
    float *logits, *losses;
    const int64_t* targets;
    size_t num_rows, width;
    float z_loss;
};

void run(const NormRows& work, size_t num_threads);
void run(const NormGradientRows& work, size_t num_threads);
void run(const GateRows& work, size_t num_threads);
void run(const GateGradientRows& work, size_t num_threads);
void run(const RotationRows& work, size_t num_threads);
void run(const LossRows& work, size_t num_threads);

}  // namespace groundup
