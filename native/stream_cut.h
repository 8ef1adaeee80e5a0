// Where text that is still arriving may be cut, so that what comes later changes nothing before it.
#pragma once

#include "special_tokens.h"
#include "splitter.h"

namespace groundup {

// Where `text` may be cut at or after `from` without changing a pre-token or a special token.
inline size_t find_cut(Span text, size_t from, const Splitter& splitter, const SpecialTokens& special_tokens) {
    size_t cut = splitter.safe_cut(text, from);
    while (cut < text.size && special_tokens.crosses(text, cut)) cut = splitter.safe_cut(text, cut + 1);
    return cut;
}

// The beginning of a text that is whole characters, none of which a special token can take that is still
// arriving.
Span find_settled(Span text, const SpecialTokens& special_tokens);

// A position in its settled beginning where text that continues may be cut, the last that is found without
// much work; 0 when there is none yet: then the beginning is one pre-token, or has no matches.
size_t find_stream_cut(Span text, const Splitter& splitter, const SpecialTokens& special_tokens);

}  // namespace groundup
