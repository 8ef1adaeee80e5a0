#include "stream_cut.h"

#include <algorithm>
#include <vector>

#include "unicode.h"

namespace groundup {

namespace {

bool ends_in_space(Span text) {
    const Byte* const end = text.data + text.size;
    const Byte* p = end - 1;
    while (p > text.data && end - p < 3 && is_continuation(*p)) p--;
    return decode_char(p, end).cls == kSpace;
}

}  // namespace

size_t find_stream_cut(Span text, ScanFunction scan, const SpecialTokens& special_tokens, Bounds& last_word) {
    // A special token that is still arriving may begin anywhere in the last max_size - 1 bytes.
    const size_t held = held_back(special_tokens);
    if (text.size <= held) return 0;
    const size_t visible = text.size - held;
    // The last safe cut is near the end of ordinary text: look in growing steps back from there.
    for (size_t step = 64; step <= 4096; step *= 8) {
        const size_t from = visible > step ? visible - step : 1;
        size_t best = 0;
        for (size_t cut = find_safe_cut(text, from); cut < visible;
             cut = find_safe_cut(text, cut + 1)) {
            if (!special_tokens.crosses(text, cut)) best = cut;
        }
        if (best) return best;
        if (from == 1) break;
    }
    // None: take the pre-tokens themselves. What follows can change the last three at most; and
    // white space that ends a text is cut in another way than white space inside of it.
    SpecialTokens::Match match;
    size_t at = 0;
    while (special_tokens.find(text, at, match) && match.begin < visible) at = match.begin + match.size;
    if (at >= visible) return at;
    std::vector<uint32_t> ends(kMaxEnds);
    size_t last[4] = {at, at, at, at};
    for (size_t begin = at; begin < visible;) {
        const size_t count = scan({text.data + begin, text.size - begin}, ends.data());
        const size_t last_begin = begin + (count > 1 ? ends[count - 2] : 0);
        last_word = {static_cast<int64_t>(last_begin), static_cast<int64_t>(begin + ends[count - 1])};
        for (size_t i = 0; i < count; i++) {
            if (begin + ends[i] > visible) break;
            if (ends_in_space({text.data, begin + ends[i]})) continue;
            last[0] = last[1];
            last[1] = last[2];
            last[2] = last[3];
            last[3] = begin + ends[i];
        }
        begin += ends[count - 1];
    }
    return last[0];
}

// The pre-tokens before it look no further than its first characters, except in white space, and in
// words up to where their capitals end: a letter without case may end one before them.
bool begins_for_good(Span text, size_t begin) {
    if (!begin) return true;
    const Byte* const end = text.data + text.size;
    const Byte before = text.data[begin - 1];
    if (before >= 0x80) return false;
    const Char first = decode_char(text.data + begin, end);
    const Char second = decode_char(text.data + begin + first.size, end);
    return kAsciiClass[before] != kSpace || first.cls != kSpace || second.cls != kSpace;
}

// In a run of letters, numbers, white space or other characters, away from both ends.
bool may_resume(Span text, const Bounds& word, size_t at, bool case_ends_words) {
    constexpr size_t kEdge = 16;
    const size_t begin = static_cast<size_t>(word.begin);
    if (at < begin + kEdge || at + kEdge > static_cast<size_t>(word.end)) return false;
    const Byte* const end = text.data + text.size;
    const Byte* const p = text.data + at;
    if (is_continuation(*p)) return false;
    const Byte* q = p - 1;
    for (int k = 0; k < 3 && is_continuation(*q); k++) q--;
    const Char before = decode_char(q, end), here = decode_char(p, end);
    if (is_letter(here.cls) && is_letter(before.cls))
        return !case_ends_words || (here.cls == before.cls && here.cls != kLetter);
    if (here.cls != before.cls) return false;
    if (here.cls == kNumber) return true;
    // Behind other characters a pattern may take slashes and newlines; an apostrophe may begin a
    // contraction, and a single character may go with the letters behind it.
    if (here.cls == kOther)
        return *p != '\'' && *p != '/' && decode_char(p + here.size, end).cls == kOther;
    if (here.cls != kSpace) return false;
    // White space up to its last newline may be one pre-token: there has to be none, or one behind.
    const Char first = decode_char(text.data + begin, end);
    if (first.cls != kSpace || decode_char(text.data + begin + first.size, end).cls != kSpace) return false;
    const auto is_newline = [](Byte b) { return b == '\n' || b == '\r'; };
    return is_newline(*p) || std::none_of(text.data + begin, p, is_newline);
}

}  // namespace groundup
