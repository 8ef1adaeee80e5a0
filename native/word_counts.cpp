#include "word_counts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "parallel.h"
#include "stream_cut.h"

namespace groundup {

namespace {
constexpr size_t kFirstCapacity = size_t{1} << 16;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kBatch = 64;
}  // namespace

WordCounts::WordCounts(size_t longest)
    : table_(std::make_unique<ZeroedBlock>(kFirstCapacity * sizeof(Entry))),
      mask_(kFirstCapacity - 1),
      longest_(std::min<size_t>(longest, UINT32_MAX)) {}

const Byte* WordCounts::word_of(const Entry& entry) const {
    return entry.high >> 56 ? reinterpret_cast<const Byte*>(&entry) : arena_.data() + entry.offset + 4;
}

size_t WordCounts::size_of(const Entry& entry) const {
    if (entry.high >> 56) return entry.high >> 56;
    uint32_t size;
    std::memcpy(&size, arena_.data() + entry.offset, 4);
    return size;
}

void WordCounts::add_key(const WordKey& key, uint64_t hash, const Byte* word, size_t size,
                         uint64_t count) {
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
        Entry& entry = entries()[i];
        if (entry.low == key.low && entry.high == key.high && entry.count &&
            (size <= kInlineWord ||
             (size_of(entry) == size && std::memcmp(word_of(entry), word, size) == 0))) {
            entry.count += count;
            return;
        }
        if (entry.count) continue;
        if (size > longest_)
            throw InputError("a pre-token of " + std::to_string(size) + " bytes is longer than the limit of " +
                             std::to_string(longest_));
        // The entry is written last, since storing the word may run out of memory.
        const uint64_t offset = arena_.size();
        if (size > kInlineWord) {
            const uint32_t stored = static_cast<uint32_t>(size);
            const Byte* stored_bytes = reinterpret_cast<const Byte*>(&stored);
            arena_.insert(arena_.end(), stored_bytes, stored_bytes + 4);
            arena_.insert(arena_.end(), word, word + size);
        }
        entry = {key.low, key.high, count, size > kInlineWord ? offset : 0};
        if (++used_ * 4 > mask_ * 3) grow();
        return;
    }
}

void WordCounts::grow() {
    const size_t old_capacity = mask_ + 1;
    auto old = std::make_unique<ZeroedBlock>(2 * old_capacity * sizeof(Entry));
    std::swap(old, table_);
    mask_ = 2 * old_capacity - 1;
    const Entry* from = reinterpret_cast<const Entry*>(old->data());
    for (size_t k = 0; k < old_capacity; k++) {
        if (!from[k].count) continue;
        size_t i = hash_of({from[k].low, from[k].high}) & mask_;
        while (entries()[i].count) i = (i + 1) & mask_;
        entries()[i] = from[k];
    }
}

void WordCounts::add(const Byte* word, size_t size, uint64_t count, const Byte* limit) {
    if (!size || !count) return;
    const WordKey key = word_key(word, size, limit);
    add_key(key, hash_of(key), word, size, count);
}

void WordCounts::count_words(const Byte* base, const uint32_t* ends, size_t count,
                             const Byte* limit, uint64_t times) {
    uint32_t begin = 0;
    for (size_t done = 0; done < count; done += kBatch) {
        const size_t batch = std::min(kBatch, count - done);
        WordKey keys[kBatch];
        uint64_t hashes[kBatch];
        uint32_t at = begin;
        for (size_t i = 0; i < batch; i++) {
            keys[i] = word_key(base + at, ends[done + i] - at, limit);
            hashes[i] = hash_of(keys[i]);
            __builtin_prefetch(&entries()[hashes[i] & mask_], 1);
            at = ends[done + i];
        }
        for (size_t i = 0; i < batch; i++) {
            Entry& entry = entries()[hashes[i] & mask_];
            if (__builtin_expect(entry.low == keys[i].low && entry.high == keys[i].high &&
                                     is_inline(keys[i]), 1)) {
                entry.count += times;
            } else {
                add_key(keys[i], hashes[i], base + begin, ends[done + i] - begin, times);
            }
            begin = ends[done + i];
        }
    }
}

void WordCounts::add_text(Span text, const Splitter& splitter, const SpecialTokens& special_tokens, uint64_t times) {
    const Byte* const limit = text.data + text.size;
    std::vector<uint32_t> ends(kMaxEnds);
    size_t at = 0;
    while (at < text.size) {
        SpecialTokens::Match match{text.size, 0, 0};
        special_tokens.find(text, at, match);
        const Span ordinary{text.data + at, match.begin - at};
        for (Cursor cursor(splitter); cursor.at < ordinary.size;) {
            size_t begin;
            const size_t count = splitter.scan(ordinary, cursor, begin, ends.data());
            count_words(ordinary.data + begin, ends.data(), count, limit, times);
        }
        at = match.begin + match.size;
    }
}

void WordCounts::add_all(const WordCounts& other) {
    other.for_each([this](const Byte* word, size_t size, uint64_t count) {
        // An inline word is stored in its 32-byte entry, so 16 bytes are readable.
        add(word, size, count, size <= kInlineWord ? word + 16 : word + size);
    });
}

void count_words(Span text, const Splitter& splitter, const SpecialTokens& special_tokens,
                 std::vector<WordCounts>& tables) {
    std::mutex mutex;
    size_t next = 0;
    // Starting a thread takes longer than counting a small text.
    const size_t num_threads = text.size > 2 * kPieceBytes ? tables.size() : 1;
    run_threads(num_threads, [&](size_t thread) {
        while (true) {
            Span piece;
            {
                // Pieces are cut sequentially, so that each cut is searched once.
                std::lock_guard<std::mutex> lock(mutex);
                if (next >= text.size) return;
                const Span rest{text.data + next, text.size - next};
                const size_t cut =
                    rest.size > 2 * kPieceBytes ? find_cut(rest, kPieceBytes, splitter, special_tokens) : rest.size;
                piece = {rest.data, cut};
                next += cut;
            }
            tables[thread].add_text(piece, splitter, special_tokens);
        }
    });
}

void join(std::vector<WordCounts>& tables) {
    for (size_t i = 1; i < tables.size(); i++) {
        tables[0].add_all(tables[i]);
        tables[i].clear();
    }
}

}  // namespace groundup
