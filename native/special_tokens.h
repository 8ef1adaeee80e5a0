// Finds special tokens in text: the leftmost, and the longest of those that start there.
#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace groundup {

class SpecialTokens {
public:
    struct Match {
        size_t begin;
        size_t size;
        uint32_t id;
    };

    SpecialTokens() = default;
    explicit SpecialTokens(const std::vector<std::pair<std::string, uint32_t>>& tokens);

    bool empty() const { return tokens_.empty(); }
    size_t max_size() const { return max_size_; }

    // Finds the first match that begins at or after `from`.
    bool find(Span text, size_t from, Match& match) const;

    // Whether an occurrence of a special token spans `cut`.
    bool crosses(Span text, size_t cut) const;

private:
    bool has_pair(const Byte* p) const {
        const unsigned pair = p[0] | static_cast<unsigned>(p[1]) << 8;
        return pairs_[pair / 64] >> (pair % 64) & 1;
    }
    size_t next_start(Span text, size_t from) const;
    bool longest_at(Span text, size_t at, Match& match) const;

    std::vector<std::pair<std::string, uint32_t>> tokens_;  // sorted by their bytes
    size_t max_size_ = 0;
    std::vector<uint64_t> pairs_;  // bit set of the pairs of bytes that a token can start with
    bool starts_[256] = {};
    std::string firsts_;  // the bytes in starts_
};

}  // namespace groundup
