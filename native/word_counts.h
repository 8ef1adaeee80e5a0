// Counts pre-tokens: the trainer works on the distinct words, never on the text.
#pragma once

#include <memory>
#include <vector>

#include "memory.h"
#include "special_tokens.h"
#include "splitter.h"
#include "word_key.h"

namespace groundup {

// A hash table of words and their counts. Not thread-safe.
class WordCounts {
public:
    // A word of more than `longest` bytes is an InputError.
    explicit WordCounts(size_t longest);

    size_t size() const { return used_; }

    void add(const Byte* word, size_t size, uint64_t count, const Byte* limit);
    void add_text(Span text, const Splitter& splitter, const SpecialTokens& special_tokens, uint64_t times = 1);
    void add_all(const WordCounts& other);
    void clear() { *this = WordCounts(longest_); }

    // Visits all words, or one of `num_parts` disjoint parts of them.
    template <class Visit>
    void for_each(Visit visit, size_t part = 0, size_t num_parts = 1) const {
        for (size_t i = part; i <= mask_; i += num_parts) {
            const Entry& entry = entries()[i];
            if (!entry.count) continue;
            const Byte* word = word_of(entry);
            visit(word, size_of(entry), entry.count);
        }
    }

private:
    struct Entry {
        uint64_t low, high;  // as in WordKey
        uint64_t count;      // 0: free
        uint64_t offset;      // of a long word in the arena, which stores its size and bytes
    };
    static_assert(sizeof(Entry) == 32);

    Entry* entries() const { return reinterpret_cast<Entry*>(table_.get()->data()); }
    const Byte* word_of(const Entry& entry) const;
    size_t size_of(const Entry& entry) const;
    void count_words(const Byte* base, const uint32_t* ends, size_t count, const Byte* limit, uint64_t times);
    void add_key(const WordKey& key, uint64_t hash, const Byte* word, size_t size, uint64_t count);
    void grow();

    std::unique_ptr<ZeroedBlock> table_;
    size_t mask_;
    size_t longest_;
    size_t used_ = 0;
    std::vector<Byte> arena_;
};

// Counts the words of a text on several threads; tables[i] belongs to thread i.
void count_words(Span text, const Splitter& splitter, const SpecialTokens& special_tokens,
                 std::vector<WordCounts>& tables);

// Adds the counts of all tables to the first, and clears the others.
void join(std::vector<WordCounts>& tables);

}  // namespace groundup
