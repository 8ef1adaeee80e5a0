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
// Vectors are never passed between instruction sets: every function that takes them is inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

// Every 64-bit CPU has 16-byte vectors: NEON on Arm, SSE2 on x86.
namespace baseline {
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

template <class Work>
using Pass = void (*)(const Work&, float*, size_t, size_t);

template <class Work>
Pass<Work> find_pass() {
    switch (vectors_in_use()) {
#if defined(__x86_64__)
        case Vectors::kAvx2: return avx2::pass;
        case Vectors::kAvx512: return avx512::pass;
#endif
        default: return baseline::pass;
    }
}

// The number of rows, and the array of `width` values that receives the sums over all blocks, if any.
struct Extent {
    size_t num_rows, width = 0;
    float* total = nullptr;
};

template <class Work>
Extent extent_of(const Work& work) { return {work.num_rows}; }
Extent extent_of(const NormGradientRows& work) { return {work.num_rows, work.width, work.d_gain}; }
Extent extent_of(const Attention& work) { return {work.shape.batch * work.shape.num_heads}; }
Extent extent_of(const AttentionGradient& work) {
    return {work.shape.batch * work.shape.num_heads, work.shape.gains ? 2 * work.shape.d_head : 0, work.d_gains};
}
Extent extent_of(const Orthogonalization& work) { return {work.count}; }

constexpr size_t kNumBlocks = 64;

// Torch's thread pool, if it is GNU OpenMP's: its threads spin while they wait for the next matmul, so
// threads of our own would compete with them for the cores.
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

}  // namespace

// Threads claim blocks dynamically, each starting at its own part, so a thread that never starts costs nothing.
// Every block has sums of its own, which are added to the total in order.
template <class Work>
void run(const Work& work, size_t num_threads) {
    static const Pass<Work> pass = find_pass<Work>();
    const auto [num_rows, width, total] = extent_of(work);
    const size_t rows = num_rows, sum_width = width, num_blocks = std::min(kNumBlocks, std::max<size_t>(rows, 1));
    std::vector<std::atomic<bool>> taken(num_blocks);
    std::vector<float> sums(num_blocks * sum_width);
    num_threads = std::max<size_t>(num_threads, 1);
    run_on_threads(num_threads, [&](size_t thread) {
        const size_t first = thread * num_blocks / num_threads;
        for (size_t step = 0; step < num_blocks; step++) {
            const size_t block = (first + step) % num_blocks;
            if (taken[block].exchange(true, std::memory_order_relaxed)) continue;
            pass(work, sums.data() + block * sum_width, block * rows / num_blocks, (block + 1) * rows / num_blocks);
        }
    });
    std::fill_n(total, width, 0.0f);
    for (size_t i = 0; i < sums.size(); i++) total[i % width] += sums[i];
}

template void run(const NormRows&, size_t);
template void run(const NormGradientRows&, size_t);
template void run(const GateRows&, size_t);
template void run(const GateGradientRows&, size_t);
template void run(const Attention&, size_t);
template void run(const AttentionGradient&, size_t);
template void run(const Orthogonalization&, size_t);
template void run(const LossRows&, size_t);

}  // namespace groundup
