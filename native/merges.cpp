#include "merges.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "vectors.h"

namespace groundup {

namespace {

namespace plain {
#include "short_word.inc"
}

#if defined(__x86_64__)
VECTOR_CODE("avx2,bmi,bmi2")
namespace avx2 {
#include "short_word.inc"
}
END_VECTOR_CODE
#endif

// Merges the bytes of one token of at least two bytes, lowest rank first, until two parts are left or nothing merges.
// rank_of(begin, middle, end) is the rank of two adjacent parts. Returns the boundaries of the parts.
template <class RankOf>
std::vector<uint32_t> merge_alone(size_t size, RankOf rank_of) {
    std::vector<uint32_t> cuts(size + 1), ranks(size - 1);
    const auto rank_at = [&](size_t k) { return rank_of(cuts[k], cuts[k + 1], cuts[k + 2]); };
    for (size_t k = 0; k <= size; k++) cuts[k] = static_cast<uint32_t>(k);
    for (size_t k = 0; k + 1 < size; k++) ranks[k] = rank_at(k);
    while (cuts.size() > 3) {
        const auto best = std::min_element(ranks.begin(), ranks.end());
        if (*best == kNone) break;
        const size_t k = static_cast<size_t>(best - ranks.begin());
        cuts.erase(cuts.begin() + static_cast<std::ptrdiff_t>(k) + 1);
        ranks.erase(best);
        if (k < ranks.size()) ranks[k] = rank_at(k);
        if (k > 0) ranks[k - 1] = rank_at(k - 1);
    }
    return cuts;
}

using MergeList = std::vector<std::pair<std::string, std::string>>;

// For a list in which several merges produce the same token, keeps those that can be applied. The bytes
// between two boundaries merge the same way in any context, so merging a token's bytes in isolation
// finds its only merge.
MergeList without_dead_merges(const MergeList& merges) {
    const auto key_of = [](const std::string& left, const std::string& right) {
        return std::to_string(left.size()) + ":" + left + right;
    };
    std::unordered_map<std::string, uint32_t> rank_by_pair;
    for (size_t i = 0; i < merges.size(); i++)
        rank_by_pair.emplace(key_of(merges[i].first, merges[i].second), static_cast<uint32_t>(i));
    MergeList kept;
    for (size_t i = 0; i < merges.size(); i++) {
        const std::string token = merges[i].first + merges[i].second;
        const auto rank_of = [&](size_t begin, size_t middle, size_t end) {
            const auto found = rank_by_pair.find(key_of(token.substr(begin, middle - begin), token.substr(middle, end - middle)));
            return found == rank_by_pair.end() ? kNone : found->second;
        };
        const std::vector<uint32_t> cuts = merge_alone(token.size(), rank_of);
        if (cuts.size() == 3 && rank_of(0, cuts[1], token.size()) == i) kept.push_back(merges[i]);
    }
    return kept;
}

}  // namespace

MergeTable::MergeTable(const std::vector<std::string>& tokens, const std::vector<bool>& present,
                       const MergeList& merges) {
    if (merges.size() + 256 >= kMaxSymbols)
        throw InputError("more than " + std::to_string(kMaxSymbols - 257) + " merges");
    std::unordered_map<std::string_view, uint32_t> ids;
    ids.reserve(tokens.size());
    for (size_t id = 0; id < tokens.size(); id++)
        if (present[id]) ids.emplace(tokens[id], static_cast<uint32_t>(id));
    const auto id_of = [&](std::string_view token) {
        const auto found = ids.find(token);
        return found == ids.end() ? kNone : found->second;
    };
    symbol_of_.assign(tokens.size(), kNone);
    id_of_.reserve(256 + merges.size());
    for (int b = 0; b < 256; b++) {
        const std::string byte(1, static_cast<char>(b));
        const uint32_t id = id_of(byte);
        if (id == kNone) throw InputError("the vocabulary has no token for byte " + std::to_string(b));
        symbol_of_[id] = static_cast<Symbol>(b);
        id_of_.push_back(id);
    }
    MergeList kept;
    const MergeList* list = &merges;
    std::string product;
    for (size_t rank = 0; rank < list->size(); rank++) {
        const auto& [left, right] = (*list)[rank];
        product.assign(left).append(right);
        const uint32_t id = id_of(product);
        if (id == kNone) throw InputError("merge " + std::to_string(rank + 1) + " produces a token that is not in the vocabulary");
        if (symbol_of_[id] != kNone && list == &merges) {
            // Two merges produce the same token: restart with the merges that can be applied.
            kept = without_dead_merges(merges);
            list = &kept;
            for (size_t symbol = 256; symbol < id_of_.size(); symbol++) symbol_of_[id_of_[symbol]] = kNone;
            id_of_.resize(256);
            rank = static_cast<size_t>(-1);
            continue;
        }
        symbol_of_[id] = static_cast<Symbol>(id_of_.size());
        id_of_.push_back(id);
    }

    size_t capacity = 1024;
    while (capacity < 2 * list->size()) capacity *= 2;
    const size_t num_words = 2 * capacity + 65536 + 2 * id_of_.size(), large = size_t{1} << 19;
    block_ = std::make_unique<ZeroedBlock>((num_words + large - 1) / large * large * 4);
    uint64_t* const slots = reinterpret_cast<uint64_t*>(block_->data());
    uint32_t* const words = reinterpret_cast<uint32_t*>(slots + capacity);
    std::memset(slots, 0xFF, 8 * capacity + 4 * 65536);
    ranks_ = {slots, capacity - 1, 64 - __builtin_ctzll(capacity), words, words + 65536,
              reinterpret_cast<uint8_t*>(words + 65536 + id_of_.size())};
    std::copy(id_of_.begin(), id_of_.end(), ranks_.id_of);
    encode_short_ = plain::encode_short;
#if defined(__x86_64__)
    if (vectors_in_use() >= Vectors::kAvx2) encode_short_ = avx2::encode_short;
#endif
    for (size_t rank = 0; rank < list->size(); rank++) {
        Symbol symbols[2];
        const std::string* sides[2] = {&(*list)[rank].first, &(*list)[rank].second};
        for (int k = 0; k < 2; k++) {
            const uint32_t id = id_of(*sides[k]);
            if (id == kNone) throw InputError("merge " + std::to_string(rank + 1) + " uses a token that is not in the vocabulary");
            symbols[k] = symbol_of_[id];
            if (symbols[k] != kNone && symbols[k] >= 256 + rank) ordered_ = false;
        }
        // A side that no merge produces never occurs in a word.
        if (symbols[0] != kNone && symbols[1] != kNone)
            insert(symbols[0], symbols[1], static_cast<uint32_t>(rank));
        reach_ += sides[0]->size() + sides[1]->size() - 1;
    }
    for (uint64_t* slot = slots; slot < slots + capacity; slot++)
        if (*slot != UINT64_MAX) *slot |= ranks_.sides[256 + (*slot >> 2 & (kMaxSymbols - 1))];
    for (unsigned pair = 0; pair < 65536; pair++) words[pair] = ranks_.find(PairRanks::key_of(pair >> 8, pair & 255));
}

void MergeTable::insert(Symbol left, Symbol right, uint32_t rank) {
    if (rank_of(left, right) != kNone) return;  // of two equal merges the first wins
    const uint64_t key = PairRanks::key_of(left, right);
    size_t i = ranks_.home_of(key);
    while (ranks_.slots[i] != UINT64_MAX) i = (i + 1) & ranks_.mask;
    ranks_.slots[i] = key << 22 | rank << 2;
    ranks_.sides[left] |= 1;
    ranks_.sides[right] |= 2;
}

size_t MergeTable::stable_bytes() const {
    if (!ordered_)
        throw InputError("a pre-token is longer than " + std::to_string(kMaxUnordered) +
                         " bytes, which is unsupported if a merge uses the token of a later merge; "
                         "insert whitespace or another break into the text");
    return window_bytes() - reach_;
}

size_t MergeTable::merge_on(const std::vector<uint32_t>& ids, uint32_t* out, LongWordSpace& space) const {
    space.make_room(num_merges(), ids.size());
    std::transform(ids.begin(), ids.end(), space.symbols.data(), [this](uint32_t id) { return symbol_of_[id]; });
    return merge_long(ids.size(), out, space);
}

// Merges the first `size` symbols of `s`, rank by rank, each from left to right. If merges are ordered, all positions
// of a pair arise in text order during a single earlier merge: ranks only increase, and time is linear in the text
// except for finding the next rank. Otherwise the heap holds every position separately.
size_t MergeTable::merge_long(size_t size, uint32_t* out, LongWordSpace& s) const {
    const uint32_t n = static_cast<uint32_t>(size);
    const auto push = [&s](uint32_t rank, uint32_t at) {
        s.heap.push_back(uint64_t{rank} << 32 | at);
        std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    };
    const auto add = [&](uint32_t at, uint32_t rank) {
        if (!ordered_) return push(rank, at);
        const uint32_t entry = static_cast<uint32_t>(s.entries.size());
        s.entries.push_back({at, kNone});
        if (s.first[rank] == kNone) push(rank, 0);
        (s.first[rank] == kNone ? s.first[rank] : s.entries[s.last[rank]].next) = entry;
        s.last[rank] = entry;
    };
    const auto find = [&](uint32_t at) {
        const uint32_t rank = s.next[at] < n ? rank_of(s.symbols[at], s.symbols[s.next[at]]) : kNone;
        s.rank[at] = rank;
        if (rank != kNone) add(at, rank);
    };
    // The previous call may have run out of memory and left these.
    for (const uint64_t item : s.heap) s.first[item >> 32] = kNone;
    s.heap.clear();
    s.entries.clear();
    for (uint32_t i = 0; i < n; i++) {
        s.next[i] = i + 1;
        s.prev[i] = i - 1;
        find(i);
    }
    while (!s.heap.empty()) {
        const uint32_t rank = static_cast<uint32_t>(s.heap.front() >> 32);
        s.batch.assign(ordered_ ? 0 : 1, static_cast<uint32_t>(s.heap.front()));
        for (uint32_t i = s.first[rank]; i != kNone; i = s.entries[i].next) s.batch.push_back(s.entries[i].position);
        std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
        s.heap.pop_back();
        s.first[rank] = kNone;
        for (const uint32_t at : s.batch) {
            if (s.rank[at] != rank) continue;
            const uint32_t right = s.next[at], beyond = s.next[right], left = s.prev[at];
            s.rank[right] = kNone;
            s.symbols[at] = 256 + rank;
            s.next[at] = beyond;
            if (beyond < n) s.prev[beyond] = at;
            find(at);
            if (left != kNone) find(left);
        }
    }
    size_t count = 0;
    for (uint32_t i = 0; i < n; i = s.next[i]) out[count++] = id_of_[s.symbols[i]];
    return count;
}

std::vector<std::pair<uint32_t, uint32_t>> recover_merges(const std::vector<std::string>& tokens) {
    std::unordered_map<std::string_view, uint32_t> rank_by_bytes;
    rank_by_bytes.reserve(tokens.size());
    for (size_t i = 0; i < tokens.size(); i++)
        rank_by_bytes.emplace(tokens[i], static_cast<uint32_t>(i));
    std::vector<std::pair<uint32_t, uint32_t>> pairs(tokens.size(), {kNone, kNone});
    const auto rank_of = [&](std::string_view token) {
        const auto found = rank_by_bytes.find(token);
        return found == rank_by_bytes.end() ? kNone : found->second;
    };
    for (size_t i = 0; i < tokens.size(); i++) {
        const std::string_view token = tokens[i];
        if (token.size() < 2) continue;
        const std::vector<uint32_t> cuts = merge_alone(
            token.size(), [&](size_t begin, size_t, size_t end) { return rank_of(token.substr(begin, end - begin)); });
        if (cuts.size() != 3) continue;
        const uint32_t left = rank_of(token.substr(0, cuts[1])), right = rank_of(token.substr(cuts[1]));
        if (left != kNone && right != kNone) pairs[i] = {left, right};
    }
    return pairs;
}

}  // namespace groundup
