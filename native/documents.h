// Documents inside a large buffer: where one lies, and a stable hash of it.
#pragma once

#include "types.h"

namespace groundup {

struct Bounds {
    int64_t begin, end;
};

// Part of the shard format (it decides which split a document goes to): never change it. Words of
// eight bytes, little end first, the last one filled up with zeros, go in turn to four lanes.
uint64_t hash_document(Span document);

}  // namespace groundup
