#include "merges.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <string_view>
#include <unordered_map>

#include "documents.h"
#include "vectors.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

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

std::string shown(const std::string& bytes) {
    static const char* digits = "0123456789abcdef";
    std::string text = "b'";
    for (const unsigned char c : bytes) {
        if (c >= 0x20 && c < 0x7F && c != '\'' && c != '\\') {
            text += static_cast<char>(c);
        } else {
            text += {'\\', 'x', digits[c >> 4], digits[c & 15]};
        }
    }
    return text + "'";
}

}  // namespace

namespace {

// Token bytes -> id, open addressing; the strings stay where they are.
class TokenIndex {
public:
    TokenIndex(const std::vector<std::string>& tokens, const std::vector<bool>& present)
        : tokens_(tokens) {
        size_t capacity = 1024;
        while (capacity < 2 * tokens.size()) capacity *= 2;
        slots_.assign(capacity, kNone);
        for (size_t id = 0; id < tokens.size(); id++) {
            if (!present[id]) continue;
            size_t i = home_of(tokens[id]);
            while (slots_[i] != kNone && tokens[slots_[i]] != tokens[id]) i = (i + 1) & (capacity - 1);
            if (slots_[i] == kNone) slots_[i] = static_cast<uint32_t>(id);
        }
    }
    uint32_t find(std::string_view bytes) const {
        for (size_t i = home_of(bytes);; i = (i + 1) & (slots_.size() - 1)) {
            if (slots_[i] == kNone || tokens_[slots_[i]] == bytes) return slots_[i];
        }
    }

private:
    size_t home_of(std::string_view bytes) const {
        return hash_document({reinterpret_cast<const Byte*>(bytes.data()), bytes.size()}) &
               (slots_.size() - 1);
    }
    const std::vector<std::string>& tokens_;
    std::vector<uint32_t> slots_;
};

using MergeList = std::vector<std::pair<std::string, std::string>>;

// The merges that can fire, of a list in which several make the same token. The bytes between two
// boundaries merge alike wherever they stand, so merging a token's bytes alone shows its one merge.
MergeList without_dead_merges(const MergeList& merges) {
    const auto key_of = [](const std::string& left, const std::string& right) {
        return std::to_string(left.size()) + ":" + left + right;
    };
    std::unordered_map<std::string, uint32_t> rank_by_pair;
    for (size_t i = 0; i < merges.size(); i++)
        rank_by_pair.emplace(key_of(merges[i].first, merges[i].second), static_cast<uint32_t>(i));
    MergeList kept;
    for (size_t i = 0; i < merges.size(); i++) {
        std::vector<std::string> parts;
        for (const char c : merges[i].first + merges[i].second) parts.emplace_back(1, c);
        uint32_t last = kNone;
        while (parts.size() > 1) {
            uint32_t best = kNone;
            size_t at = 0;
            for (size_t k = 0; k + 1 < parts.size(); k++) {
                const auto found = rank_by_pair.find(key_of(parts[k], parts[k + 1]));
                if (found != rank_by_pair.end() && found->second < best) best = found->second, at = k;
            }
            if (best == kNone) break;
            parts[at] += parts[at + 1];
            parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
            last = best;
        }
        if (parts.size() == 1 && last == i) kept.push_back(merges[i]);
    }
    return kept;
}

}  // namespace

MergeTable::MergeTable(const std::vector<std::string>& tokens, const std::vector<bool>& present,
                       const MergeList& merges) {
    if (merges.size() + 256 > kMaxSymbols)
        throw InputError("more than " + std::to_string(kMaxSymbols - 256) + " merges");
    const TokenIndex index(tokens, present);
    std::vector<Symbol> symbol_of_id(tokens.size(), kNone);
    id_of_.reserve(256 + merges.size());
    for (int b = 0; b < 256; b++) {
        const std::string byte(1, static_cast<char>(b));
        const uint32_t id = index.find(byte);
        if (id == kNone) throw InputError("the vocabulary lacks the single byte " + shown(byte));
        symbol_of_id[id] = static_cast<Symbol>(b);
        id_of_.push_back(id);
    }
    MergeList kept;
    const MergeList* list = &merges;
    std::string product;
    for (size_t rank = 0; rank < list->size(); rank++) {
        const auto& [left, right] = (*list)[rank];
        product.assign(left).append(right);
        const uint32_t id = index.find(product);
        if (id == kNone)
            throw InputError("the merge of " + shown(left) + " and " + shown(right) +
                             " makes a token that is not in the vocabulary");
        if (symbol_of_id[id] != kNone && list == &merges) {
            // Some token is made twice: begin again with the merges that can fire.
            kept = without_dead_merges(merges);
            list = &kept;
            for (size_t symbol = 256; symbol < id_of_.size(); symbol++) symbol_of_id[id_of_[symbol]] = kNone;
            id_of_.resize(256);
            rank = static_cast<size_t>(-1);
            continue;
        }
        symbol_of_id[id] = static_cast<Symbol>(id_of_.size());
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
            const uint32_t id = index.find(*sides[k]);
            if (id == kNone)
                throw InputError("merge " + std::to_string(rank + 1) + " names " + shown(*sides[k]) +
                                 ", which is not in the vocabulary");
            symbols[k] = symbol_of_id[id];
            if (symbols[k] != kNone && symbols[k] >= 256 + rank) ordered_ = false;
        }
        // A side that no merge makes never stands in a word.
        if (symbols[0] != kNone && symbols[1] != kNone)
            insert(symbols[0], symbols[1], static_cast<uint32_t>(rank));
        reach_ += sides[0]->size() + sides[1]->size() - 1;
    }
    for (uint64_t* slot = slots; slot < slots + capacity; slot++)
        if (*slot != UINT64_MAX) *slot |= ranks_.sides[256 + (*slot >> 2 & (kMaxSymbols - 1))];
    for (unsigned pair = 0; pair < 65536; pair++) words[pair] = ranks_.find(PairRanks::key_of(pair >> 8, pair & 255));
}

void MergeTable::insert(Symbol left, Symbol right, uint32_t rank) {
    if (rank_of(left, right) != kNone) return;  // the first of two equal merges counts
    const uint64_t key = PairRanks::key_of(left, right);
    size_t i = ranks_.home_of(key);
    while (ranks_.slots[i] != UINT64_MAX) i = (i + 1) & ranks_.mask;
    ranks_.slots[i] = key << 22 | rank << 2;
    ranks_.sides[left] |= 1;
    ranks_.sides[right] |= 2;
}

// A queue of positions for every rank, and bits saying which queues hold something. A new pair always
// ranks after the merge that made it, so the ranks are walked once upwards: linear time. Queues
// stay in order of position because all positions of one pair arise during one merge, left to right.
// Gives the ids that end at or before `settled`; they stand for `used` bytes.
size_t MergeTable::encode_long(const Byte* text, size_t size, size_t settled, uint32_t* out, size_t& used,
                               LongWordSpace& s) const {
    if (size >= kNone - 1) throw InputError("a single pre-token is larger than 4 GB");
    s.make_room(num_merges(), size);
    const auto push = [&s](uint32_t at, uint32_t rank) {
        s.rank[at] = rank;
        if (rank == kNone) return;
        const uint32_t tail = s.last[rank];
        s.queue_prev[at] = tail;
        s.queue_next[at] = 0;
        s.last[rank] = at + 1;
        if (tail) {
            s.queue_next[tail - 1] = at + 1;
            return;
        }
        s.first[rank] = at + 1;
        s.ranks[rank / 64] |= uint64_t{1} << (rank % 64);
        s.summary[rank / 4096] |= uint64_t{1} << (rank / 64 % 64);
    };
    const auto remove = [&s](uint32_t at) {
        const uint32_t rank = s.rank[at];
        if (rank == kNone) return;
        const uint32_t before = s.queue_prev[at], behind = s.queue_next[at];
        (before ? s.queue_next[before - 1] : s.first[rank]) = behind;
        (behind ? s.queue_prev[behind - 1] : s.last[rank]) = before;
        s.rank[at] = kNone;
        if (s.first[rank]) return;
        s.ranks[rank / 64] &= ~(uint64_t{1} << (rank % 64));
        if (!s.ranks[rank / 64]) s.summary[rank / 4096] &= ~(uint64_t{1} << (rank / 64 % 64));
    };

    const uint32_t n = static_cast<uint32_t>(size);
    for (uint32_t i = 0; i < n; i++) {
        s.symbols[i] = text[i];
        s.next[i] = i + 1;
        s.prev[i] = i - 1;
        push(i, i + 1 < n ? rank_of(text[i], text[i + 1]) : kNone);
    }
    for (size_t group = 0; group < s.summary.size(); group++) {
        while (s.summary[group]) {
            const size_t word = group * 64 + static_cast<size_t>(__builtin_ctzll(s.summary[group]));
            const uint32_t rank = static_cast<uint32_t>(
                word * 64 + static_cast<size_t>(__builtin_ctzll(s.ranks[word])));
            const Symbol made = 256 + rank;
            while (s.first[rank]) {
                const uint32_t at = s.first[rank] - 1;
                const uint32_t right = s.next[at];
                remove(at);
                remove(right);
                s.symbols[at] = made;
                const uint32_t beyond = s.next[right];
                s.next[at] = beyond;
                if (beyond < n) {
                    s.prev[beyond] = at;
                    push(at, rank_of(made, s.symbols[beyond]));
                }
                const uint32_t left = s.prev[at];
                if (left != kNone) {
                    remove(left);
                    push(left, rank_of(s.symbols[left], made));
                }
            }
        }
    }
    size_t count = 0;
    used = 0;
    for (uint32_t i = 0; i < n && s.next[i] <= settled; used = i = s.next[i]) out[count++] = id_of_[s.symbols[i]];
    return count;
}

size_t MergeTable::encode_settled(const Byte* text, uint32_t* out, size_t& used, LongWordSpace& space) const {
    if (!ordered_)
        throw InputError("a pre-token is longer than " + std::to_string(kMostUnordered) +
                         " bytes, which needs merges of which none uses what a later one makes; put white "
                         "space or another break into the text");
    const size_t window = window_bytes();
    return encode_long(text, window, window - reach_, out, used, space);
}

// For merge lists in which a merge uses a token made later: ranks do not only rise then, so a heap
// replaces the queues.
size_t MergeTable::encode_unordered(const Byte* text, size_t size, uint32_t* out,
                                    LongWordSpace& s) const {
    if (size >= kNone - 1) throw InputError("a single pre-token is larger than 4 GB");
    s.make_room(0, size);
    using Item = std::pair<uint32_t, uint32_t>;  // rank, position
    std::priority_queue<Item, std::vector<Item>, std::greater<Item>> heap;
    const auto push = [&](uint32_t at, uint32_t rank) {
        s.rank[at] = rank;
        if (rank != kNone) heap.emplace(rank, at);
    };
    const uint32_t n = static_cast<uint32_t>(size);
    for (uint32_t i = 0; i < n; i++) {
        s.symbols[i] = text[i];
        s.next[i] = i + 1;
        s.prev[i] = i - 1;
        push(i, i + 1 < n ? rank_of(text[i], text[i + 1]) : kNone);
    }
    while (!heap.empty()) {
        const auto [rank, at] = heap.top();
        heap.pop();
        if (s.rank[at] != rank) continue;
        const uint32_t right = s.next[at], beyond = s.next[right], left = s.prev[at];
        s.rank[right] = kNone;
        s.symbols[at] = 256 + rank;
        s.next[at] = beyond;
        if (beyond < n) s.prev[beyond] = at;
        push(at, beyond < n ? rank_of(s.symbols[at], s.symbols[beyond]) : kNone);
        if (left != kNone) push(left, rank_of(s.symbols[left], s.symbols[at]));
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
    std::vector<uint32_t> cuts, ranks;
    for (size_t i = 0; i < tokens.size(); i++) {
        const std::string_view token = tokens[i];
        if (token.size() < 2) continue;
        // Merge the token's bytes by ranks; the last two parts are its merge.
        cuts.resize(token.size() + 1);
        for (size_t k = 0; k <= token.size(); k++) cuts[k] = static_cast<uint32_t>(k);
        const auto rank_at = [&](size_t k) {
            if (k + 2 >= cuts.size()) return kNone;
            const auto found = rank_by_bytes.find(token.substr(cuts[k], cuts[k + 2] - cuts[k]));
            return found != rank_by_bytes.end() ? found->second : kNone;
        };
        ranks.resize(token.size());
        for (size_t k = 0; k < token.size(); k++) ranks[k] = rank_at(k);
        while (cuts.size() > 3) {
            const auto best = std::min_element(ranks.begin(), ranks.end());
            if (*best == kNone) break;
            const size_t k = static_cast<size_t>(best - ranks.begin());
            cuts.erase(cuts.begin() + static_cast<std::ptrdiff_t>(k) + 1);
            ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(k) + 1);
            ranks[k] = rank_at(k);
            if (k > 0) ranks[k - 1] = rank_at(k - 1);
        }
        if (cuts.size() != 3) continue;
        const auto left = rank_by_bytes.find(token.substr(0, cuts[1]));
        const auto right = rank_by_bytes.find(token.substr(cuts[1]));
        if (left != rank_by_bytes.end() && right != rank_by_bytes.end())
            pairs[i] = {left->second, right->second};
    }
    return pairs;
}

}  // namespace groundup
