// Documents inside a large buffer: where they lie, and a stable hash of each.
#pragma once

#include <vector>

#include "special_tokens.h"
#include "types.h"

namespace groundup {

struct Bounds {
    int64_t begin, end;
};

// The pieces between separators; empty ones are left out.
std::vector<Bounds> find_documents(Span text, const SpecialTokens& separators);

// Part of the shard format (it decides which split a document goes to): never change it. Words of
// eight bytes, little end first, the last one filled up with zeros, go in turn to four lanes.
uint64_t hash_document(Span document);

}  // namespace groundup
