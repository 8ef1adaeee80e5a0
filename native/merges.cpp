#include "merges.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace groundup {

namespace {

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

MergeTable::MergeTable(const std::vector<std::string>& tokens, const std::vector<bool>& present,
                       const std::vector<std::pair<std::string, std::string>>& merges) {
    std::unordered_map<std::string_view, uint32_t> id_by_bytes;
    id_by_bytes.reserve(tokens.size());
    for (size_t id = 0; id < tokens.size(); id++) {
        if (present[id]) id_by_bytes.emplace(tokens[id], static_cast<uint32_t>(id));
    }
    std::unordered_map<std::string_view, Symbol> symbol_by_bytes;
    symbol_by_bytes.reserve(merges.size() + 256);
    static const std::string all_bytes = [] {
        std::string all;
        for (int b = 0; b < 256; b++) all += static_cast<char>(b);
        return all;
    }();
    id_of_.resize(256);
    for (size_t b = 0; b < 256; b++) {
        const std::string_view byte(&all_bytes[b], 1);
        const auto found = id_by_bytes.find(byte);
        if (found == id_by_bytes.end())
            throw InputError("the vocabulary lacks the single byte " + shown(std::string(byte)));
        id_of_[b] = found->second;
        symbol_by_bytes.emplace(byte, static_cast<Symbol>(b));
    }
    if (merges.size() + 256 > kMaxSymbols)
        throw InputError("more than " + std::to_string(kMaxSymbols - 256) + " merges");

    // A merge that makes what an earlier one makes can never fire where the earlier one is a
    // real one: the bytes between two boundaries merge alike wherever they stand. Which of the
    // two is real is known only by merging, so repeated products go the slow way below.
    std::vector<std::pair<std::string, std::string>> kept;
    const auto* list = &merges;
    bool repeated = false;
    {
        std::unordered_map<std::string, uint32_t> made;
        made.reserve(merges.size());
        for (const auto& [left, right] : merges) repeated |= !made.emplace(left + right, 0).second;
    }
    if (repeated) {
        std::unordered_map<std::string, uint32_t> rank_by_pair;
        const auto pair_key = [](const std::string& l, const std::string& r) {
            return std::to_string(l.size()) + ":" + l + r;
        };
        for (size_t i = 0; i < merges.size(); i++)
            rank_by_pair.emplace(pair_key(merges[i].first, merges[i].second),
                                 static_cast<uint32_t>(i));
        for (size_t i = 0; i < merges.size(); i++) {
            // Merge the product's bytes alone; keep the pair whose merge comes last.
            std::vector<std::string> parts;
            for (const char c : merges[i].first + merges[i].second) parts.emplace_back(1, c);
            uint32_t last = kNone;
            while (parts.size() > 1) {
                uint32_t best = kNone;
                size_t at = 0;
                for (size_t k = 0; k + 1 < parts.size(); k++) {
                    const auto found = rank_by_pair.find(pair_key(parts[k], parts[k + 1]));
                    if (found != rank_by_pair.end() && found->second < best)
                        best = found->second, at = k;
                }
                if (best == kNone) break;
                parts[at] += parts[at + 1];
                parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
                last = best;
            }
            if (parts.size() == 1 && last == i) kept.push_back(merges[i]);
        }
        list = &kept;
    }

    size_t capacity = 1024;
    while (capacity < 3 * list->size()) capacity *= 2;
    slots_.assign(capacity, UINT64_MAX);
    shift_ = 64 - __builtin_ctzll(capacity);
    byte_pairs_.assign(65536, kNone);
    id_of_.reserve(256 + list->size());
    for (const auto& [left, right] : *list) {
        const auto product = id_by_bytes.find(left + right);
        if (product == id_by_bytes.end())
            throw InputError("the merge of " + shown(left) + " and " + shown(right) +
                             " makes a token that is not in the vocabulary");
        symbol_by_bytes.emplace(tokens[product->second], static_cast<Symbol>(id_of_.size()));
        id_of_.push_back(product->second);
    }
    for (size_t rank = 0; rank < list->size(); rank++) {
        Symbol symbols[2];
        const std::string* sides[2] = {&(*list)[rank].first, &(*list)[rank].second};
        for (int k = 0; k < 2; k++) {
            const auto found = symbol_by_bytes.find(*sides[k]);
            if (found == symbol_by_bytes.end()) {
                if (id_by_bytes.count(*sides[k])) {
                    symbols[k] = kNone;  // in the vocabulary, but no merge makes it: never fires
                    continue;
                }
                throw InputError("merge " + std::to_string(rank + 1) + " names " + shown(*sides[k]) +
                                 ", which is not in the vocabulary");
            }
            symbols[k] = found->second;
            if (symbols[k] >= 256 + rank) ordered_ = false;
        }
        if (symbols[0] != kNone && symbols[1] != kNone)
            insert(symbols[0], symbols[1], static_cast<uint32_t>(rank));
    }
}

void MergeTable::insert(Symbol left, Symbol right, uint32_t rank) {
    if (rank_of(left, right) != kNone) return;  // the first of two equal merges counts
    const uint64_t key = uint64_t{left} << 21 | right;
    size_t i = (key * kSeedA) >> shift_;
    while (slots_[i] != UINT64_MAX) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = key << 21 | rank;
    if (left < 256 && right < 256) byte_pairs_[left << 8 | right] = rank;
}

// A queue of places for every rank, and bits saying which queues hold something. A new pair always
// ranks after the merge that made it, so the ranks are walked once upwards: linear time. Queues
// stay in order of place because all places of one pair arise during one merge, left to right.
size_t MergeTable::encode_long(const Byte* text, size_t size, uint32_t* out,
                               LongWordSpace& s) const {
    if (size >= kNone - 1) throw InputError("a single pre-token is larger than 4 GB");
    const size_t ranks = num_merges();
    if (s.first.size() < ranks) {
        s.first.assign(ranks, 0);
        s.last.assign(ranks, 0);
        s.ranks.assign(ranks / 64 + 1, 0);
        s.summary.assign(ranks / 4096 + 1, 0);
    }
    if (s.symbols.size() < size) {
        s.symbols.resize(size);
        s.rank.resize(size);
        s.next.resize(size);
        s.prev.resize(size);
        s.queue_next.resize(size);
        s.queue_prev.resize(size);
    }
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
        push(i, i + 1 < n ? byte_pairs_[text[i] << 8 | text[i + 1]] : kNone);
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
    for (uint32_t i = 0; i < n; i = s.next[i]) out[count++] = id_of_[s.symbols[i]];
    return count;
}

// The definition itself, for merge lists in which a merge uses a token made later.
size_t MergeTable::encode_unordered(const Byte* text, size_t size, uint32_t* out) const {
    std::vector<Symbol> symbols(text, text + size);
    while (symbols.size() > 1) {
        uint32_t best = kNone;
        size_t at = 0;
        for (size_t i = 0; i + 1 < symbols.size(); i++) {
            const uint32_t rank = rank_of(symbols[i], symbols[i + 1]);
            if (rank < best) best = rank, at = i;
        }
        if (best == kNone) break;
        symbols[at] = 256 + best;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    for (size_t i = 0; i < symbols.size(); i++) out[i] = id_of_[symbols[i]];
    return symbols.size();
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
        // Merge the token's bytes with the ranks below its own; two parts left are its merge.
        cuts.resize(token.size() + 1);
        for (size_t k = 0; k <= token.size(); k++) cuts[k] = static_cast<uint32_t>(k);
        const auto rank_at = [&](size_t k) {
            if (k + 2 >= cuts.size()) return kNone;
            const auto found = rank_by_bytes.find(token.substr(cuts[k], cuts[k + 2] - cuts[k]));
            return found != rank_by_bytes.end() && found->second < i ? found->second : kNone;
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
