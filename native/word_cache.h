// A bounded cache of the ids of encoded words.
//
// A 64-byte line holds two entries, and either can be a word's home. An entry holds the key and up to 16 bytes of
// ids, so a hit costs one memory access and one comparison. If its line is full, a word goes to a nearby line; if
// those are full too, it replaces the entry next to its home. A hit swaps an entry one step closer to its home, so
// preloaded words that the text does not use make way for those it does. Longer words and id lists are stored in an
// arena; when it is full, all words in it are dropped. The table starts small, so that a small working set stays in
// the CPU caches, and grows in place within address space reserved at the start.
#pragma once

#include <utility>

#include "memory.h"
#include "word_key.h"

namespace groundup {

constexpr size_t kFirstLines = size_t{1} << 13;
constexpr size_t kMaxLines = size_t{1} << 19;
constexpr size_t kProbedEntries = 16;
constexpr size_t kArenaWords = size_t{1} << 23;  // of 32 bits
constexpr size_t kMaxCachedWord = 256;  // bytes; a clause of Chinese is one pre-token

template <class Id>
class WordCache {
public:
    static constexpr size_t kInlineIds = 16 / sizeof(Id);
    static constexpr uint64_t kElsewhere = 15;

    struct Entry {
        uint64_t low;   // as in WordKey
        uint64_t high;  // as in WordKey; the top four bits are the number of ids, or kElsewhere
        Id ids[kInlineIds];

        size_t num_ids() const { return high >> 60; }
        bool is_free() const { return !high; }
        // Zero if this is the word's entry and its ids are inline.
        uint64_t differs(const WordKey& key) const {
            return (low ^ key.low) | (high ^ key.high) << 4;
        }
    };
    static_assert(sizeof(Entry) == 32);

    // Sized for the `num_words` words to be preloaded.
    explicit WordCache(size_t num_words) : lines_(64 * kMaxLines), arena_(kArenaWords * 4) {
        while (is_crowded(num_words)) mask_ = 2 * mask_ + sizeof(Entry);
    }

    // Address and mask of the table, copied so that a loop keeps them in registers.
    struct Homes {
        Byte* first;
        uint64_t mask;
        Entry* of(uint64_t hash) const { return reinterpret_cast<Entry*>(first + (hash & mask)); }
    };
    Homes homes() const { return {lines_.data(), mask_}; }

    // The other entry of the same line.
    static Entry* beside(Entry* entry) {
        return reinterpret_cast<Entry*>(reinterpret_cast<uintptr_t>(entry) ^ sizeof(Entry));
    }

    // The slow path, for hits outside the home line or with ids in the arena: copies the ids and returns their number,
    // or 0 if the word is missing.
    __attribute__((noinline)) size_t find_slow(const WordKey& key, const Byte* word, size_t size, Id* out) {
        Entry* const home = homes().of(hash_of(key));
        for (size_t step = 0; step < kProbedEntries; step++) {
            Entry* const entry = neighbour_of(home, step);
            if (entry->is_free()) return 0;  // the word cannot be further on
            if (!entry->differs(key)) {
                const size_t count = entry->num_ids();
                std::memcpy(out, entry->ids, count * sizeof(Id));
                if (is_found_in(*beside(home), entry)) std::swap(*entry, *beside(home));
                return count;
            }
            if (entry->low != key.low || entry->high != elsewhere(key.high)) continue;
            if (const size_t count = copy_from_arena(*entry, word, size, out)) return count;
        }
        return 0;
    }

    void insert(uint64_t hash, const WordKey& key, const Byte* word, size_t size, const uint32_t* ids,
                size_t count) {
        if (size > kMaxCachedWord) return;
        Entry made{key.low, key.high, {}};
        if (size <= kInlineWord && count <= kInlineIds) {
            made.high |= uint64_t{count} << 60;
            for (size_t i = 0; i < count; i++) made.ids[i] = static_cast<Id>(ids[i]);
        } else {
            const size_t word_space = (size + 3) / 4;
            const size_t needed = 2 + word_space + (count * sizeof(Id) + 3) / 4;
            if (arena_used_ + needed > kArenaWords) {
                arena_used_ = 0;
                rehash(mask_, false);
            }
            uint32_t* record = arena() + arena_used_;
            record[0] = static_cast<uint32_t>(size);
            record[1] = static_cast<uint32_t>(count);
            std::memcpy(record + 2, word, size);
            Id* stored = reinterpret_cast<Id*>(record + 2 + word_space);
            for (size_t i = 0; i < count; i++) stored[i] = static_cast<Id>(ids[i]);
            made.high = elsewhere(key.high);
            const uint32_t offset = static_cast<uint32_t>(arena_used_);
            std::memcpy(made.ids, &offset, 4);
            arena_used_ += needed;
        }
        if (is_crowded(num_entries_)) grow();
        put(hash, made);
    }

private:
    // The high half of an entry whose ids are in the arena: without size bits and lowest bit. Every key
    // has a size or its lowest bit set, so differs() is never zero for such an entry.
    static uint64_t elsewhere(uint64_t high) { return (high << 8 >> 8 & ~uint64_t{1}) | kElsewhere << 60; }

    // The probe sequence of a word: an aligned group of sixteen entries, its home first.
    Entry* neighbour_of(Entry* home, size_t step) const {
        Entry* const first = reinterpret_cast<Entry*>(lines_.data());
        return first + ((home - first) ^ static_cast<ptrdiff_t>(step));
    }

    void put(uint64_t hash, const Entry& made) {
        Entry* const home = homes().of(hash);
        for (size_t step = 0; step < kProbedEntries; step++) {
            Entry* const entry = neighbour_of(home, step);
            if (!entry->is_free()) continue;
            *entry = made;
            num_entries_++;
            return;
        }
        *beside(home) = made;
    }

    // Up to half load, most words find their home free.
    bool is_crowded(size_t num_words) const {
        return num_words > mask_ / (2 * sizeof(Entry)) && mask_ < 64 * (kMaxLines - 1);
    }

    // Growing uses one more bit of the hash, so the words of a group either stay in it or move to one
    // new group: none is lost.
    void grow() {
        const uint64_t old_mask = mask_;
        mask_ = 2 * mask_ + sizeof(Entry);
        rehash(old_mask, true);
    }

    // Reinserts all entries, except those in the arena if it is being cleared.
    void rehash(uint64_t old_mask, bool with_arena) {
        num_entries_ = 0;
        Entry moved[kProbedEntries];
        for (uint64_t i = 0; i <= old_mask; i += sizeof(moved)) {
            std::memcpy(static_cast<void*>(moved), lines_.data() + i, sizeof(moved));
            std::memset(lines_.data() + i, 0, sizeof(moved));
            for (const Entry& entry : moved) {
                if (entry.is_free() || (!with_arena && entry.num_ids() == kElsewhere)) continue;
                put(hash_of(key_of(entry)), entry);
            }
        }
    }

    // Whether the word of `entry` would be found at `position`: no entry before it in the probe sequence is free.
    bool is_found_in(const Entry& entry, const Entry* position) const {
        Entry* const home = homes().of(hash_of(key_of(entry)));
        for (size_t step = 0;; step++) {
            const Entry* const passed = neighbour_of(home, step);
            if (passed == position) return true;
            if (passed->is_free()) return false;
        }
    }

    WordKey key_of(const Entry& entry) const {
        if (entry.num_ids() != kElsewhere) return {entry.low, entry.high << 4 >> 4};
        const uint32_t* record = arena() + offset_of(entry);
        const Byte* word = reinterpret_cast<const Byte*>(record + 2);
        return word_key(word, record[0], word + record[0]);
    }

    // Copies the ids of an entry in the arena; returns 0 if the entry is another word's.
    size_t copy_from_arena(const Entry& entry, const Byte* word, size_t size, Id* out) const {
        const uint32_t* record = arena() + offset_of(entry);
        if (record[0] != size || std::memcmp(record + 2, word, size) != 0) return 0;
        std::memcpy(out, record + 2 + (size + 3) / 4, record[1] * sizeof(Id));
        return record[1];
    }

    static uint32_t offset_of(const Entry& entry) {
        uint32_t offset;
        std::memcpy(&offset, entry.ids, 4);
        return offset;
    }
    uint32_t* arena() const { return reinterpret_cast<uint32_t*>(arena_.data()); }

    ZeroedBlock lines_;
    ZeroedBlock arena_;
    uint64_t mask_ = kFirstLines * 64 - sizeof(Entry);
    size_t num_entries_ = 0;
    size_t arena_used_ = 0;
};

}  // namespace groundup
