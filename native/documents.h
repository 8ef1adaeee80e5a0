// Documents in a large buffer: their bounds and a stable hash.
#pragma once

#include "types.h"

namespace groundup {

struct Bounds {
    int64_t begin, end;
};

// Part of the shard format (it assigns documents to splits), so it must never change. Little-endian
// 64-bit words, the last one zero-padded, are distributed round-robin over four lanes.
uint64_t hash_document(Span document);

}  // namespace groundup
