// Learns merges from counted words: always the most frequent pair, ties to the greater byte strings.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "word_counts.h"

namespace groundup {

struct Training {
    std::vector<std::pair<uint32_t, uint32_t>> merges;  // symbols: bytes, then 256 + merge number
    uint64_t num_bytes = 0;    // of the whole text
    uint64_t num_symbols = 0;  // of the whole text after the last merge
};

// Stops early when no pair is left. `progress` is called now and then with the merges made.
Training train(WordList words, size_t num_merges, const std::function<void(size_t)>& progress);

}  // namespace groundup
