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

// Stops early when no pair is left. The words are forgotten once they are laid out. `look_up` is
// called now and then, and may throw to end the work.
Training train(WordCounts& words, size_t num_merges, const std::function<void()>& look_up);

}  // namespace groundup
