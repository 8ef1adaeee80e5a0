#include "unicode.h"

#include <iterator>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace groundup {

#include "unicode_tables.inc"

namespace {

// One bit for each of 64 bytes: whether it is beyond ASCII.
uint64_t high_bytes(const Byte* p) {
#if defined(__SSE2__)
    uint64_t mask = 0;
    for (int i = 3; i >= 0; i--) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
        mask = mask << 16 | static_cast<uint32_t>(_mm_movemask_epi8(v));
    }
    return mask;
#else
    uint64_t mask = 0;
    for (int i = 7; i >= 0; i--)
        mask = mask << 8 | ((load64(p + 8 * i) & 0x8080808080808080ull) * 0x0002040810204081ull) >> 56;
    return mask;
#endif
}

}  // namespace

CodePoints find_property(const std::string& name) {
    CodePoints found;
    const auto add_runs = [&](const uint32_t* first, const uint32_t* end, const auto& holds) {
        for (const uint32_t* run = first; run < end; run++)
            if (holds(*run & 0xFF) != (found.size() % 2 == 1)) found.push_back(*run >> 8);
        if (found.size() % 2) found.push_back(0x110000);
    };
    const auto add_categories = [&](const auto& holds) {
        add_runs(std::begin(kCategoryRuns), std::end(kCategoryRuns), holds);
    };
    if (name == "space" || name == "word") {
        const uint32_t bit = name == "space" ? 0x80 : 0x40;
        add_categories([&](uint32_t value) { return (value & bit) != 0; });
    } else if (name.size() <= 2) {
        add_categories([&](uint32_t value) {
            const char* const category = kCategories + 2 * (value & 0x3F);
            return name[0] == (category[0] | 0x20) && (name.size() == 1 || name[1] == category[1]);
        });
    } else {
        for (const auto& [script, number] : kScripts)
            if (name == script)
                add_runs(std::begin(kScriptRuns), std::end(kScriptRuns),
                         [number = number](uint32_t value) { return value == number; });
    }
    return found;
}

int64_t find_invalid_utf8(Span text) {
    const Byte* const end = text.data + text.size;
    size_t reach = 0;  // bytes of the block that a character of the one before takes
    for (size_t at = 0; at < text.size; at += 64) {
        const Byte* block = text.data + at;
        Byte padded[64] = {};
        const bool is_last = text.size - at < 64;
        if (is_last) std::memcpy(padded, block, text.size - at);
        uint64_t high = high_bytes(is_last ? padded : block) & ~uint64_t{0} << reach;
        reach = 0;
        while (high) {
            const unsigned i = static_cast<unsigned>(__builtin_ctzll(high));
            uint32_t code_point;
            const uint32_t size = valid_char_size(block + i, end, code_point);
            if (size == 0) return static_cast<int64_t>(at + i);
            high &= ~(((uint64_t{1} << size) - 1) << i);
            if (i + size > 64) reach = i + size - 64;
        }
    }
    return -1;
}

}  // namespace groundup
