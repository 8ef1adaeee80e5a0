// Byte-pair merging of one pre-token.
//
// Internally, a symbol is a byte (0 to 255) or 256 + the rank of the merge that produces it, so symbols
// are ordered like merges; `id_of` maps them to the vocabulary's ids.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"

namespace groundup {

using Symbol = uint32_t;

constexpr uint32_t kMaxSymbols = 1u << 20;  // a 64-bit slot of the pair table holds three, and two bits
constexpr size_t kShortWord = 62;           // bytes; one 64-bit mask has an "alive" bit for each and two sentinels
constexpr uint32_t kNoMerge = 4 * kMaxSymbols - 1;
constexpr size_t kMinWindow = size_t{1} << 19;

// A word of at most kShortWord bytes, and its ids.
struct ShortWord {
    const Byte* text;
    size_t size;
    size_t count;
    uint32_t ids[kShortWord];
};
constexpr size_t kWordGroup = 16;

// Buffers for words longer than kShortWord, reused between words.
struct LongWordSpace {
    struct Entry {
        uint32_t position, next;
    };
    std::vector<Symbol> symbols;
    std::vector<uint32_t> next, prev;    // positions of the adjacent symbols
    std::vector<uint32_t> rank;          // of the pair that starts here
    std::vector<uint64_t> heap;          // ranks of pairs in the word; with their positions if merges are unordered
    std::vector<uint32_t> first, last;   // by rank: its list in `entries`
    std::vector<Entry> entries;          // positions of pairs, some stale
    std::vector<uint32_t> batch;         // positions of one rank

    void make_room(size_t num_merges, size_t size) {
        for (auto* positions : {&symbols, &next, &prev, &rank})
            if (positions->size() < size) positions->resize(size);
        for (auto* ranks : {&first, &last})
            if (ranks->size() < num_merges) ranks->resize(num_merges, kNone);
    }
};

// Hash table of the ranks of pairs. A slot packs left, right, the rank and the `sides` of the merged symbol; find()
// returns the last two, or kNoMerge.
struct PairRanks {
    uint64_t* slots;
    size_t mask;
    int shift;
    uint32_t* byte_pairs;  // the result of find() for every pair of bytes
    uint32_t* id_of;       // by symbol
    uint8_t* sides;        // by symbol: 1 if some merge has it on the left, 2 if on the right

    // A symbol and its sides.
    uint32_t tagged(Symbol symbol) const { return symbol << 2 | sides[symbol]; }

    static uint64_t key_of(Symbol left, Symbol right) { return uint64_t{left} << 20 | right; }
    // Of tagged symbols; a key that is never in the table if no merge has them on these sides.
    static uint64_t key_of_tagged(uint32_t left, uint32_t right) {
        return left & right >> 1 & 1 ? key_of(left >> 2, right >> 2) : uint64_t{0xFFFFFFFFFE};
    }

    // A pair is in the first bucket from its home on that had a free slot. Most lookups take one branch.
    static constexpr size_t kBucket = 4;
    typedef uint64_t Bucket __attribute__((vector_size(8 * kBucket)));
    size_t home_of(uint64_t key) const { return (key * kSeedA) >> shift & ~(kBucket - 1); }
    uint32_t find(uint64_t key) const {
        for (size_t i = home_of(key);; i = (i + kBucket) & mask) {
            Bucket bucket;
            std::memcpy(&bucket, slots + i, sizeof bucket);
            bucket |= static_cast<Bucket>(bucket >> 22 != Bucket{} + key);
            const uint64_t found = bucket[0] & bucket[1] & bucket[2] & bucket[3];
            if ((found != UINT64_MAX) | (slots[i + kBucket - 1] == UINT64_MAX))
                return static_cast<uint32_t>(found) & kNoMerge;
        }
    }
};

class MergeTable {
public:
    MergeTable(const MergeTable&) = delete;
    MergeTable& operator=(const MergeTable&) = delete;
    // tokens[id] are the vocabulary's tokens; merges are in order of rank. Throws InputError if the
    // vocabulary lacks a token of a merge or a single byte.
    MergeTable(const std::vector<std::string>& tokens, const std::vector<bool>& present,
               const std::vector<std::pair<std::string, std::string>>& merges);

    size_t num_merges() const { return id_of_.size() - 256; }

    // Merges text[0..size), writes the vocabulary's ids to `out`, which has room for `size`, and
    // returns their number. Memory is proportional to `size`.
    size_t encode(const Byte* text, size_t size, uint32_t* out, LongWordSpace& space) const;
    // Merges up to kWordGroup words at once: each waits for memory most of its time.
    void encode_group(ShortWord* words, size_t count) const { encode_short_(ranks_, words, count); }
    // Continues to merge ids that some first merges produced.
    size_t merge_on(const std::vector<uint32_t>& ids, uint32_t* out, LongWordSpace& space) const;

    // A longer word is merged window by window. Text after a window cannot change a token boundary more
    // than `reach_` bytes before the window's end, and nothing merges across a boundary, so the next
    // window starts at the last boundary that is stable.
    //
    // Proof: compare two texts with a common prefix, merge by merge. At first they agree on all
    // boundaries in the prefix. Suppose they agree up to m before some merge. It is applied from left to
    // right, so up to m it does the same to both, except that in one of them it may join the last token
    // before m with one that extends past m. That removes one boundary, less than the new token's size
    // before m. So each merge costs its token's size minus one, once.
    //
    // The proof needs ordered merges (see is_ordered); without them there is a single window.
    size_t window_bytes() const { return ordered_ ? reach_ + std::max(reach_, kMinWindow) : kMaxUnordered; }
    // Size of the part of a window that later text cannot affect; InputError if merges are unordered.
    size_t stable_bytes() const;

    // Whether no merge uses a token that a later merge produces.
    bool is_ordered() const { return ordered_; }

private:
    static constexpr size_t kMaxUnordered = size_t{1} << 24;

    uint32_t rank_of(Symbol left, Symbol right) const;
    void insert(Symbol left, Symbol right, uint32_t rank);
    size_t merge_long(size_t size, uint32_t* out, LongWordSpace& space) const;

    std::vector<uint32_t> id_of_;
    std::vector<Symbol> symbol_of_;  // by id
    std::unique_ptr<ZeroedBlock> block_;  // memory of `ranks_`, on huge pages since lookups are random
    PairRanks ranks_;
    void (*encode_short_)(const PairRanks&, ShortWord*, size_t);
    bool ordered_ = true;
    size_t reach_ = 0;
};

inline uint32_t MergeTable::rank_of(Symbol left, Symbol right) const {
    const uint32_t found = ranks_.find(PairRanks::key_of(left, right));
    return found == kNoMerge ? kNone : found >> 2;
}

inline size_t MergeTable::encode(const Byte* text, size_t size, uint32_t* out,
                                 LongWordSpace& space) const {
    if (size <= kShortWord) {
        ShortWord word{text, size, 0, {}};
        encode_group(&word, 1);
        std::copy_n(word.ids, word.count, out);
        return word.count;
    }
    if (size >= kNone - 1) throw InputError("a single pre-token is larger than 4 GB");
    space.make_room(num_merges(), size);
    std::copy_n(text, size, space.symbols.data());
    return merge_long(size, out, space);
}

// For ranks without merges (.tiktoken files): the indices of the two tokens that merge into each token,
// or kNone twice if no merge produces it.
std::vector<std::pair<uint32_t, uint32_t>> recover_merges(const std::vector<std::string>& tokens);

}  // namespace groundup
