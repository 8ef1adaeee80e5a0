#include "pretokenizer.h"

#include "unicode.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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
        if (*p < 0x80) {
            if (!keep(static_cast<CharClass>(kAsciiClass[*p]))) break;
            p++;
        } else {
            const Char c = decode_char(p, end);
            if (!keep(c.cls)) break;
            p += c.size;
        }
    }
    return p;
}

inline const Byte* skip_letters(const Byte* p, const Byte* end) {
    return skip_while(p, end, is_letter);
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
    if (c.cls == kNumber) return skip_while(q, end, [](CharClass d) { return d == kNumber; });
    return skip_while(q, end, is_other);
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
    const Byte* r = skip_while(q, end, is_other);
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
    const Byte* r = skip_while(q, end, may_be_lower);
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

template <const Byte* (*kEnd)(const Byte*, const Byte*), size_t kBytes = kWindowBytes>
size_t scan_plain(Span text, uint32_t* ends) {
    const Byte* p = text.data;
    const Byte* const end = p + text.size;
    const Byte* const stop = text.size > kBytes ? p + kBytes : end;
    size_t count = 0;
    while (p < stop) {
        p = kEnd(p, end);
        ends[count++] = checked_offset(static_cast<size_t>(p - text.data));
    }
    return count;
}

// ---- The mask scanners: classes as bit masks, one bit a byte of text.

constexpr size_t kBlocksPerWindow = kWindowBytes / 64;

// The masks of a window and of the block behind it, for the characters that look ahead.
struct WindowMasks {
    uint64_t letter[kBlocksPerWindow + 2];
    uint64_t number[kBlocksPerWindow + 2];
    uint64_t space[kBlocksPerWindow + 2];  // every byte of a white-space character
    uint64_t blank[kBlocksPerWindow + 2];  // U+0020
    uint64_t apostrophe[kBlocksPerWindow + 2];
    uint64_t high[kBlocksPerWindow + 2];  // bytes of characters beyond ASCII
    uint64_t upper[kBlocksPerWindow + 2];
    uint64_t newline[kBlocksPerWindow + 2];
    uint64_t continuation[kBlocksPerWindow + 2];  // bytes of a character behind its first
    uint64_t any_high;
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

inline void set_bits(uint64_t* words, size_t from, size_t count) {
    const uint64_t bits = (uint64_t{1} << count) - 1;
    words[from / 64] |= bits << (from % 64);
    if (from % 64 + count > 64) words[from / 64 + 1] |= bits >> (64 - from % 64);
}

#if defined(__aarch64__)
// The positions of the bits that are set in each byte, a byte each, from the lowest on.
struct BitPositions {
    uint64_t of[256];
    constexpr BitPositions() : of() {
        for (unsigned byte = 0; byte < 256; byte++) {
            int filled = 0;
            for (uint64_t position = 0; position < 8; position++)
                if (byte >> position & 1) of[byte] |= position << (8 * filled++);
        }
    }
};
constexpr BitPositions kBitPositions{};

namespace neon {
#define VECTOR_BYTES 16
#include "mask_scan.inc"
#undef VECTOR_BYTES
}
#elif defined(__x86_64__)
VECTOR_CODE("avx2,bmi,bmi2,popcnt")
namespace avx2 {
#define VECTOR_BYTES 32
#include "mask_scan.inc"
#undef VECTOR_BYTES
}
END_VECTOR_CODE
// The compiler's own header reads variables it leaves undefined on purpose.
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
VECTOR_CODE("avx2,bmi,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512vbmi2")
namespace avx512 {
#define VECTOR_BYTES 64
#include "mask_scan.inc"
#undef VECTOR_BYTES
}
END_VECTOR_CODE
#pragma GCC diagnostic pop
#endif

struct Scanners {
    ScanFunction gpt2, cl100k, llama3, qwen2, o200k;
};

// The scanners of one instruction set.
#define SCANNERS(set)                                                                         \
    {set::scan_gpt2, set::scan_words<cl100k_end<3, true>, 3, true, false>,                     \
     set::scan_words<cl100k_end<3, false>, 3, false, false>,                                   \
     set::scan_words<cl100k_end<1, false>, 1, false, false>,                                   \
     set::scan_words<o200k_end, 3, false, true>}

Scanners scanners_of(Vectors vectors) {
    switch (vectors) {
#if defined(__aarch64__)
        case Vectors::kNeon: return SCANNERS(neon);
#elif defined(__x86_64__)
        case Vectors::kAvx2: return SCANNERS(avx2);
        case Vectors::kAvx512: return SCANNERS(avx512);
#endif
        default: break;
    }
    return {scan_plain<gpt2_end>, scan_plain<cl100k_end<3, true>>, scan_plain<cl100k_end<3, false>>,
            scan_plain<cl100k_end<1, false>>, scan_plain<o200k_end>};
}

#undef SCANNERS

}  // namespace

Pattern pattern_from_name(const std::string& name) {
    if (name == "gpt2") return Pattern::kGpt2;
    if (name == "cl100k") return Pattern::kCl100k;
    if (name == "llama3") return Pattern::kLlama3;
    if (name == "qwen2") return Pattern::kQwen2;
    if (name == "o200k") return Pattern::kO200k;
    throw InputError("no native scanner for the pattern '" + name + "'");
}

ScanFunction scanner_for(Pattern pattern, Vectors vectors) {
    const Scanners scanners = scanners_of(vectors);
    switch (pattern) {
        case Pattern::kCl100k: return scanners.cl100k;
        case Pattern::kLlama3: return scanners.llama3;
        case Pattern::kQwen2: return scanners.qwen2;
        case Pattern::kO200k: return scanners.o200k;
        case Pattern::kGpt2: break;
    }
    return scanners.gpt2;
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
