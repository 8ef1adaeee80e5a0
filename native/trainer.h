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

// The most words that a token learned across words has, which are what white space of ASCII parts.
constexpr size_t kMostWords = 4;

// Stops early when no pair is left. The words, joined in the first table, are forgotten once they are laid out.
// `look_up` is called now and then, and may throw to end the work. With `within`, the first `num_within` merges
// are learned from the pieces that it cuts the words into, and the others from whole words.
Training train(std::vector<WordCounts>& tables, size_t num_merges, const std::function<void()>& look_up,
               const Splitter* within = nullptr, size_t num_within = 0);

}  // namespace groundup
