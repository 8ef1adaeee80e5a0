#include "special_tokens.h"

#include <algorithm>
#include <string_view>

namespace groundup {

namespace {
constexpr size_t kMaxFirsts = 4, kBlock = 256;
}

SpecialTokens::SpecialTokens(const std::vector<std::pair<std::string, uint32_t>>& tokens) {
    if (tokens.empty()) return;
    pairs_.assign(65536 / 64, 0);
    for (const auto& [token, id] : tokens) {
        if (token.empty()) throw InputError("a special token is empty");
        const Byte first = static_cast<Byte>(token[0]);
        if (!starts_[first]) firsts_ += token[0];
        starts_[first] = true;
        for (unsigned second = 0; second < 256; second++) {
            if (token.size() == 1 || second == static_cast<Byte>(token[1])) {
                const unsigned pair = first | second << 8;
                pairs_[pair / 64] |= uint64_t{1} << (pair % 64);
            }
        }
        max_size_ = std::max(max_size_, token.size());
    }
    tokens_ = tokens;
    std::sort(tokens_.begin(), tokens_.end());
}

// Every token that is a prefix of the text sorts no later than the text, and is a prefix of the last token that
// does: either that token is the longest match, or all matches are prefixes of what it shares with the text.
bool SpecialTokens::longest_at(Span text, size_t at, Match& match) const {
    std::string_view rest(reinterpret_cast<const char*>(text.data + at), std::min(text.size - at, max_size_));
    while (true) {
        const auto after = std::upper_bound(tokens_.begin(), tokens_.end(), rest,
                                             [](std::string_view one, const auto& token) { return one < token.first; });
        if (after == tokens_.begin()) return false;
        const auto& [bytes, id] = after[-1];
        const size_t same = std::mismatch(rest.begin(), rest.end(), bytes.begin(), bytes.end()).first - rest.begin();
        if (same == bytes.size()) {
            match = {at, same, id};
            return true;
        }
        rest = rest.substr(0, same);
    }
}

// The next position where a token may begin: by memchr if there are few first bytes, else by `pairs_`.
size_t SpecialTokens::next_start(Span text, size_t from) const {
    const Byte* const begin = text.data + from;
    if (firsts_.size() <= kMaxFirsts) {
        size_t reach = firsts_.size() == 1 ? text.size - from : std::min(text.size - from, kBlock);
        for (const char first : firsts_)
            if (const void* hit = std::memchr(begin, static_cast<Byte>(first), reach))
                reach = static_cast<size_t>(static_cast<const Byte*>(hit) - begin);
        return from + reach;
    }
    while (from + 1 < text.size && !has_pair(text.data + from)) from++;
    return from;
}

bool SpecialTokens::find(Span text, size_t from, Match& match) const {
    for (size_t i = from; i < text.size && !empty();) {
        const size_t next = next_start(text, i);
        if (next == text.size) break;
        const bool is_last = next + 1 == text.size, starts = starts_[text.data[next]];
        if ((is_last ? starts : has_pair(text.data + next)) && longest_at(text, next, match)) return true;
        i = next + (starts || is_last);
    }
    return false;
}

bool SpecialTokens::crosses(Span text, size_t cut) const {
    const size_t first = cut + 1 > max_size_ ? cut + 1 - max_size_ : 0;
    Match match;
    for (size_t i = first; i < cut && !empty(); i++) {
        if (starts_[text.data[i]] && longest_at(text, i, match) && i + match.size > cut) return true;
    }
    return false;
}

}  // namespace groundup
