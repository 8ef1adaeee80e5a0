// Learns merges from counted words: always the most frequent pair, ties to the greater byte strings.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "word_counts.h"

namespace groundup {

struct Training {
    std::vector<std::pair<uint32_t, uint32_t>> merges;  // symbols: bytes, then 256 + merge number
    uint64_t num_words = 0;
    uint64_t num_bytes = 0;    // of the whole text
    uint64_t num_symbols = 0;  // of the whole text after the last merge
};

// Bytes that merging may take, and what the process holds besides, for the error's sake.
struct MemoryLimit {
    uint64_t most = UINT64_MAX;
    uint64_t besides = 0;
};

struct WordSource {
    std::function<void(const VisitWord&)> visit;  // gives the same words each time
    std::function<void()> forget;                 // called when they are not needed any more
};

// Stops early when no pair is left; an InputError says so before more memory is taken than allowed.
// `look_up` is called now and then, and may throw to end the work.
Training train(const WordSource& words, size_t num_merges, const MemoryLimit& limit,
               const std::function<void()>& look_up);

}  // namespace groundup
