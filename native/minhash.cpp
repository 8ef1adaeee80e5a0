#include "minhash.h"

#include <algorithm>
#include <atomic>

#include "parallel.h"
#include "unicode.h"

namespace groundup {

namespace {

constexpr uint64_t kWordFactor = 0x9FB21C651E98DF25ull;
constexpr uint64_t kShingleFactor = 0xC2B2AE3D27D4EB4Full;
// Documents that share a band and are not alike, a form letter's perhaps: more are not looked at.
constexpr size_t kMostAlike = 64;

// Scripts without spaces between words: every character is one. Hangul, which has spaces, is not.
bool is_word_alone(uint32_t code_point) {
    return code_point >= 0x2E80 && !(code_point >= 0xAC00 && code_point <= 0xD7AF);
}

Span trimmed(Span text) {
    const auto is_blank = [](Byte b) { return b == ' ' || (b >= '\t' && b <= '\r'); };
    while (text.size && is_blank(text.data[0])) text = {text.data + 1, text.size - 1};
    while (text.size && is_blank(text.data[text.size - 1])) text.size--;
    return text;
}

// Calls shingle(hash) for every run of words, and character(Char) for every character.
template <class Shingle, class Character>
void scan(Span text, size_t num_words, uint64_t hash, Shingle shingle, Character character) {
    std::vector<uint64_t> ring(num_words, 0);
    uint64_t rolling = 0, last_power = 1, word = 0;
    size_t num_seen = 0;
    for (size_t i = 0; i < num_words; i++) last_power *= kShingleFactor;
    const auto end_word = [&] {
        if (!word) return;
        uint64_t& oldest = ring[num_seen++ % num_words];
        rolling = rolling * kShingleFactor + word - oldest * last_power;
        oldest = word;
        word = 0;
        if (num_seen >= num_words) shingle(mix(rolling ^ kSeedA, kSeedB));
    };
    const Byte* const end = text.data + text.size;
    for (const Byte* p = text.data; p < end;) {
        const Char c = decode_char(p, end);
        p += c.size;
        character(c);
        const bool is_word = c.cls >= kUpper && c.cls <= kNumber;
        const bool is_alone = is_word && is_word_alone(c.code_point);
        if (!is_word || is_alone) end_word();
        if (!is_word) continue;
        const uint32_t folded = c.code_point - 'A' < 26u ? c.code_point | 0x20 : c.code_point;
        word = (word + folded + 1) * kWordFactor;
        word ^= word >> 29;
        if (is_alone) end_word();
    }
    end_word();
    if (!num_seen) shingle(hash);
    else if (num_seen < num_words) shingle(mix(rolling ^ kSeedA, kSeedB));
}

// The least values of all hash functions over shingles so far. Several shingles are taken at once: a
// load and a store of each number for one alone cost more than its hash.
class Signature {
public:
    explicit Signature(uint32_t* numbers) : numbers_(numbers) { std::fill_n(numbers_, kSignatureSize, UINT32_MAX); }
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

    uint32_t* numbers_;
    uint32_t waiting_[kBlock];
    size_t count_ = 0;
};

Span document_at(Span text, const Bounds& bounds) {
    return {text.data + bounds.begin, static_cast<size_t>(bounds.end - bounds.begin)};
}

uint32_t tag_of(uint64_t key) { return static_cast<uint32_t>(mix(key ^ kSeedA, kSeedB) >> 32); }

}  // namespace

void measure_documents(Span text, const Bounds* bounds, size_t count, size_t num_words, size_t num_threads,
                       MeasuredDocument* out) {
    std::atomic<size_t> next{0};
    run_threads(num_threads, [&](size_t) {
        for (size_t row; (row = next.fetch_add(1)) < count;) {
            const Span whole = document_at(text, bounds[row]);
            MeasuredDocument& document = out[row];
            document.characters = document.spaces = document.symbols = 0;
            document.hash = hash_document(trimmed(whole));
            Signature signature(document.signature);
            const auto count_character = [&](const Char& c) {
                document.characters++;
                document.spaces += c.cls == kSpace;
                document.symbols += c.cls == kOther;
            };
            const auto add = [&](uint64_t shingle) { signature.add(static_cast<uint32_t>(shingle >> 32)); };
            scan(whole, num_words, document.hash, add, count_character);
            signature.finish();
        }
    });
}

std::vector<uint64_t> hash_shingles(Span text, const Bounds* bounds, size_t count, size_t num_words) {
    std::vector<uint64_t> hashes;
    for (size_t row = 0; row < count; row++) {
        const Span whole = document_at(text, bounds[row]);
        scan(whole, num_words, hash_document(trimmed(whole)), [&](uint64_t one) { hashes.push_back(one); },
             [](const Char&) {});
    }
    return hashes;
}

DuplicateIndex::DuplicateIndex(size_t num_bands, double threshold) : num_bands_(num_bands), threshold_(threshold) {
    if (num_bands && kSignatureSize % num_bands) throw InputError("a signature has no such number of bands");
}

template <class Visit>
void DuplicateIndex::visit(uint32_t tag, Visit visit_row) const {
    for (size_t at = home(tag); slots_[at].row; at = (at + 1) & (slots_.size() - 1))
        if (slots_[at].tag == tag) visit_row(slots_[at].row - 1);
}

void DuplicateIndex::insert(uint32_t tag, uint32_t row) {
    if (2 * ++count_ > slots_.size()) {
        std::vector<Slot> old(slots_.size() * 2);
        old.swap(slots_);
        shift_--;
        count_ = 1;
        for (const Slot& slot : old)
            if (slot.row) insert(slot.tag, slot.row);
    }
    size_t at = home(tag);
    while (slots_[at].row) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {tag, row};
}

DuplicateIndex::Found DuplicateIndex::add(const MeasuredDocument& document) {
    bool is_same = false, is_alike = false;
    std::vector<uint32_t> tags{tag_of(document.hash)};
    visit(tags[0], [&](size_t row) { is_same |= hashes_[row] == document.hash; });
    if (is_same) return Found::kSame;
    Byte prints[kSignatureSize];
    for (size_t i = 0; i < kSignatureSize; i++)
        prints[i] = static_cast<Byte>((document.signature[i] * 0x9E3779B1u) >> 24);
    const size_t width = num_bands_ ? kSignatureSize / num_bands_ : 0;
    for (size_t band = 0; band < num_bands_ && !is_alike; band++) {
        uint64_t key = band + 1;
        for (size_t i = 0; i < width; i++) key = mix(key ^ document.signature[band * width + i], kSeedB ^ key);
        tags.push_back(tag_of(key));
        visit(tags.back(), [&](size_t row) {
            const Byte* const other = prints_.data() + row * kSignatureSize;
            size_t equal = 0;
            for (size_t i = 0; i < kSignatureSize; i++) equal += prints[i] == other[i];
            // Of equal bytes, one of 256 is equal by chance.
            const double fraction = static_cast<double>(equal) / kSignatureSize;
            is_alike |= (fraction - 1.0 / 256) / (1 - 1.0 / 256) >= threshold_;
        });
    }
    if (is_alike) return Found::kAlike;
    if (hashes_.size() >= UINT32_MAX - 1) throw InputError("more documents than can be told apart");
    hashes_.push_back(document.hash);
    if (num_bands_) prints_.insert(prints_.end(), prints, prints + kSignatureSize);
    for (const uint32_t tag : tags) {
        size_t num_alike = 0;
        visit(tag, [&](size_t) { num_alike++; });
        if (num_alike < kMostAlike) insert(tag, static_cast<uint32_t>(hashes_.size()));
    }
    return Found::kNothing;
}

}  // namespace groundup
