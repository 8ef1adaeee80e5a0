#include "pretokenizer.h"

#include "unicode.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace groundup {

namespace {

inline bool is_newline(Byte b) { return b == '\n' || b == '\r'; }

// Length of a contraction ('s 'd 'm 't 'll 've 're) at the apostrophe p, or 0; the long s (U+017F) folds to s.
template <bool kAnyCase>
inline size_t contraction_size(const Byte* p, const Byte* end) {
    constexpr Byte kFold = kAnyCase ? 0x20 : 0;
    if (end - p < 2) return 0;
    const Byte a = p[1] | kFold;
    if (p[1] < 0x80 && (a == 's' || a == 'd' || a == 'm' || a == 't')) return 2;
    if (end - p < 3) return 0;
    if (kAnyCase && p[1] == 0xC5 && p[2] == 0xBF) return 3;
    if ((p[1] | p[2]) >= 0x80) return 0;
    const Byte b = p[2] | kFold;
    return (a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e') ? 3 : 0;
}

constexpr size_t kBlocksPerWindow = kWindowBytes / 64;

// Bit masks of a window and, for look-ahead, of the block after it.
struct WindowMasks {
    uint64_t letter[kBlocksPerWindow + 2];
    uint64_t number[kBlocksPerWindow + 2];
    uint64_t space[kBlocksPerWindow + 2];
    uint64_t blank[kBlocksPerWindow + 2];  // U+0020
    uint64_t apostrophe[kBlocksPerWindow + 2];
    uint64_t high[kBlocksPerWindow + 2];  // bytes of characters beyond ASCII
    uint64_t tail[kBlocksPerWindow + 2];  // their bytes after the first
    uint64_t upper[kBlocksPerWindow + 2];
    uint64_t newline[kBlocksPerWindow + 2];
    uint32_t reach, reaching;  // bytes of this block's last character in the next one; 1: a letter, 3: a capital
};

#if defined(__aarch64__)
// For each byte value: the positions of its set bits, one byte each, lowest first.
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

#include "mask_scan.inc"
#elif defined(__x86_64__)
VECTOR_CODE("avx2,bmi,bmi2,popcnt")
#include "mask_scan.inc"
END_VECTOR_CODE
#endif

}  // namespace

ScanFunction scanner_for(const std::string& pattern, Vectors vectors) {
    if (vectors == Vectors::kPlain) return nullptr;
#if defined(__x86_64__) || defined(__aarch64__)
    const std::pair<const char*, ScanFunction> scanners[] = {
        {"gpt2", scan_words<0, false, false, false>},   {"cl100k", scan_words<3, true, false, false>},
        {"llama3", scan_words<3, false, false, false>}, {"qwen2", scan_words<1, false, false, false>},
        {"o200k", scan_words<3, false, true, false>},   {"deepseek", scan_words<3, false, false, true>}};
    for (const auto& [name, scanner] : scanners)
        if (pattern == name) return scanner;
#endif
    return nullptr;
}

}  // namespace groundup
