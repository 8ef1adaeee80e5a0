#include "minhash.h"

#include <algorithm>
#include <atomic>

#include "parallel.h"
#include "unicode.h"

namespace groundup {

namespace {

constexpr uint64_t kWordFactor = 0x9FB21C651E98DF25ull;
constexpr uint64_t kShingleFactor = 0xC2B2AE3D27D4EB4Full;

// In scripts without spaces between words, every character is a word. Hangul has spaces.
bool is_word_alone(uint32_t code_point) {
    return code_point >= 0x2E80 && !(code_point >= 0xAC00 && code_point <= 0xD7AF);
}

Span trimmed(Span text) {
    const auto is_blank = [](Byte b) { return b == ' ' || (b >= '\t' && b <= '\r'); };
    while (text.size && is_blank(text.data[0])) text = {text.data + 1, text.size - 1};
    while (text.size && is_blank(text.data[text.size - 1])) text.size--;
    return text;
}

// Calls shingle(hash) for every shingle and character(Char) for every character.
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

// The running minima of all hash functions. Shingles are processed in blocks, because loading and storing
// every minimum for a single one would cost more than hashing it.
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
    // One hash function per component: XOR with a mask, then multiply by an odd factor.
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
            uint32_t minimum = numbers_[i];
            for (size_t k = 0; k < kBlock; k++)
                minimum = std::min(minimum, (waiting_[k] ^ functions.masks[i]) * functions.factors[i]);
            numbers_[i] = minimum;
        }
        count_ = 0;
    }

    uint32_t* numbers_;
    uint32_t waiting_[kBlock];
    size_t count_ = 0;
};

}  // namespace

void measure_documents(const std::vector<Span>& documents, size_t num_words, size_t num_threads, MeasuredDocument* out) {
    std::atomic<size_t> next{0};
    run_threads(num_threads, [&](size_t) {
        for (size_t row; (row = next.fetch_add(1)) < documents.size();) {
            const Span whole = documents[row];
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

}  // namespace groundup
