// Remembers the ids of words already encoded, in a bounded space.
//
// A line of 64 bytes holds two words, the one asked for last first; each has its key and up to 16
// bytes of ids beside it, so a hit costs one memory access and one comparison. A word that finds its
// line full goes to one of its neighbours; if they are full too, the second word of its own line gives
// way. Longer words and longer id lists live in an
// arena; when that is full everything is forgotten. The table starts small, so that a few words stay
// in the processor's own caches, and grows in place inside address space taken at the start.
#pragma once

#include <utility>

#include "memory.h"
#include "word_key.h"

namespace groundup {

constexpr size_t kFirstLines = size_t{1} << 13;
constexpr size_t kMostLines = size_t{1} << 19;
constexpr size_t kGrowth = 4;
constexpr size_t kProbedLines = 8;
constexpr size_t kArenaWords = size_t{1} << 23;  // of four bytes
constexpr size_t kLongestCachedWord = 256;

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
        while (is_crowded(num_words)) line_mask_ = (line_mask_ + 64) * kGrowth - 64;
    }

    // Where words are looked for, as a copy that a loop keeps in registers.
    struct Lines {
        Byte* first;
        uint64_t mask;
        Entry* of(uint64_t hash) const { return reinterpret_cast<Entry*>(first + (hash & mask)); }
    };
    Lines lines() const { return {lines_.data(), line_mask_}; }
    Entry* line_of(uint64_t hash) const { return lines().of(hash); }

    // A word that is not the first of its line with its ids beside it: its ids, or null.
    const Id* find_rare(uint64_t hash, const WordKey& key, const Byte* word, size_t size,
                        size_t& count) {
        Entry* const own = line_of(hash);
        for (size_t step = 0; step < kProbedLines; step++) {
            Entry* const line = neighbour_of(own, step);
            for (Entry* entry = line; entry < line + 2; entry++) {
                if (entry->is_free()) return nullptr;  // and so nothing went further
                if (!entry->differs(key)) {
                    if (entry == own + 1) {
                        std::swap(own[0], own[1]);
                        entry = own;
                    }
                    count = entry->num_ids();
                    return entry->ids;
                }
                if (entry->low != key.low || entry->high != elsewhere(key.high)) continue;
                if (const Id* ids = find_in_arena(*entry, word, size, count)) return ids;
            }
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
                std::memset(lines_.data(), 0, line_mask_ + 64);
                arena_used_ = num_entries_ = 0;
            }
            uint32_t* record = arena() + arena_used_;
            record[0] = static_cast<uint32_t>(size);
            record[1] = static_cast<uint32_t>(count);
            std::memcpy(record + 2, word, size);
            Id* stored = reinterpret_cast<Id*>(record + 2 + word_space);
            for (size_t i = 0; i < count; i++) stored[i] = static_cast<Id>(ids[i]);
            made.high = elsewhere(key.high);
            const uint32_t place = static_cast<uint32_t>(arena_used_);
            std::memcpy(made.ids, &place, 4);
            arena_used_ += needed;
        }
        if (is_crowded(num_entries_)) grow();
        put(hash, made);
    }

private:
    // The high half of an entry whose ids are in the arena. Keys have a size there, or their lowest
    // bit is set: no key may equal such an entry, whatever its word.
    static uint64_t elsewhere(uint64_t high) { return (high << 8 >> 8 & ~uint64_t{1}) | kElsewhere << 60; }

    // The lines that a word may stand in, its own first: eight that lie together.
    Entry* neighbour_of(Entry* line, size_t step) const {
        Entry* const first = reinterpret_cast<Entry*>(lines_.data());
        return first + ((line - first) ^ static_cast<ptrdiff_t>(2 * step));
    }

    void put(uint64_t hash, const Entry& made) {
        Entry* const own = line_of(hash);
        for (size_t step = 0; step < kProbedLines; step++) {
            Entry* const line = neighbour_of(own, step);
            for (Entry* entry = line; entry < line + 2; entry++) {
                if (!entry->is_free()) continue;
                *entry = made;
                num_entries_++;
                return;
            }
        }
        own[1] = made;
    }

    // Words should find room in their own line: half of the lines' first places are enough.
    bool is_crowded(size_t num_words) const {
        return num_words > line_mask_ / 128 && line_mask_ >> 6 < kMostLines - 1;
    }

    // Growing looks at more bits of the hash, so a word stays where it is or moves to a line behind
    // all the old ones. Words that stood in a neighbouring line are dropped.
    void grow() {
        const uint64_t old_mask = line_mask_;
        line_mask_ = (line_mask_ + 64) * kGrowth - 64;
        num_entries_ = 0;
        for (uint64_t i = 0; i <= old_mask; i += 64) {
            Entry* const line = reinterpret_cast<Entry*>(lines_.data() + i);
            const Entry moved[2] = {line[0], line[1]};
            line[0] = line[1] = Entry{};
            for (const Entry& entry : moved) {
                if (entry.is_free()) continue;
                const uint64_t hash = hash_of(key_of(entry));
                if ((hash & old_mask) == i) put(hash, entry);
            }
        }
    }

    WordKey key_of(const Entry& entry) const {
        if (entry.num_ids() != kElsewhere) return {entry.low, entry.high << 4 >> 4};
        const uint32_t* record = arena() + place_of(entry);
        const Byte* word = reinterpret_cast<const Byte*>(record + 2);
        return word_key(word, record[0], word + record[0]);
    }

    // Ids of an entry that lie in the arena; null when the entry is another word's.
    const Id* find_in_arena(const Entry& entry, const Byte* word, size_t size, size_t& count) const {
        const uint32_t* record = arena() + place_of(entry);
        if (record[0] != size || std::memcmp(record + 2, word, size) != 0) return nullptr;
        count = record[1];
        return reinterpret_cast<const Id*>(record + 2 + (size + 3) / 4);
    }

    static uint32_t place_of(const Entry& entry) {
        uint32_t place;
        std::memcpy(&place, entry.ids, 4);
        return place;
    }
    uint32_t* arena() const { return reinterpret_cast<uint32_t*>(arena_.data()); }

    ZeroedBlock lines_;
    ZeroedBlock arena_;
    uint64_t line_mask_ = (kFirstLines - 1) * 64;
    size_t num_entries_ = 0;
    size_t arena_used_ = 0;
};

}  // namespace groundup
