#include "pretokenizer.h"

#include "unicode.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace groundup {

namespace {

// ---- The plain scanners: one function a pattern, each returning the end of the pre-token at p.

inline bool is_other(CharClass c) { return c == kOther || c == kMark; }
inline bool is_newline(Byte b) { return b == '\n' || b == '\r'; }

// Length of 's 'd 'm 't 'll 've 're at the apostrophe p, 0 when there is none.
inline size_t contraction_size(const Byte* p, const Byte* end) {
    if (end - p < 2) return 0;
    const Byte a = p[1];
    if (a == 's' || a == 'd' || a == 'm' || a == 't') return 2;
    if (end - p < 3) return 0;
    const Byte b = p[2];
    return (a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e') ? 3 : 0;
}

// The same in either case; the long s (U+017F) is a case of s.
inline size_t contraction_size_any_case(const Byte* p, const Byte* end) {
    if (end - p < 2) return 0;
    const Byte a = p[1] | 0x20;
    if (p[1] < 0x80 && (a == 's' || a == 'd' || a == 'm' || a == 't')) return 2;
    if (end - p < 3) return 0;
    if (p[1] == 0xC5 && p[2] == 0xBF) return 3;
    if (p[1] >= 0x80 || p[2] >= 0x80) return 0;
    const Byte b = p[2] | 0x20;
    return (a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e') ? 3 : 0;
}

template <class Keep>
inline const Byte* skip_while(const Byte* p, const Byte* end, Keep keep) {
    while (p < end) {
        const Char c = decode_char(p, end);
        if (!keep(c)) break;
        p += c.size;
    }
    return p;
}

inline const Byte* skip_letters(const Byte* p, const Byte* end) {
    return skip_while(p, end, [](Char c) { return is_letter(c.cls); });
}

// A run of white space at p. Its end, the start of its last character, the end of its last newline.
struct SpaceRun {
    const Byte* end;
    const Byte* last;
    const Byte* after_newline;
};

inline SpaceRun space_run(const Byte* p, const Byte* end) {
    SpaceRun run{p, p, nullptr};
    while (run.end < end) {
        const Char c = decode_char(run.end, end);
        if (c.cls != kSpace) break;
        run.last = run.end;
        run.end += c.size;
        if (is_newline(*run.last)) run.after_newline = run.end;
    }
    return run;
}

// \s+(?!\S)|\s+ : all but the last character of the run, unless nothing follows it.
inline const Byte* trailing_space_end(const Byte* p, const Byte* end, const SpaceRun& run) {
    return run.end == end || run.last == p ? run.end : run.last;
}

// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const Byte* gpt2_end(const Byte* p, const Byte* end) {
    if (*p == '\'') {
        if (const size_t size = contraction_size(p, end)) return p + size;
    }
    const Byte* q = p;
    Char c = decode_char(p, end);
    if (*p == ' ' && end - p > 1) {
        const Char next = decode_char(p + 1, end);
        if (next.cls != kSpace) {
            q = p + 1;
            c = next;
        }
    }
    if (c.cls == kSpace) return trailing_space_end(p, end, space_run(p, end));
    if (is_letter(c.cls)) return skip_letters(q, end);
    if (c.cls == kNumber) return skip_while(q, end, [](Char d) { return d.cls == kNumber; });
    return skip_while(q, end, [](Char d) { return is_other(d.cls); });
}

inline const Byte* number_end(const Byte* p, const Byte* end, int max_digits) {
    for (int i = 0; i < max_digits && p < end; i++) {
        const Char c = decode_char(p, end);
        if (c.cls != kNumber) break;
        p += c.size;
    }
    return p;
}

// ` ?[^\s\p{L}\p{N}]+` followed by newlines (and slashes, where `slash`); null when it does not match.
inline const Byte* punctuation_end(const Byte* p, const Byte* end, bool slash) {
    const Byte* q = *p == ' ' ? p + 1 : p;
    const Byte* r = skip_while(q, end, [](Char c) { return is_other(c.cls); });
    if (r == q) return nullptr;
    while (r < end && (is_newline(*r) || (slash && *r == '/'))) r++;
    return r;
}

inline const Byte* white_space_end(const Byte* p, const Byte* end, bool whole_at_end) {
    const SpaceRun run = space_run(p, end);
    if (whole_at_end && run.end == end) return end;
    if (run.after_newline) return run.after_newline;
    return trailing_space_end(p, end, run);
}

// '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
// |\s+$|\s*[\r\n]+|\s+(?!\S)|\s+ ; the \s+$ only where kWholeAtEnd.
template <int kMaxDigits, bool kWholeAtEnd>
const Byte* cl100k_end(const Byte* p, const Byte* end) {
    if (*p == '\'') {
        if (const size_t size = contraction_size_any_case(p, end)) return p + size;
    }
    const Char c = decode_char(p, end);
    if (is_letter(c.cls)) return skip_letters(p + c.size, end);
    if (c.cls == kNumber) return number_end(p, end, kMaxDigits);
    if (!is_newline(*p)) {
        const Byte* q = p + c.size;
        const Byte* r = skip_letters(q, end);
        if (r > q) return r;
    }
    if (const Byte* r = punctuation_end(p, end, false)) return r;
    return white_space_end(p, end, kWholeAtEnd);
}

inline bool may_be_upper(CharClass c) { return c == kUpper || c == kLetter || c == kMark; }
inline bool may_be_lower(CharClass c) { return c == kLower || c == kLetter || c == kMark; }

// [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at p: its end, or null. `upper_end`
// is set to the end of the first part taken greedily.
inline const Byte* mixed_case_end(const Byte* p, const Byte* end, const Byte*& upper_end) {
    const Byte* after_caseless = nullptr;
    const Byte* q = p;
    while (q < end) {
        const Char c = decode_char(q, end);
        if (!may_be_upper(c.cls)) break;
        q += c.size;
        if (c.cls != kUpper) after_caseless = q;
    }
    upper_end = q;
    const Byte* r = skip_while(q, end, [](Char c) { return may_be_lower(c.cls); });
    return r > q ? r : after_caseless;
}

inline const Byte* o200k_word_end(const Byte* p, const Byte* end, Char first) {
    const bool prefix = !is_letter(first.cls) && first.cls != kNumber && !is_newline(*p);
    const Byte* upper_end_prefix = nullptr;
    const Byte* upper_end = nullptr;
    const Byte* r = nullptr;
    if (prefix) r = mixed_case_end(p + first.size, end, upper_end_prefix);
    if (!r) r = mixed_case_end(p, end, upper_end);
    if (!r && prefix && upper_end_prefix > p + first.size) r = upper_end_prefix;
    if (!r && upper_end > p) r = upper_end;
    if (r && r < end && *r == '\'') r += contraction_size_any_case(r, end);
    return r;
}

// The two cased word forms, \p{N}{1,3}, ` ?[^\s\p{L}\p{N}]+[\r\n/]*`, \s*[\r\n]+, \s+(?!\S), \s+.
const Byte* o200k_end(const Byte* p, const Byte* end) {
    const Char c = decode_char(p, end);
    if (c.cls == kNumber) return number_end(p, end, 3);
    if (const Byte* r = o200k_word_end(p, end, c)) return r;
    if (const Byte* r = punctuation_end(p, end, true)) return r;
    return white_space_end(p, end, false);
}

uint32_t checked_offset(size_t offset) {
    if (offset > UINT32_MAX) throw InputError("a single pre-token is larger than 4 GB");
    return static_cast<uint32_t>(offset);
}

template <const Byte* (*kEnd)(const Byte*, const Byte*)>
size_t scan_plain(Span text, uint32_t* ends) {
    const Byte* p = text.data;
    const Byte* const end = p + text.size;
    const Byte* const stop = text.size > kWindowBytes ? p + kWindowBytes : end;
    size_t count = 0;
    while (p < stop) {
        p = kEnd(p, end);
        ends[count++] = checked_offset(static_cast<size_t>(p - text.data));
    }
    return count;
}

// ---- The vector scanner for GPT-2's pattern: classes as bit masks, one bit a byte of text.

constexpr size_t kBlocksPerWindow = kWindowBytes / 64;

// The masks of a window and of the block behind it, for the characters that look ahead.
struct WindowMasks {
    uint64_t letter[kBlocksPerWindow + 2];
    uint64_t number[kBlocksPerWindow + 2];
    uint64_t space[kBlocksPerWindow + 2];  // every byte of a white-space character
    uint64_t blank[kBlocksPerWindow + 2];  // U+0020
    uint64_t apostrophe[kBlocksPerWindow + 2];
    uint64_t high[kBlocksPerWindow + 2];  // bytes of characters beyond ASCII
    uint64_t space2[kBlocksPerWindow + 2];  // first bytes of white space of two bytes
    uint64_t space3[kBlocksPerWindow + 2];  // and of three
};

// The class and size of the character beyond ASCII at p. Where four bytes can be read it is decoded
// without being checked: text that is not UTF-8 gets some class, but never a wrong read.
inline Char decode_high(const Byte* p, const Byte* end) {
    if (__builtin_expect(end - p < 4, 0)) return decode_char(p, end);
    const uint32_t lead = p[0];
    if (lead < 0xE0) {
        const uint32_t code_point = (lead & 0x1F) << 6 | (p[1] & 0x3F);
        return {class_of_code_point(code_point), 2, code_point};
    }
    if (lead < 0xF0) {
        const uint32_t code_point = (lead & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        return {class_of_code_point(code_point), 3, code_point};
    }
    return decode_char(p, end);
}

// Adds the characters beyond ASCII to the masks of all blocks.
inline void add_high_characters(Span text, size_t num_blocks, WindowMasks& m) {
    const Byte* const end = text.data + text.size;
    size_t covered = 0;  // bytes of this block that a character of the one before reaches into
    CharClass covering = kOther;
    for (size_t b = 0; b < num_blocks; b++) {
        const uint64_t reach = (uint64_t{1} << covered) - 1;
        uint64_t letter = is_letter(covering) ? reach : 0;
        uint64_t number = covering == kNumber ? reach : 0;
        uint64_t space = covering == kSpace ? reach : 0;
        uint64_t space2 = 0, space3 = 0;
        uint64_t high = m.high[b] & ~reach;
        covered = 0;
        while (high) {
            const unsigned i = static_cast<unsigned>(__builtin_ctzll(high));
            const Char c = decode_high(text.data + b * 64 + i, end);
            const uint64_t bits = ((uint64_t{1} << c.size) - 1) << i;
            high &= ~bits;
            if (is_letter(c.cls)) {
                letter |= bits;
            } else if (c.cls == kNumber) {
                number |= bits;
            } else if (c.cls == kSpace) {
                space |= bits;
                (c.size == 2 ? space2 : space3) |= uint64_t{1} << i;
            }
            if (i + c.size > 64) {
                covered = i + c.size - 64;
                covering = c.cls;
            }
        }
        m.letter[b] |= letter;
        m.number[b] |= number;
        m.space[b] |= space;
        m.space2[b] = space2;
        m.space3[b] = space3;
    }
}

// Writes base + i for every bit i; writes up to seven values more than there are bits.
inline size_t write_positions(uint64_t bits, uint32_t base, uint32_t* out) {
    const size_t count = static_cast<size_t>(__builtin_popcountll(bits));
    for (size_t done = 0; done < count; done += 8) {
        for (size_t k = 0; k < 8; k++) {
            out[done + k] = base + static_cast<uint32_t>(__builtin_ctzll(bits | (1ull << 63)));
            bits &= bits - 1;
        }
    }
    return count;
}

// Fills in the masks of `num_blocks` blocks of ASCII text, from block `first` on.
using ClassifyFunction = void (*)(const Byte* text, size_t first, size_t num_blocks, WindowMasks& m);

inline __attribute__((always_inline)) size_t scan_gpt2(Span text, uint32_t* ends,
                                                       ClassifyFunction classify) {
    const size_t window = text.size < kWindowBytes ? text.size : kWindowBytes;
    const size_t seen = text.size < kWindowBytes + 64 ? text.size : kWindowBytes + 64;
    const size_t num_blocks = (window + 63) / 64;
    const size_t num_seen = (seen + 63) / 64;
    WindowMasks m;
    classify(text.data, 0, seen / 64, m);
    if (seen % 64) {
        // Behind the end everything counts as white space, so that a run there is not cut.
        const size_t b = seen / 64;
        Byte padded[64];
        std::memset(padded, '\t', 64);
        std::memcpy(padded, text.data + b * 64, seen % 64);
        classify(padded, b, 1, m);
    }
    for (size_t b = num_seen; b <= num_blocks; b++) {
        m.letter[b] = m.number[b] = m.blank[b] = m.apostrophe[b] = m.high[b] = 0;
        m.space[b] = ~uint64_t{0};
    }
    uint64_t any_high = 0;
    for (size_t b = 0; b < num_seen; b++) any_high |= m.high[b];
    uint64_t wide_space = 0;
    if (any_high) {
        add_high_characters(text, num_seen, m);
        for (size_t b = 0; b < num_blocks; b++) wide_space |= m.space2[b] | m.space3[b];
    }

    size_t count = 0;
    uint64_t before_letter = 0, before_number = 0, before_space = 0, before_blank = 0;
    uint64_t set_next = 0, clear_next = 0;
    for (size_t b = 0; b < num_blocks; b++) {
        const uint64_t letter = m.letter[b], number = m.number[b], space = m.space[b];
        const uint64_t other = ~(letter | number | space);
        const uint64_t prev_letter = letter << 1 | before_letter;
        const uint64_t prev_number = number << 1 | before_number;
        const uint64_t prev_space = space << 1 | before_space;
        const uint64_t prev_blank = m.blank[b] << 1 | before_blank;
        before_letter = letter >> 63;
        before_number = number >> 63;
        before_space = space >> 63;
        before_blank = m.blank[b] >> 63;
        const uint64_t prev_other = ~(prev_letter | prev_number | prev_space);

        const uint64_t word_starts = ((letter & ~prev_letter) | (number & ~prev_number) |
                                      (other & ~prev_other)) & ~prev_blank;
        uint64_t space_starts;
        if (!wide_space) {
            // The first and the last character of a run of white space.
            space_starts = space & ~(prev_space & (space >> 1 | m.space[b + 1] << 63));
        } else {
            const uint64_t next = m.space[b + 1];
            const uint64_t wide2 = m.space2[b], wide3 = m.space3[b];
            // What is white space, is not a wide one's first byte and was not put there by one.
            const uint64_t ascii = space & ~m.high[b];
            space_starts = ((ascii | wide2 | wide3) & ~prev_space) |
                           (ascii & ~(space >> 1 | next << 63)) |
                           (wide2 & ~(space >> 2 | next << 62)) |
                           (wide3 & ~(space >> 3 | next << 61));
        }
        uint64_t starts = ((word_starts | space_starts) & ~clear_next) | set_next;
        if (b == 0) starts |= 1;
        set_next = clear_next = 0;
        uint64_t apostrophes = m.apostrophe[b] & starts;
        while (apostrophes) {
            const int i = __builtin_ctzll(apostrophes);
            apostrophes &= apostrophes - 1;
            const Byte* p = text.data + b * 64 + i;
            const size_t size = contraction_size(p, text.data + text.size);
            if (!size) continue;
            const unsigned __int128 clear = static_cast<unsigned __int128>(1) << (i + 1);
            const unsigned __int128 set = static_cast<unsigned __int128>(1) << (i + size);
            starts = (starts & ~static_cast<uint64_t>(clear)) | static_cast<uint64_t>(set);
            clear_next |= static_cast<uint64_t>(clear >> 64);
            set_next |= static_cast<uint64_t>(set >> 64);
        }
        if (b == 0) starts &= ~uint64_t{1};
        if ((b + 1) * 64 > window && window % 64) starts &= (uint64_t{1} << (window % 64)) - 1;
        count += write_positions(starts, static_cast<uint32_t>(b * 64), ends + count);
    }
    if (window == text.size) {
        ends[count++] = static_cast<uint32_t>(text.size);
    } else if (count == 0) {
        const Byte* end = gpt2_end(text.data, text.data + text.size);
        ends[count++] = checked_offset(static_cast<size_t>(end - text.data));
    }
    return count;
}

void classify_portable(const Byte* text, size_t first, size_t num_blocks, WindowMasks& m) {
    for (size_t b = first; b < first + num_blocks; b++, text += 64) {
        uint64_t letter = 0, number = 0, space = 0, blank = 0, apostrophe = 0, high = 0;
        for (int i = 63; i >= 0; i--) {
            const Byte byte = text[i];
            const uint8_t cls = byte < 0x80 ? kAsciiClass[byte] : uint8_t{kOther};
            letter = letter << 1 | (cls == kUpper || cls == kLower);
            number = number << 1 | (cls == kNumber);
            space = space << 1 | (cls == kSpace);
            blank = blank << 1 | (byte == ' ');
            apostrophe = apostrophe << 1 | (byte == '\'');
            high = high << 1 | (byte >> 7);
        }
        m.letter[b] = letter;
        m.number[b] = number;
        m.space[b] = space;
        m.blank[b] = blank;
        m.apostrophe[b] = apostrophe;
        m.high[b] = high;
    }
}

size_t scan_gpt2_portable(Span text, uint32_t* ends) {
    return scan_gpt2(text, ends, classify_portable);
}

#if defined(__x86_64__)

__attribute__((target("avx512f,avx512bw"))) void classify_avx512(const Byte* text, size_t first,
                                                                 size_t num_blocks, WindowMasks& m) {
    for (size_t b = first; b < first + num_blocks; b++, text += 64) {
        const __m512i v = _mm512_loadu_si512(text);
        const __m512i folded = _mm512_or_si512(v, _mm512_set1_epi8(0x20));
        const __m512i from_a = _mm512_sub_epi8(folded, _mm512_set1_epi8('a'));
        const __m512i from_0 = _mm512_sub_epi8(v, _mm512_set1_epi8('0'));
        const __m512i from_tab = _mm512_sub_epi8(v, _mm512_set1_epi8('\t'));
        const uint64_t blank = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(' '));
        m.letter[b] = _mm512_cmplt_epu8_mask(from_a, _mm512_set1_epi8(26));
        m.number[b] = _mm512_cmplt_epu8_mask(from_0, _mm512_set1_epi8(10));
        m.space[b] = blank | _mm512_cmplt_epu8_mask(from_tab, _mm512_set1_epi8(5));
        m.blank[b] = blank;
        m.apostrophe[b] = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\''));
        m.high[b] = _mm512_movepi8_mask(v);
    }
}

__attribute__((target("avx2"))) inline uint64_t movemask(__m256i low, __m256i high) {
    return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
           static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

// Bytes of the two halves that lie in [first, first + count), after `| fold`.
__attribute__((target("avx2"))) inline uint64_t in_range(__m256i low, __m256i high, char fold,
                                                         char first, char count) {
    const __m256i f = _mm256_set1_epi8(fold), s = _mm256_set1_epi8(first);
    const __m256i limit = _mm256_set1_epi8(static_cast<char>(count - 1));
    const __m256i a = _mm256_sub_epi8(_mm256_or_si256(low, f), s);
    const __m256i b = _mm256_sub_epi8(_mm256_or_si256(high, f), s);
    return movemask(_mm256_cmpeq_epi8(_mm256_min_epu8(a, limit), a),
                    _mm256_cmpeq_epi8(_mm256_min_epu8(b, limit), b));
}

__attribute__((target("avx2"))) void classify_avx2(const Byte* text, size_t first, size_t num_blocks,
                                                   WindowMasks& m) {
    for (size_t b = first; b < first + num_blocks; b++, text += 64) {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text + 32));
        const uint64_t blank = in_range(low, high, 0, ' ', 1);
        m.letter[b] = in_range(low, high, 0x20, 'a', 26);
        m.number[b] = in_range(low, high, 0, '0', 10);
        m.space[b] = blank | in_range(low, high, 0, '\t', 5);
        m.blank[b] = blank;
        m.apostrophe[b] = in_range(low, high, 0, '\'', 1);
        m.high[b] = movemask(low, high);
    }
}

__attribute__((target("bmi,bmi2,popcnt"))) size_t scan_gpt2_avx2(Span text, uint32_t* ends) {
    return scan_gpt2(text, ends, classify_avx2);
}

__attribute__((target("bmi,bmi2,popcnt"))) size_t scan_gpt2_avx512(Span text, uint32_t* ends) {
    return scan_gpt2(text, ends, classify_avx512);
}

#endif

ScanFunction best_gpt2_scanner() {
#if defined(__x86_64__)
    const bool bits = __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    if (bits && __builtin_cpu_supports("avx512bw")) return scan_gpt2_avx512;
    if (bits && __builtin_cpu_supports("avx2")) return scan_gpt2_avx2;
#endif
    return scan_gpt2_portable;
}

}  // namespace

Pattern pattern_from_name(const std::string& name) {
    if (name == "gpt2") return Pattern::kGpt2;
    if (name == "cl100k") return Pattern::kCl100k;
    if (name == "llama3") return Pattern::kLlama3;
    if (name == "qwen2") return Pattern::kQwen2;
    if (name == "o200k") return Pattern::kO200k;
    throw InputError("no native scanner for the pattern '" + name + "'");
}

ScanFunction scanner_for(Pattern pattern, bool plain) {
    switch (pattern) {
        case Pattern::kCl100k: return scan_plain<cl100k_end<3, true>>;
        case Pattern::kLlama3: return scan_plain<cl100k_end<3, false>>;
        case Pattern::kQwen2: return scan_plain<cl100k_end<1, false>>;
        case Pattern::kO200k: return scan_plain<o200k_end>;
        case Pattern::kGpt2: break;
    }
    return plain ? scan_plain<gpt2_end> : best_gpt2_scanner();
}

size_t find_safe_cut(Span text, size_t from) {
    const Byte* const end = text.data + text.size;
    for (size_t i = from < 1 ? 1 : from; i < text.size; i++) {
        const Byte* p = text.data + i;
        if (is_continuation(*p)) continue;
        // A letter or number, then white space: no pattern joins those.
        const Byte before = p[-1];
        if (*p == ' ' || *p == '\n') {
            if (before < 0x80 ? (kAsciiClass[before] >= kUpper && kAsciiClass[before] <= kNumber) : [&] {
                    const Byte* q = p - 1;
                    for (int k = 0; k < 3 && q > text.data && is_continuation(*q); k++) q--;
                    const CharClass cls = decode_char(q, end).cls;
                    return is_letter(cls) || cls == kNumber;
                }())
                return i;
        } else if (before == '\n' && i >= 2) {
            // A lone newline between something visible and a letter or number.
            const Byte* q = p - 2;
            for (int k = 0; k < 3 && q > text.data && is_continuation(*q); k++) q--;
            const CharClass cls = decode_char(p, end).cls;
            if (decode_char(q, end).cls != kSpace && (is_letter(cls) || cls == kNumber)) return i;
        }
    }
    return text.size;
}

}  // namespace groundup
