// Byte-pair merging of one pre-token.
//
// Inside, a symbol is a byte (0 to 255) or 256 + the rank of the merge that made it, so the order of
// symbols is the order of merges; `id_of` gives the vocabulary's own numbers.
#pragma once

#include <string>
#include <vector>

#include "types.h"

namespace groundup {

using Symbol = uint32_t;

constexpr uint32_t kMaxSymbols = 1u << 21;  // three symbols share a word of the pair table
constexpr size_t kShortWord = 64;           // symbols that fit one machine word of "alive" bits

// Space for words longer than kShortWord, kept between words.
struct LongWordSpace {
    std::vector<Symbol> symbols;
    std::vector<uint32_t> next, prev;            // neighbours in the word
    std::vector<uint32_t> queue_next, queue_prev;  // neighbours in the queue of the pair's rank
    std::vector<uint32_t> rank;                  // of the pair that starts here
    std::vector<uint32_t> first, last;           // ends of each rank's queue, position + 1
    std::vector<uint64_t> ranks, summary;        // which queues hold something
};

class MergeTable {
public:
    // tokens[id] are the bytes of the vocabulary; merges are in order of rank. Throws InputError
    // where a merge names something the vocabulary lacks or a single byte is missing.
    MergeTable(const std::vector<std::string>& tokens, const std::vector<bool>& present,
               const std::vector<std::pair<std::string, std::string>>& merges);

    size_t num_merges() const { return id_of_.size() - 256; }
    uint32_t id_of(Symbol symbol) const { return id_of_[symbol]; }

    // Merges text[0..size) and writes the vocabulary's ids; returns how many. `out` has room for
    // `size` of them.
    size_t encode(const Byte* text, size_t size, uint32_t* out, LongWordSpace& space) const;

private:
    uint32_t rank_of(Symbol left, Symbol right) const;
    void insert(Symbol left, Symbol right, uint32_t rank);
    size_t encode_short(const Byte* text, size_t size, uint32_t* out) const;
    size_t encode_long(const Byte* text, size_t size, uint32_t* out, LongWordSpace& space) const;
    size_t encode_unordered(const Byte* text, size_t size, uint32_t* out) const;

    std::vector<uint32_t> id_of_;
    std::vector<uint64_t> slots_;  // left, right and rank, 21 bits each
    int shift_ = 0;
    std::vector<uint32_t> byte_pairs_;  // rank of each pair of bytes
    bool ordered_ = true;  // no merge uses a token that a later merge makes
};

inline uint32_t MergeTable::rank_of(Symbol left, Symbol right) const {
    const uint64_t key = uint64_t{left} << 21 | right;
    const size_t mask = slots_.size() - 1;
    for (size_t i = (key * kSeedA) >> shift_;; i = (i + 1) & mask) {
        const uint64_t slot = slots_[i];
        if (slot >> 21 == key) return static_cast<uint32_t>(slot & (kMaxSymbols - 1));
        if (slot == UINT64_MAX) return kNone;
    }
}

// Symbols live in fixed places; a bit says which are still there. Each round takes the pair of the
// lowest rank, the leftmost of equals: the key is the rank with the place behind it.
inline size_t MergeTable::encode_short(const Byte* text, size_t size, uint32_t* out) const {
    uint32_t keys[kShortWord];
    Symbol symbols[kShortWord];
    const auto key_of = [](uint32_t rank, size_t at) {
        return rank == kNone ? kNone : rank << 6 | static_cast<uint32_t>(at);
    };
    for (size_t i = 0; i + 1 < size; i++) {
        symbols[i] = text[i];
        keys[i] = key_of(byte_pairs_[text[i] << 8 | text[i + 1]], i);
    }
    symbols[size - 1] = text[size - 1];
    keys[size - 1] = kNone;
    uint64_t alive = size == 64 ? ~uint64_t{0} : (uint64_t{1} << size) - 1;
    while (true) {
        uint32_t best = kNone;
        for (size_t i = 0; i < size; i++) best = keys[i] < best ? keys[i] : best;
        if (best == kNone) break;
        const unsigned at = best & 63;
        const Symbol made = 256 + (best >> 6);
        const uint64_t after = alive & (~uint64_t{1} << at);
        const unsigned right = static_cast<unsigned>(__builtin_ctzll(after));
        alive &= ~(uint64_t{1} << right);
        keys[right] = kNone;
        symbols[at] = made;
        const uint64_t beyond = after & (after - 1);
        keys[at] = beyond ? key_of(rank_of(made, symbols[__builtin_ctzll(beyond)]), at) : kNone;
        const uint64_t below = alive & ((uint64_t{1} << at) - 1);
        if (below) {
            const unsigned left = 63u - static_cast<unsigned>(__builtin_clzll(below));
            keys[left] = key_of(rank_of(symbols[left], made), left);
        }
    }
    size_t count = 0;
    for (; alive; alive &= alive - 1) out[count++] = id_of_[symbols[__builtin_ctzll(alive)]];
    return count;
}

inline size_t MergeTable::encode(const Byte* text, size_t size, uint32_t* out,
                                 LongWordSpace& space) const {
    if (size == 1) {
        *out = id_of_[*text];
        return 1;
    }
    if (size <= kShortWord) return encode_short(text, size, out);
    return ordered_ ? encode_long(text, size, out, space) : encode_unordered(text, size, out);
}

// For ranks without merges (.tiktoken files): the two earlier tokens whose merge makes each token,
// as indices into `tokens`, or kNone twice where no merge does.
std::vector<std::pair<uint32_t, uint32_t>> recover_merges(const std::vector<std::string>& tokens);

}  // namespace groundup
