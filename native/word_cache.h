// Remembers the ids of words already encoded, in a bounded space.
//
// A line of 64 bytes holds two entries, and either can be a word's home; an entry has the key and up to
// 16 bytes of ids beside it, so a hit costs one memory access and one comparison. A word whose line is
// full goes to a neighbouring one; if those are full too, the entry beside its home gives way. Asked
// for again, a word comes one step nearer to its home: words of the vocabulary that no text uses make
// way for those it does. Longer words and longer id lists live in an arena; when that is full everything
// is forgotten. The table starts small, so that a few words stay in the processor's own caches, and
// grows in place inside address space taken at the start.
#pragma once

#include <utility>

#include "memory.h"
#include "word_key.h"

namespace groundup {

constexpr size_t kFirstLines = size_t{1} << 13;
constexpr size_t kMostLines = size_t{1} << 19;
constexpr size_t kProbedEntries = 16;
constexpr size_t kArenaWords = size_t{1} << 23;  // of four bytes
constexpr size_t kLongestCachedWord = 256;  // clauses of Chinese are words

template <class Id>
class WordCache {
public:
    static constexpr size_t kInlineIds = 16 / sizeof(Id);
    static constexpr uint64_t kElsewhere = 15;

    struct Entry {
        uint64_t low;   // as in WordKey
        uint64_t high;  // as in WordKey; the top four bits count the ids, or say kElsewhere
        Id ids[kInlineIds];

        size_t num_ids() const { return high >> 60; }
        bool is_free() const { return !high; }
        // Zero where this is the word's entry and its ids stand here.
        uint64_t differs(const WordKey& key) const {
            return (low ^ key.low) | (high ^ key.high) << 4;
        }
    };
    static_assert(sizeof(Entry) == 32);

    // `num_words` are going to be inserted first.
    explicit WordCache(size_t num_words) : lines_(64 * kMostLines), arena_(kArenaWords * 4) {
        while (is_crowded(num_words)) mask_ = 2 * mask_ + sizeof(Entry);
    }

    // Where words are looked for, as a copy that a loop keeps in registers.
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

    // A word that does not stand in its own line with its ids beside it: its ids, or null.
    const Id* find_rare(uint64_t hash, const WordKey& key, const Byte* word, size_t size,
                        size_t& count) {
        Entry* const home = homes().of(hash);
        for (size_t step = 0; step < kProbedEntries; step++) {
            Entry* const entry = neighbour_of(home, step);
            if (entry->is_free()) return nullptr;  // and so nothing went further
            if (!entry->differs(key)) {
                count = entry->num_ids();
                if (!is_found_in(*beside(home), entry)) return entry->ids;
                std::swap(*entry, *beside(home));
                return beside(home)->ids;
            }
            if (entry->low != key.low || entry->high != elsewhere(key.high)) continue;
            if (const Id* ids = find_in_arena(*entry, word, size, count)) return ids;
        }
        return nullptr;
    }

    void insert(uint64_t hash, const WordKey& key, const Byte* word, size_t size, const uint32_t* ids,
                size_t count) {
        if (size > kLongestCachedWord) return;
        Entry made{key.low, key.high, {}};
        if (size <= kInlineWord && count <= kInlineIds) {
            made.high |= uint64_t{count} << 60;
            for (size_t i = 0; i < count; i++) made.ids[i] = static_cast<Id>(ids[i]);
        } else {
            const size_t word_space = (size + 3) / 4;
            const size_t needed = 2 + word_space + (count * sizeof(Id) + 3) / 4;
            if (arena_used_ + needed > kArenaWords) {
                arena_used_ = 0;
                put_all_anew(mask_, false);
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
    // The high half of an entry whose ids are in the arena. Keys have a size there, or their lowest
    // bit is set: no key may equal such an entry, whatever its word.
    static uint64_t elsewhere(uint64_t high) { return (high << 8 >> 8 & ~uint64_t{1}) | kElsewhere << 60; }

    // The entries that a word may stand in, its home first: sixteen that lie together.
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

    // Words should find their home free: with half of the entries taken most do.
    bool is_crowded(size_t num_words) const {
        return num_words > mask_ / (2 * sizeof(Entry)) && mask_ < 64 * (kMostLines - 1);
    }

    // Growing looks at one more bit of the hash, so that the words of sixteen entries stay among them
    // or move to sixteen behind all the old ones: none is lost.
    void grow() {
        const uint64_t old_mask = mask_;
        mask_ = 2 * mask_ + sizeof(Entry);
        put_all_anew(old_mask, true);
    }

    // Words in the arena are left out when it begins anew.
    void put_all_anew(uint64_t old_mask, bool with_arena) {
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

    // Whether the word of `entry` would be found in `position`: no free entry lies on the way from its home.
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

    // Ids of an entry that lie in the arena; null when the entry is another word's.
    const Id* find_in_arena(const Entry& entry, const Byte* word, size_t size, size_t& count) const {
        const uint32_t* record = arena() + offset_of(entry);
        if (record[0] != size || std::memcmp(record + 2, word, size) != 0) return nullptr;
        count = record[1];
        return reinterpret_cast<const Id*>(record + 2 + (size + 3) / 4);
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
