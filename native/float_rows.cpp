#include "float_rows.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.h"
#include "vectors.h"

namespace groundup {

namespace {

#pragma GCC diagnostic push
// Vectors are never passed between instruction sets: all that takes them is inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

// Sixteen bytes are what every processor of 64 bits has: NEON on Arm, SSE2 on x86.
namespace small {
#define VECTOR_BYTES 16
#include "float_rows.inc"
#undef VECTOR_BYTES
}

#if defined(__x86_64__)
VECTOR_CODE("avx2,fma")
namespace avx2 {
#define VECTOR_BYTES 32
#include "float_rows.inc"
#undef VECTOR_BYTES
}
END_VECTOR_CODE
VECTOR_CODE("avx2,fma,avx512f,avx512vl,avx512dq")
namespace avx512 {
#define VECTOR_BYTES 64
#include "float_rows.inc"
#undef VECTOR_BYTES
}
END_VECTOR_CODE
#endif

#pragma GCC diagnostic pop

struct Passes {
    void (*norm)(const NormRows&, size_t, size_t);
    void (*norm_gradient)(const NormGradientRows&, float*, size_t, size_t);
    void (*gate)(const GateRows&, size_t, size_t);
    void (*gate_gradient)(const GateGradientRows&, size_t, size_t);
    void (*attend)(const Attention&, size_t, size_t);
    void (*attend_back)(const AttentionGradient&, float*, size_t, size_t);
    void (*orthogonalize)(const Orthogonalization&, size_t, size_t);
    void (*loss)(const LossRows&, size_t, size_t);
};

#define PASSES(set)                                                                           \
    {set::norm_rows, set::norm_gradient_rows, set::gate_rows, set::gate_gradient_rows,         \
     set::attend, set::attend_back, set::orthogonalize, set::loss_rows}

Passes passes_of(Vectors vectors) {
    switch (vectors) {
#if defined(__x86_64__)
        case Vectors::kAvx2: return PASSES(avx2);
        case Vectors::kAvx512: return PASSES(avx512);
#endif
        default: return PASSES(small);
    }
}

#undef PASSES

const Passes& passes() {
    static const Passes best = passes_of(vectors_in_use());
    return best;
}

// ---- Threads.

constexpr size_t kNumBlocks = 64;

// The pool of threads that torch computes with, where torch brought one of GNU's: while they wait
// for the next matmul they keep the cores busy, and threads of our own would have to fight them.
struct Pool {
    void (*run)(void (*)(void*), void*, unsigned, unsigned);
    int (*thread_number)();

    static const Pool& find() {
        static const Pool pool = {
            reinterpret_cast<decltype(run)>(dlsym(RTLD_DEFAULT, "GOMP_parallel")),
            reinterpret_cast<decltype(thread_number)>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"))};
        return pool;
    }
};

template <class Work>
void run_on_threads(size_t num_threads, Work work) {
    const Pool& pool = Pool::find();
    if (num_threads < 2 || !pool.run || !pool.thread_number) {
        run_threads(num_threads, work);
        return;
    }
    Guarded<Work> guarded(work);
    pool.run(
        [](void* data) {
            const int number = Pool::find().thread_number();
            (*static_cast<Guarded<Work>*>(data))(static_cast<size_t>(number));
        },
        &guarded, static_cast<unsigned>(num_threads), 0);
    guarded.rethrow();
}

// Calls pass(block, begin, end) for every block of rows. A thread that never comes costs nothing: the
// blocks are taken one after the other, each thread beginning where its own part does.
template <class Pass>
void each_block(size_t num_rows, size_t num_threads, Pass pass) {
    const size_t num_blocks = std::min(kNumBlocks, std::max<size_t>(num_rows, 1));
    std::vector<std::atomic<bool>> taken(num_blocks);
    run_on_threads(std::max<size_t>(num_threads, 1), [&](size_t thread) {
        const size_t first = thread * num_blocks / num_threads;
        for (size_t step = 0; step < num_blocks; step++) {
            const size_t block = (first + step) % num_blocks;
            if (taken[block].exchange(true, std::memory_order_relaxed)) continue;
            pass(block, block * num_rows / num_blocks, (block + 1) * num_rows / num_blocks);
        }
    });
}

// The same where every block adds to a sum of its own; `total` gets those, one after the other.
template <class Pass>
void sum_over_blocks(size_t num_rows, float* total, size_t width, size_t num_threads, Pass pass) {
    std::vector<float> sums(kNumBlocks * width);
    each_block(num_rows, num_threads, [&](size_t block, size_t begin, size_t end) {
        pass(sums.data() + block * width, begin, end);
    });
    std::fill_n(total, width, 0.0f);
    for (size_t block = 0; block < kNumBlocks; block++)
        for (size_t i = 0; i < width; i++) total[i] += sums[block * width + i];
}

}  // namespace

void run(const NormRows& work, size_t num_threads) {
    each_block(work.num_rows, num_threads,
               [&](size_t, size_t begin, size_t end) { passes().norm(work, begin, end); });
}

void run(const NormGradientRows& work, size_t num_threads) {
    sum_over_blocks(work.num_rows, work.d_gain, work.width, num_threads,
                    [&](float* d_gain, size_t begin, size_t end) {
                        passes().norm_gradient(work, d_gain, begin, end);
                    });
}

void run(const GateRows& work, size_t num_threads) {
    each_block(work.num_rows, num_threads,
               [&](size_t, size_t begin, size_t end) { passes().gate(work, begin, end); });
}

void run(const GateGradientRows& work, size_t num_threads) {
    each_block(work.num_rows, num_threads,
               [&](size_t, size_t begin, size_t end) { passes().gate_gradient(work, begin, end); });
}

void run(const Attention& work, size_t num_threads) {
    each_block(work.shape.batch * work.shape.num_heads, num_threads,
               [&](size_t, size_t begin, size_t end) { passes().attend(work, begin, end); });
}

void run(const AttentionGradient& work, size_t num_threads) {
    const AttentionShape& shape = work.shape;
    sum_over_blocks(shape.batch * shape.num_heads, work.d_gains, shape.gains ? 2 * shape.d_head : 0, num_threads,
                    [&](float* d_gains, size_t begin, size_t end) {
                        passes().attend_back(work, d_gains, begin, end);
                    });
}

void run(const Orthogonalization& work, size_t num_threads) {
    each_block(work.count, num_threads,
               [&](size_t, size_t begin, size_t end) { passes().orthogonalize(work, begin, end); });
}

void run(const LossRows& work, size_t num_threads) {
    each_block(work.num_rows, num_threads,
               [&](size_t, size_t begin, size_t end) { passes().loss(work, begin, end); });
}

}  // namespace groundup
