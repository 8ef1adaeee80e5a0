// Character classes, properties and UTF-8 decoding. The tables are generated from the `regex` package.
#pragma once

#include <vector>

#include "types.h"

namespace groundup {

enum CharClass : uint8_t {
    kOther = 0,   // punctuation, symbols, controls, unassigned
    kUpper = 1,   // Lu, Lt
    kLower = 2,   // Ll
    kLetter = 3,  // Lm, Lo: letters without case
    kMark = 4,
    kNumber = 5,
    kSpace = 6,
};

extern const uint8_t kAsciiClass[128];
extern const uint16_t kBlockIndex[0x110000 / 64];
extern const uint8_t kBlocks[][64];

inline CharClass class_of_code_point(uint32_t code_point) {
    return static_cast<CharClass>(kBlocks[kBlockIndex[code_point >> 6]][code_point & 63]);
}

struct Char {
    CharClass cls;
    uint32_t size;  // bytes
    uint32_t code_point;
};

inline bool is_continuation(Byte b) { return (b & 0xC0) == 0x80; }

// Number of bytes of the valid character at p, or 0 if there is none. Follows table 3-7 of the
// Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
inline uint32_t valid_char_size(const Byte* p, const Byte* end, uint32_t& code_point) {
    const Byte lead = p[0];
    const size_t left = static_cast<size_t>(end - p);
    if (lead < 0x80) {
        code_point = lead;
        return 1;
    }
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) {
        if (left < 2 || !is_continuation(p[1])) return 0;
        code_point = (lead & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (lead < 0xF0) {
        if (left < 3 || !is_continuation(p[1]) || !is_continuation(p[2])) return 0;
        code_point = (lead & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        if (code_point < 0x800 || (code_point >= 0xD800 && code_point < 0xE000)) return 0;
        return 3;
    }
    if (lead > 0xF4 || left < 4 || !is_continuation(p[1]) || !is_continuation(p[2]) ||
        !is_continuation(p[3]))
        return 0;
    code_point = (lead & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    if (code_point < 0x10000 || code_point > 0x10FFFF) return 0;
    return 4;
}

// Decodes one character; an invalid byte is a kOther of one byte.
inline Char decode_char(const Byte* p, const Byte* end) {
    if (*p < 0x80) return {static_cast<CharClass>(kAsciiClass[*p]), 1, *p};
    uint32_t code_point = 0;
    const uint32_t size = valid_char_size(p, end, code_point);
    if (size == 0) return {kOther, 1, 0xFFFD};
    return {class_of_code_point(code_point), size, code_point};
}

inline bool is_letter(CharClass c) { return c >= kUpper && c <= kLetter; }

// A set of code points as sorted, alternating begins and ends of ranges: {65, 91} is A to Z.
using CodePoints = std::vector<uint32_t>;

// The set of a general category (L, Lu) or script (Han) by its lowercase name; "space" and "word" are
// \s and \w. Empty if the name is unknown.
CodePoints find_property(const std::string& name);

// Offset of the first byte that is not part of valid UTF-8, or -1.
int64_t find_invalid_utf8(Span text);

}  // namespace groundup
