#include "unicode.h"

namespace groundup {

#include "unicode_tables.inc"

namespace {
constexpr uint8_t ascii_class(int c) {
    if (c >= 'A' && c <= 'Z') return kUpper;
    if (c >= 'a' && c <= 'z') return kLower;
    if (c >= '0' && c <= '9') return kNumber;
    if (c == ' ' || (c >= 9 && c <= 13)) return kSpace;
    return kOther;
}
#define ROW(i) ascii_class(i), ascii_class(i + 1), ascii_class(i + 2), ascii_class(i + 3), \
    ascii_class(i + 4), ascii_class(i + 5), ascii_class(i + 6), ascii_class(i + 7)
}  // namespace

const uint8_t kAsciiClass[128] = {ROW(0),  ROW(8),  ROW(16), ROW(24), ROW(32),  ROW(40),
                                  ROW(48), ROW(56), ROW(64), ROW(72), ROW(80),  ROW(88),
                                  ROW(96), ROW(104), ROW(112), ROW(120)};
#undef ROW

int64_t find_invalid_utf8(Span text) {
    const Byte* p = text.data;
    const Byte* const end = p + text.size;
    while (p < end) {
        while (end - p >= 32) {
            const uint64_t high = (load64(p) | load64(p + 8) | load64(p + 16) | load64(p + 24));
            if (high & 0x8080808080808080ull) break;
            p += 32;
        }
        const Byte* const stop = end - p > 32 ? p + 32 : end;
        while (p < stop) {
            uint32_t code_point;
            const uint32_t size = valid_char_size(p, end, code_point);
            if (size == 0) return p - text.data;
            p += size;
        }
    }
    return -1;
}

}  // namespace groundup
