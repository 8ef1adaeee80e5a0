// Learns merges from word counts: the most frequent pair first, ties to the greater byte strings.
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

// Maximum number of words, separated by ASCII whitespace, in a token learned across words.
constexpr size_t kMaxWords = 4;

// Learns `num_merges` merges, or fewer if no pair is left. Clears the tables. `poll` is called regularly and may
// throw to abort. With `within`, the first `num_within` merges are learned from the pieces into which it splits the
// words, the others from whole words.
Training train(std::vector<WordCounts>& tables, size_t num_merges, const std::function<void()>& poll,
               const Splitter* within = nullptr, size_t num_within = 0);

}  // namespace groundup
