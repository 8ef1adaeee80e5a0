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

uint64_t hash_document(Span document) {
    uint64_t hash = document.size * kSeedA;
    size_t i = 0;
    for (; i + 8 <= document.size; i += 8) hash = mix(hash ^ load64(document.data + i), kSeedB);
    if (i < document.size) {
        Byte rest[8] = {};
        std::memcpy(rest, document.data + i, document.size - i);
        hash = mix(hash ^ load64(rest), kSeedB);
    }
    return mix(hash ^ kSeedA, kSeedB);
}

}  // namespace groundup
