// Finds where a stream may be cut so that later text does not affect what comes before the cut.
#pragma once

#include "special_tokens.h"
#include "splitter.h"

namespace groundup {

// The first position at or after `from` where `text` may be cut without splitting a pre-token or special token.
inline size_t find_cut(Span text, size_t from, const Splitter& splitter, const SpecialTokens& special_tokens) {
    size_t cut = splitter.safe_cut(text, from);
    while (cut < text.size && special_tokens.crosses(text, cut)) cut = splitter.safe_cut(text, cut + 1);
    return cut;
}

// The prefix of a stream that consists of whole characters, none of which can belong to a special token that
// is still arriving.
Span stable_prefix(Span text, const SpecialTokens& special_tokens);

// A position in the stable prefix where a stream may be cut, the last one that is cheap to find; 0 if there
// is none yet: then the prefix is one pre-token, or has no matches.
size_t find_stream_cut(Span text, const Splitter& splitter, const SpecialTokens& special_tokens);

}  // namespace groundup
