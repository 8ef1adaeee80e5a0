// Byte-pair merging of one pre-token.
//
// Inside, a symbol is a byte (0 to 255) or 256 + the rank of the merge that made it, so the order of
// symbols is the order of merges; `id_of` gives the vocabulary's own numbers.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"

namespace groundup {

using Symbol = uint32_t;

constexpr uint32_t kMaxSymbols = 1u << 20;  // three symbols and two bits share a word of the pair table
constexpr size_t kShortWord = 64;           // symbols that fit one machine word of "alive" bits
constexpr size_t kLeastWindow = size_t{1} << 19;

// Space for words longer than kShortWord, kept between words.
struct LongWordSpace {
    struct Entry {
        uint32_t position, next;
    };
    std::vector<Symbol> symbols;
    std::vector<uint32_t> next, prev;    // neighbours in the word
    std::vector<uint32_t> rank;          // of the pair that starts here
    std::vector<uint64_t> heap;          // the ranks that have positions, or with those where order demands it
    std::vector<uint32_t> first, last;   // by rank, in the entries
    std::vector<Entry> entries;          // positions of pairs, some out of date
    std::vector<uint32_t> batch;         // those of one rank

    void make_room(size_t num_merges, size_t size) {
        for (auto* positions : {&symbols, &next, &prev, &rank})
            if (positions->size() < size) positions->resize(size);
        for (auto* ranks : {&first, &last})
            if (ranks->size() < num_merges) ranks->resize(num_merges, kNone);
    }
};

// The rank of every pair that merges. Left, right, the rank and the sides of what it makes share a word; the last
// two are what find() gives.
struct PairRanks {
    uint64_t* slots;
    size_t mask;
    int shift;
    uint32_t* byte_pairs;  // the same of each pair of bytes
    uint32_t* id_of;       // of each symbol
    uint8_t* sides;        // of each symbol: 1 some merge has it left, 2 right

    uint32_t tagged(Symbol symbol) const { return symbol | uint32_t{sides[symbol]} << 30; }
    static bool may_merge(uint32_t left_tagged, uint32_t right_tagged) {
        return (left_tagged >> 30 & 1) & (right_tagged >> 31);
    }

    static uint64_t key_of(Symbol left, Symbol right) { return uint64_t{left} << 20 | right; }
    size_t home_of(uint64_t key) const { return (key * kSeedA) >> shift; }

    uint32_t find(uint64_t key) const {
        for (size_t i = home_of(key);; i = (i + 1) & mask) {
            const uint64_t slot = slots[i];
            if (slot >> 22 == key) return static_cast<uint32_t>(slot & (4 * kMaxSymbols - 1));
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

    // Merges text[0..size) and writes the vocabulary's ids; returns how many. `out` has room for
    // `size` of them. Takes space for every byte.
    size_t encode(const Byte* text, size_t size, uint32_t* out, LongWordSpace& space) const;
    // The same from ids on that some first merges have made.
    size_t merge_on(const std::vector<uint32_t>& ids, uint32_t* out, LongWordSpace& space) const;

    // A word of more bytes is merged window by window. What stands behind a window changes no boundary that
    // lies further from its end than reach_bytes(), and nothing merges across a boundary, so the
    // next window begins at the last one that holds.
    //
    // Why it holds: compare two texts with a common beginning, merge by merge. Before the first merge
    // they agree on all boundaries in that beginning. Let them agree up to m before some merge. It is
    // made from left to right, so inside of m it goes alike, except where it takes the last token that
    // ends before m together with one that passes m. That removes one boundary, which lies less than
    // the new token's size before m. So each merge costs its token's size less one, once.
    //
    // Where a merge uses a token that a later one makes, this does not hold: then there is one window.
    size_t window_bytes() const { return ordered_ ? reach_ + std::max(reach_, kLeastWindow) : kMostUnordered; }
    // Of a window, the bytes that what follows it cannot change; InputError where there are none.
    size_t settled_bytes() const;

    // Whether no merge uses what a later one makes.
    bool is_ordered() const { return ordered_; }

private:
    static constexpr size_t kMostUnordered = size_t{1} << 24;

    uint32_t rank_of(Symbol left, Symbol right) const;
    void insert(Symbol left, Symbol right, uint32_t rank);
    size_t merge_long(size_t size, uint32_t* out, LongWordSpace& space) const;

    std::vector<uint32_t> id_of_;
    std::vector<Symbol> symbol_of_;  // of each id
    std::unique_ptr<ZeroedBlock> block_;  // what `ranks_` points to, on large pages: look-ups are all over it
    PairRanks ranks_;
    size_t (*encode_short_)(const PairRanks&, const Byte*, size_t, uint32_t*);
    bool ordered_ = true;
    size_t reach_ = 0;
};

inline uint32_t MergeTable::rank_of(Symbol left, Symbol right) const {
    const uint32_t found = ranks_.find(PairRanks::key_of(left, right));
    return found == kNone ? kNone : found >> 2;
}

inline size_t MergeTable::encode(const Byte* text, size_t size, uint32_t* out,
                                 LongWordSpace& space) const {
    if (size == 1) {
        *out = id_of_[*text];
        return 1;
    }
    if (size <= kShortWord) return encode_short_(ranks_, text, size, out);
    if (size >= kNone - 1) throw InputError("a single pre-token is larger than 4 GB");
    space.make_room(num_merges(), size);
    std::copy_n(text, size, space.symbols.data());
    return merge_long(size, out, space);
}

// For ranks without merges (.tiktoken files): the two earlier tokens whose merge makes each token,
// as indices into `tokens`, or kNone twice where no merge does.
std::vector<std::pair<uint32_t, uint32_t>> recover_merges(const std::vector<std::string>& tokens);

}  // namespace groundup
