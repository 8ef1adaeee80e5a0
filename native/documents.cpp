#include "documents.h"

namespace groundup {

std::vector<Bounds> find_documents(Span text, const SpecialTokens& separators) {
    std::vector<Bounds> bounds;
    const auto add = [&](size_t begin, size_t end) {
        if (end > begin) bounds.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end)});
    };
    size_t at = 0;
    SpecialTokens::Match match;
    while (separators.find(text, at, match)) {
        add(at, match.begin);
        at = match.begin + match.size;
    }
    add(at, text.size);
    return bounds;
}

DocumentHash::DocumentHash(uint64_t size) {
    const uint64_t seed = size * kSeedA;
    lanes_[0] = seed;
    lanes_[1] = seed ^ kSeedA;
    lanes_[2] = seed ^ kSeedB;
    lanes_[3] = ~seed;
}

void DocumentHash::add(Span part) {
    uint64_t lanes[4] = {lanes_[0], lanes_[1], lanes_[2], lanes_[3]};
    size_t i = 0;
    for (; i + 32 <= part.size; i += 32) {
        for (size_t k = 0; k < 4; k++) lanes[k] = mix(lanes[k] ^ load64(part.data + i + 8 * k), kSeedB);
    }
    Byte rest[32] = {};
    if (i < part.size) std::memcpy(rest, part.data + i, part.size - i);
    for (size_t k = 0; i < part.size; i += 8, k++) lanes[k] = mix(lanes[k] ^ load64(rest + 8 * k), kSeedB);
    std::memcpy(lanes_, lanes, sizeof lanes);
}

uint64_t DocumentHash::value() const {
    uint64_t hash = lanes_[0];
    for (size_t k = 1; k < 4; k++) hash = mix(hash ^ lanes_[k], kSeedB ^ hash);
    return mix(hash ^ kSeedA, kSeedB);
}

uint64_t hash_document(Span document) {
    DocumentHash hash(document.size);
    hash.add(document);
    return hash.value();
}

}  // namespace groundup
