// Where text that is still arriving may be cut, so that what comes later changes nothing before it.
#pragma once

#include "documents.h"
#include "pretokenizer.h"
#include "special_tokens.h"

namespace groundup {

// Where `text` may be cut at or after `from` without changing a pre-token or a special token.
inline size_t find_cut(Span text, size_t from, const SpecialTokens& special_tokens) {
    size_t cut = find_safe_cut(text, from);
    while (cut < text.size && special_tokens.crosses(text, cut)) cut = find_safe_cut(text, cut + 1);
    return cut;
}

// A position between pre-tokens, the last that is found without much work; 0 when there is none yet.
// Then `last` is the last pre-token there is.
size_t find_stream_cut(Span text, ScanFunction scan, const SpecialTokens& special_tokens, Bounds& last);

// What a special token that is still arriving may take of the end of a text.
inline size_t held_back(const SpecialTokens& special_tokens) {
    return special_tokens.empty() ? 0 : special_tokens.max_size() - 1;
}

// Whether the pre-token that begins here begins here whatever follows.
bool begins_for_good(Span text, size_t begin);

// Whether a scanner that begins at `at`, inside of a long pre-token, takes exactly the rest of it,
// whatever follows. `case_ends_words`: a pre-token may end where capitals begin.
bool may_resume(Span text, const Bounds& word, size_t at, bool case_ends_words);

}  // namespace groundup
