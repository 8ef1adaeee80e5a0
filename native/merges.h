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

    void make_room(size_t num_merges, size_t size) {
        if (first.size() < num_merges) {
            first.assign(num_merges, 0);
            last.assign(num_merges, 0);
            ranks.assign(num_merges / 64 + 1, 0);
            summary.assign(num_merges / 4096 + 1, 0);
        }
        if (symbols.size() < size) {
            for (auto* places : {&symbols, &rank, &next, &prev, &queue_next, &queue_prev})
                places->resize(size);
        }
    }
};

// The rank of every pair that merges. Three symbols share a word: left, right and the rank.
struct PairRanks {
    const uint64_t* slots;
    size_t mask;
    int shift;
    const uint32_t* byte_pairs;  // rank of each pair of bytes
    const uint32_t* id_of;       // of each symbol
    const uint8_t* sides;        // of each symbol: 1 some merge has it left, 2 right

    uint32_t tagged(Symbol symbol) const { return symbol | uint32_t{sides[symbol]} << 30; }
    static bool may_merge(uint32_t left_tagged, uint32_t right_tagged) {
        return (left_tagged >> 30 & 1) & (right_tagged >> 31);
    }

    size_t home_of(uint64_t key) const { return (key * kSeedA) >> shift; }

    uint32_t find(uint64_t key) const {
        for (size_t i = home_of(key);; i = (i + 1) & mask) {
            const uint64_t slot = slots[i];
            if (slot >> 21 == key) return static_cast<uint32_t>(slot & (kMaxSymbols - 1));
            if (slot == UINT64_MAX) return kNone;
        }
    }
};

class MergeTable {
public:
    // tokens[id] are the bytes of the vocabulary; merges are in order of rank. Throws InputError
    // where a merge names something the vocabulary lacks or a single byte is missing.
    MergeTable(const MergeTable&) = delete;
    MergeTable& operator=(const MergeTable&) = delete;
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
    size_t encode_long(const Byte* text, size_t size, uint32_t* out, LongWordSpace& space) const;
    size_t encode_unordered(const Byte* text, size_t size, uint32_t* out, LongWordSpace& space) const;

    std::vector<uint32_t> id_of_;
    std::vector<uint64_t> slots_;
    std::vector<uint32_t> byte_pairs_;
    std::vector<uint8_t> sides_;
    PairRanks ranks_;  // what stands in the four above
    size_t (*encode_short_)(const PairRanks&, const Byte*, size_t, uint32_t*);
    bool ordered_ = true;  // no merge uses a token that a later merge makes
};

inline uint32_t MergeTable::rank_of(Symbol left, Symbol right) const {
    return ranks_.find(uint64_t{left} << 21 | right);
}

inline size_t MergeTable::encode(const Byte* text, size_t size, uint32_t* out,
                                 LongWordSpace& space) const {
    if (size == 1) {
        *out = id_of_[*text];
        return 1;
    }
    if (size <= kShortWord) return encode_short_(ranks_, text, size, out);
    return ordered_ ? encode_long(text, size, out, space)
                    : encode_unordered(text, size, out, space);
}

// For ranks without merges (.tiktoken files): the two earlier tokens whose merge makes each token,
// as indices into `tokens`, or kNone twice where no merge does.
std::vector<std::pair<uint32_t, uint32_t>> recover_merges(const std::vector<std::string>& tokens);

}  // namespace groundup
