#include "stream_cut.h"

namespace groundup {

Span stable_prefix(Span text, const SpecialTokens& special_tokens) {
    const size_t held = special_tokens.empty() ? 0 : special_tokens.max_size() - 1;
    if (text.size <= held) return {text.data, 0};
    const size_t size = text.size - held;
    size_t lead = size;
    while (lead > 0 && size - lead < 4 && is_continuation(text.data[--lead])) continue;
    uint32_t code_point;
    const bool is_cut = text.data[lead] >= 0xC0 && !valid_char_size(text.data + lead, text.data + size, code_point);
    return {text.data, is_cut ? lead : size};
}

size_t find_stream_cut(Span text, const Splitter& splitter, const SpecialTokens& special_tokens) {
    const Span stable = stable_prefix(text, special_tokens);
    // In ordinary text the last safe cut is near the end: search backwards from there in growing steps.
    for (size_t step = 64; stable.size; step *= 8) {
        const size_t from = stable.size > step ? stable.size - step : 1;
        size_t best = 0;
        for (size_t cut = splitter.safe_cut(stable, from); cut < stable.size;
             cut = splitter.safe_cut(stable, cut + 1)) {
            if (!special_tokens.crosses(text, cut)) best = cut;
        }
        if (best) return best;
        if (from == 1) break;
    }
    SpecialTokens::Match match;
    size_t at = 0;
    while (special_tokens.find(text, at, match) && match.begin < stable.size) at = match.begin + match.size;
    return at ? at : splitter.last_cut(stable);
}

}  // namespace groundup
