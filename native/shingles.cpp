#include "shingles.h"

#include <algorithm>
#include <atomic>

#include "parallel.h"

namespace groundup {

namespace {

constexpr uint64_t kWordFactor = 0x9FB21C651E98DF25ull;
constexpr uint64_t kShingleFactor = 0xC2B2AE3D27D4EB4Full;
// Distinct hashes that are remembered of one document; a longer one is looked at in stretches.
constexpr size_t kMostRemembered = size_t{1} << 21;

// Scripts without spaces between words: every character is one. Hangul, which has spaces, is not.
bool is_word_alone(uint32_t code_point) {
    return code_point >= 0x2E80 && !(code_point >= 0xAC00 && code_point <= 0xD7AF);
}

// Says of each hash whether it came before; used again for document after document.
class Seen {
public:
    void begin(size_t expected) {
        size_t capacity = 64;
        while (capacity < 2 * std::min(expected, kMostRemembered)) capacity *= 2;
        slots_.assign(capacity, 0);
        count_ = 0;
    }
    bool add(uint64_t hash) {
        hash |= hash == 0;
        const size_t mask = slots_.size() - 1;
        size_t at = hash & mask;
        while (slots_[at]) {
            if (slots_[at] == hash) return false;
            at = (at + 1) & mask;
        }
        slots_[at] = hash;
        if (++count_ * 4 > slots_.size() * 3) {
            if (count_ >= kMostRemembered) begin(kMostRemembered);
            else grow();
        }
        return true;
    }

private:
    void grow() {
        std::vector<uint64_t> old(slots_.size() * 2, 0);
        old.swap(slots_);
        count_ = 0;
        for (const uint64_t hash : old)
            if (hash) add(hash);
    }

    std::vector<uint64_t> slots_;
    size_t count_ = 0;
};

// Hashes runs of words as words come; a document with fewer has one run of all it has.
template <class Visit>
class Shingler {
public:
    Shingler(size_t num_words, Visit visit) : ring_(num_words, 0), visit_(visit) {
        for (size_t i = 0; i < num_words; i++) last_power_ *= kShingleFactor;
    }
    void add(uint64_t word) {
        uint64_t& oldest = ring_[num_seen_++ % ring_.size()];
        rolling_ = rolling_ * kShingleFactor + word - oldest * last_power_;
        oldest = word;
        if (num_seen_ >= ring_.size()) visit_(mix(rolling_ ^ kSeedA, kSeedB));
    }
    void finish(uint64_t document) {
        if (!num_seen_) visit_(document);
        else if (num_seen_ < ring_.size()) visit_(mix(rolling_ ^ kSeedA, kSeedB));
        num_seen_ = rolling_ = 0;
        std::fill(ring_.begin(), ring_.end(), 0);
    }

private:
    std::vector<uint64_t> ring_;
    Visit visit_;
    uint64_t rolling_ = 0, last_power_ = 1;
    size_t num_seen_ = 0;
};

Span trimmed(Span text) {
    const auto is_blank = [](Byte b) { return b == ' ' || (b >= '\t' && b <= '\r'); };
    while (text.size && is_blank(text.data[0])) text = {text.data + 1, text.size - 1};
    while (text.size && is_blank(text.data[text.size - 1])) text.size--;
    return text;
}

// Calls shingler.add for every word, and character(Char) for every character.
template <class Shingles, class Character>
void scan_words(Span text, Shingles& shingler, Character character) {
    const Byte* const end = text.data + text.size;
    uint64_t word = 0;
    for (const Byte* p = text.data; p < end;) {
        const Char c = decode_char(p, end);
        p += c.size;
        character(c);
        if (c.cls >= kUpper && c.cls <= kNumber) {
            const uint32_t folded = c.code_point - 'A' < 26u ? c.code_point | 0x20 : c.code_point;
            const bool is_alone = is_word_alone(c.code_point);
            if (is_alone && word) {
                shingler.add(word);
                word = 0;
            }
            word = (word + folded + 1) * kWordFactor;
            word ^= word >> 29;
            if (!is_alone) continue;
        }
        if (word) {
            shingler.add(word);
            word = 0;
        }
    }
    if (word) shingler.add(word);
}

// One hash function for each number: an odd factor and something to be xored before.
struct Functions {
    uint32_t factors[kSignatureSize], masks[kSignatureSize];
    Functions() {
        for (size_t i = 0; i < kSignatureSize; i++) {
            const uint64_t random = mix((i + 1) * kSeedA, kSeedB);
            factors[i] = static_cast<uint32_t>(random) | 1;
            masks[i] = static_cast<uint32_t>(random >> 32);
        }
    }
};

// The least values over shingles so far. Several are taken at once: a load and a store of each number
// for one shingle alone cost more than its hash.
class Signature {
public:
    void begin(uint32_t* numbers) {
        numbers_ = numbers;
        std::fill_n(numbers_, kSignatureSize, UINT32_MAX);
        count_ = 0;
    }
    void add(uint32_t hash) {
        waiting_[count_++] = hash;
        if (count_ == kBlock) take();
    }
    void finish() {
        if (!count_) return;
        std::fill(waiting_ + count_, waiting_ + kBlock, waiting_[0]);
        take();
    }

private:
    static constexpr size_t kBlock = 8;

    void take() {
        static const Functions functions;
        for (size_t i = 0; i < kSignatureSize; i++) {
            uint32_t least = numbers_[i];
            for (size_t k = 0; k < kBlock; k++)
                least = std::min(least, (waiting_[k] ^ functions.masks[i]) * functions.factors[i]);
            numbers_[i] = least;
        }
        count_ = 0;
    }

    uint32_t* numbers_ = nullptr;
    uint32_t waiting_[kBlock];
    size_t count_ = 0;
};

void count_lines(Span text, Seen& seen, DocumentCounts& counts) {
    seen.begin(text.size / 64);
    for (size_t at = 0; at < text.size;) {
        const void* found = std::memchr(text.data + at, '\n', text.size - at);
        const size_t end = found ? static_cast<size_t>(static_cast<const Byte*>(found) - text.data) : text.size;
        const Span line = trimmed({text.data + at, end - at});
        at = end + 1;
        if (!line.size) continue;
        counts.line_bytes += static_cast<int64_t>(line.size);
        if (!seen.add(hash_document(line))) counts.repeated_line_bytes += static_cast<int64_t>(line.size);
    }
}

}  // namespace

void measure_documents(Span text, const Bounds* bounds, size_t count, const std::vector<CodePoints>& script,
                       size_t num_words, size_t num_threads, MeasuredDocument* out) {
    std::atomic<size_t> next{0};
    run_threads(num_threads, [&](size_t) {
        Seen seen;
        Signature signature;
        DocumentCounts counts;
        const auto visit = [&](uint64_t shingle) {
            counts.shingles++;
            if (seen.add(shingle)) signature.add(static_cast<uint32_t>(shingle >> 32));
            else counts.repeated_shingles++;
        };
        Shingler<decltype(visit)> shingler(num_words, visit);
        for (size_t row; (row = next.fetch_add(1)) < count;) {
            const Span whole{text.data + bounds[row].begin, static_cast<size_t>(bounds[row].end - bounds[row].begin)};
            MeasuredDocument& document = out[row];
            document.hash = hash_document(trimmed(whole));
            counts = DocumentCounts();
            count_lines(whole, seen, counts);
            seen.begin(whole.size / 8);
            signature.begin(document.signature);
            scan_words(whole, shingler, [&](const Char& c) {
                counts.characters++;
                counts.spaces += c.cls == kSpace;
                counts.symbols += c.cls == kOther;
                if (!is_letter(c.cls)) return;
                counts.letters++;
                for (const CodePoints& range : script)
                    counts.script_letters += c.code_point >= range.first && c.code_point <= range.last;
            });
            shingler.finish(document.hash);
            signature.finish();
            document.counts = counts;
        }
    });
}

std::vector<uint64_t> hash_shingles(Span text, const Bounds* bounds, size_t count, size_t num_words,
                                    int64_t* counts) {
    std::vector<uint64_t> hashes;
    const auto visit = [&](uint64_t shingle) { hashes.push_back(shingle); };
    Shingler<decltype(visit)> shingler(num_words, visit);
    for (size_t row = 0; row < count; row++) {
        const Span whole{text.data + bounds[row].begin, static_cast<size_t>(bounds[row].end - bounds[row].begin)};
        const size_t before = hashes.size();
        scan_words(whole, shingler, [](const Char&) {});
        shingler.finish(hash_document(trimmed(whole)));
        counts[row] = static_cast<int64_t>(hashes.size() - before);
    }
    return hashes;
}

}  // namespace groundup
