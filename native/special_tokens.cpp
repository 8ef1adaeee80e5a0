#include "special_tokens.h"

#include <algorithm>

namespace groundup {

namespace {
constexpr uint64_t kFree = UINT64_MAX;
}

SpecialTokens::SpecialTokens(const std::vector<std::pair<std::string, uint32_t>>& tokens) {
    if (tokens.empty()) return;
    size_t num_bytes = 0;
    for (const auto& token : tokens) num_bytes += token.first.size();
    size_t capacity = 16;
    while (capacity < 2 * num_bytes) capacity *= 2;
    edges_.assign(capacity, Edge{kFree, 0});
    edge_mask_ = capacity - 1;
    pairs_.assign(65536 / 64, 0);
    nodes_.emplace_back();
    for (const auto& [token, id] : tokens) add(token, id);
    if (std::count(starts_, starts_ + 256, true) == 1)
        only_start_ = static_cast<int>(std::find(starts_, starts_ + 256, true) - starts_);
}

void SpecialTokens::add(const std::string& token, uint32_t id) {
    if (token.empty()) throw InputError("a special token is empty");
    uint32_t node = 0;
    for (const char c : token) {
        const Byte byte = static_cast<Byte>(c);
        uint32_t child = child_of(node, byte);
        if (child == kNone) {
            child = static_cast<uint32_t>(nodes_.size());
            nodes_.emplace_back();
            const uint64_t key = uint64_t{node} << 8 | byte;
            size_t i = mix(key ^ kSeedA, kSeedB) & edge_mask_;
            while (edges_[i].key != kFree) i = (i + 1) & edge_mask_;
            edges_[i] = {key, child};
        }
        node = child;
    }
    nodes_[node].id = id;
    const Byte first = static_cast<Byte>(token[0]);
    starts_[first] = true;
    for (unsigned second = 0; second < 256; second++) {
        if (token.size() == 1 || second == static_cast<Byte>(token[1])) {
            const unsigned pair = first | second << 8;
            pairs_[pair / 64] |= uint64_t{1} << (pair % 64);
        }
    }
    max_size_ = std::max(max_size_, token.size());
}

uint32_t SpecialTokens::child_of(uint32_t node, Byte byte) const {
    const uint64_t key = uint64_t{node} << 8 | byte;
    for (size_t i = mix(key ^ kSeedA, kSeedB) & edge_mask_;; i = (i + 1) & edge_mask_) {
        if (edges_[i].key == key) return edges_[i].child;
        if (edges_[i].key == kFree) return kNone;
    }
}

bool SpecialTokens::longest_at(Span text, size_t at, Match& match) const {
    bool found = false;
    uint32_t node = 0;
    for (size_t i = at; i < text.size; i++) {
        node = child_of(node, text.data[i]);
        if (node == kNone) break;
        if (nodes_[node].id != kNone) {
            match = {at, i + 1 - at, nodes_[node].id};
            found = true;
        }
    }
    return found;
}

bool SpecialTokens::find(Span text, size_t from, Match& match) const {
    if (empty()) return false;
    size_t i = from;
    while (i < text.size) {
        if (only_start_ >= 0) {
            const void* hit = std::memchr(text.data + i, only_start_, text.size - i);
            if (!hit) return false;
            i = static_cast<size_t>(static_cast<const Byte*>(hit) - text.data);
        } else {
            while (i + 1 < text.size) {
                const unsigned pair = text.data[i] | static_cast<unsigned>(text.data[i + 1]) << 8;
                if (pairs_[pair / 64] >> (pair % 64) & 1) break;
                i++;
            }
        }
        if (longest_at(text, i, match)) return true;
        i++;
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
