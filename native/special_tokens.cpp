#include "special_tokens.h"

#include <algorithm>

namespace groundup {

namespace {
constexpr uint64_t kFree = UINT64_MAX;
constexpr size_t kFewFirsts = 4, kBlock = 256;
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
    std::vector<Token> sorted(tokens);
    std::sort(sorted.begin(), sorted.end());
    add_node(sorted.data(), sorted.data() + sorted.size(), 0);
    index_edges();
}

// The node of the tokens from first to last, which agree on their first `depth` bytes.
uint32_t SpecialTokens::add_node(const Token* first, const Token* last, size_t depth) {
    // Sorted: what the first and the last share, all share.
    const std::string &low = first->first, &high = last[-1].first;
    size_t end = depth;
    while (end < low.size() && end < high.size() && low[end] == high[end]) end++;
    const uint32_t node = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back({static_cast<uint32_t>(skipped_.size()), static_cast<uint32_t>(end - depth), kNone});
    skipped_.append(low, depth, end - depth);
    for (; first < last && first->first.size() == end; first++) nodes_[node].id = first->second;
    while (first < last) {
        const char byte = first->first[end];
        const Token* next = first;
        while (next < last && next->first[end] == byte) next++;
        const uint32_t child = add_node(first, next, end + 1);
        edges_.push_back({uint64_t{node} << 8 | static_cast<Byte>(byte), child});
        first = next;
    }
    return node;
}

void SpecialTokens::index_edges() {
    size_t capacity = 16;
    while (capacity < 2 * edges_.size()) capacity *= 2;
    std::vector<Edge> indexed(capacity, Edge{kFree, 0});
    for (const Edge& edge : edges_) {
        size_t i = mix(edge.key ^ kSeedA, kSeedB) & (capacity - 1);
        while (indexed[i].key != kFree) i = (i + 1) & (capacity - 1);
        indexed[i] = edge;
    }
    edges_ = std::move(indexed);
}

uint32_t SpecialTokens::child_of(uint32_t node, Byte byte) const {
    const uint64_t key = uint64_t{node} << 8 | byte;
    const size_t mask = edges_.size() - 1;
    for (size_t i = mix(key ^ kSeedA, kSeedB) & mask;; i = (i + 1) & mask) {
        if (edges_[i].key == key) return edges_[i].child;
        if (edges_[i].key == kFree) return kNone;
    }
}

bool SpecialTokens::longest_at(Span text, size_t at, Match& match) const {
    bool found = false;
    size_t i = at;
    for (uint32_t number = 0; number != kNone; number = child_of(number, text.data[i++])) {
        const Node& node = nodes_[number];
        if (text.size - i < node.skip_size ||
            std::memcmp(text.data + i, skipped_.data() + node.skip_begin, node.skip_size) != 0)
            break;
        i += node.skip_size;
        if (node.id != kNone) {
            match = {at, i - at, node.id};
            found = true;
        }
        if (i == text.size) break;
    }
    return found;
}

// Where a token may begin: the next of a few first bytes in a block, or of the pairs of two bytes.
size_t SpecialTokens::next_start(Span text, size_t from) const {
    const Byte* const begin = text.data + from;
    if (firsts_.size() <= kFewFirsts) {
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
