// Remembers the ids of words already encoded, in a bounded space.
//
// A line of 64 bytes holds two words; each has its key and up to 16 bytes of ids beside it, so a hit
// costs one memory access. Longer words and longer id lists live in an arena. The first word of
// a line stays, the second gives way; when the arena is full everything is forgotten.
#pragma once

#include "memory.h"
#include "word_key.h"

namespace groundup {

constexpr size_t kCacheLines = size_t{1} << 18;
constexpr size_t kArenaWords = size_t{1} << 20;  // of four bytes
constexpr size_t kLongestCachedWord = 256;

template <class Id>
class WordCache {
public:
    static constexpr size_t kInlineIds = 16 / sizeof(Id);
    static constexpr uint64_t kInArena = 15;

    struct Entry {
        uint64_t low;
        uint64_t high;  // as in WordKey; the top four bits count the ids, or say kInArena
        Id ids[kInlineIds];

        size_t num_ids() const { return high >> 60; }
        bool matches(const WordKey& key) const {
            return low == key.low && (high ^ key.high) << 4 == 0;
        }
    };
    static_assert(sizeof(Entry) == 32);

    WordCache() : lines_(kCacheLines * 64), arena_(kArenaWords * 4) {}

    Entry* line_of(uint64_t hash) const {
        return reinterpret_cast<Entry*>(lines_.data()) + 2 * (hash >> (64 - 18));
    }

    // Ids of an entry that lie in the arena; null when the entry is another long word's.
    const Id* find_in_arena(const Entry& entry, const Byte* word, size_t size, size_t& count) const {
        const uint32_t* record = arena() + place_of(entry);
        if (size > kInlineWord && (record[0] != size || std::memcmp(record + 2, word, size) != 0))
            return nullptr;
        count = record[1];
        return reinterpret_cast<const Id*>(record + 2 + (size > kInlineWord ? (size + 3) / 4 : 0));
    }

    void insert(uint64_t hash, const WordKey& key, const Byte* word, size_t size, const uint32_t* ids,
                size_t count) {
        if (size > kLongestCachedWord) return;
        Entry made{key.low, key.high, {}};
        if (size <= kInlineWord && count <= kInlineIds && count < kInArena) {
            made.high |= uint64_t{count} << 60;
            for (size_t i = 0; i < count; i++) made.ids[i] = static_cast<Id>(ids[i]);
        } else {
            const size_t word_space = size > kInlineWord ? (size + 3) / 4 : 0;
            const size_t needed = 2 + word_space + (count * sizeof(Id) + 3) / 4;
            if (used_ + needed > kArenaWords) {
                lines_.clear();
                used_ = 0;
            }
            uint32_t* record = arena() + used_;
            record[0] = static_cast<uint32_t>(size);
            record[1] = static_cast<uint32_t>(count);
            if (word_space) std::memcpy(record + 2, word, size);
            Id* stored = reinterpret_cast<Id*>(record + 2 + word_space);
            for (size_t i = 0; i < count; i++) stored[i] = static_cast<Id>(ids[i]);
            made.high |= kInArena << 60;
            const uint32_t place = static_cast<uint32_t>(used_);
            std::memcpy(made.ids, &place, 4);
            used_ += needed;
        }
        Entry* line = line_of(hash);
        line[line[0].low | line[0].high ? 1 : 0] = made;
    }

private:
    static uint32_t place_of(const Entry& entry) {
        uint32_t place;
        std::memcpy(&place, entry.ids, 4);
        return place;
    }
    uint32_t* arena() const { return reinterpret_cast<uint32_t*>(arena_.data()); }

    ZeroedBlock lines_;
    ZeroedBlock arena_;
    size_t used_ = 0;
};

}  // namespace groundup
