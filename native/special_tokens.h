// Finds special tokens in text: leftmost first, the longest where several start at one position.
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

    // The first match that begins at or after `from`; false when there is none.
    bool find(Span text, size_t from, Match& match) const;

    // Whether some special token's occurrence lies across `cut`.
    bool crosses(Span text, size_t cut) const;

private:
    bool has_pair(const Byte* p) const {
        const unsigned pair = p[0] | static_cast<unsigned>(p[1]) << 8;
        return pairs_[pair / 64] >> (pair % 64) & 1;
    }
    size_t next_start(Span text, size_t from) const;
    bool longest_at(Span text, size_t at, Match& match) const;

    std::vector<std::pair<std::string, uint32_t>> tokens_;  // in the order of their bytes
    size_t max_size_ = 0;
    std::vector<uint64_t> pairs_;  // one bit for each two bytes a token can start with
    bool starts_[256] = {};
    std::string firsts_;  // the same bytes
};

}  // namespace groundup
