#include "unicode.h"

#include <iterator>

namespace groundup {

#include "unicode_tables.inc"

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
    for (const Byte* p = text.data; p < end;) {
        uint32_t code_point;
        const uint32_t size = end - p >= 8 && !(load64(p) & 0x8080808080808080) ? 8 : valid_char_size(p, end, code_point);
        if (!size) return p - text.data;
        p += size;
    }
    return -1;
}

}  // namespace groundup
