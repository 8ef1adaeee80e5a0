#include "documents.h"

namespace groundup {

uint64_t hash_document(Span document) {
    const uint64_t seed = document.size * kSeedA;
    uint64_t lanes[4] = {seed, seed ^ kSeedA, seed ^ kSeedB, ~seed};
    size_t i = 0;
    for (; i + 32 <= document.size; i += 32) {
        for (size_t k = 0; k < 4; k++) lanes[k] = mix(lanes[k] ^ load64(document.data + i + 8 * k), kSeedB);
    }
    Byte rest[32] = {};
    if (i < document.size) std::memcpy(rest, document.data + i, document.size - i);
    for (size_t k = 0; i < document.size; i += 8, k++) lanes[k] = mix(lanes[k] ^ load64(rest + 8 * k), kSeedB);
    uint64_t hash = lanes[0];
    for (size_t k = 1; k < 4; k++) hash = mix(hash ^ lanes[k], kSeedB ^ hash);
    return mix(hash ^ kSeedA, kSeedB);
}

}  // namespace groundup
