// How a pre-token becomes a hash-table key: up to 15 bytes fit in two words and are compared whole;
// longer ones are known by a fingerprint first and their bytes after.
#pragma once

#include "types.h"

namespace groundup {

constexpr size_t kInlineWord = 15;

struct WordKey {
    uint64_t low;
    uint64_t high;  // the top byte holds the length (1 to 15), or 0 for a longer word
};

struct KeyMask {
    uint64_t low, high;
};

// kKeyMasks[n] keeps the first n of 15 bytes.
struct KeyMasks {
    KeyMask of[16];
    constexpr KeyMasks() : of() {
        for (int n = 0; n < 16; n++) {
            of[n].low = n >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * n)) - 1;
            of[n].high = n <= 8 ? 0 : (uint64_t{1} << (8 * (n - 8))) - 1;
        }
    }
};
inline constexpr KeyMasks kKeyMasks{};

// 16 bytes at `word` can be read.
inline WordKey short_key(const Byte* word, size_t size) {
    const KeyMask mask = kKeyMasks.of[size];
    return {load64(word) & mask.low, (load64(word + 8) & mask.high) | uint64_t{size} << 56};
}

inline WordKey long_key(const Byte* word, size_t size) {
    uint64_t a = size * kSeedA, b = kSeedB;
    size_t i = 0;
    for (; i + 16 <= size; i += 16) {
        a = mix(load64(word + i) ^ a, kSeedB);
        b = mix(load64(word + i + 8) ^ b, kSeedA);
    }
    a = mix(load64(word + size - 16) ^ a, kSeedB ^ b);
    b = mix(load64(word + size - 8) ^ b, kSeedA ^ a);
    return {a, (b >> 8) | 1};
}

// The key of any word of text that ends at `limit`, without reading behind it.
inline WordKey word_key(const Byte* word, size_t size, const Byte* limit) {
    if (__builtin_expect(size > kInlineWord, 0)) return long_key(word, size);
    if (__builtin_expect(limit - word >= 16, 1)) return short_key(word, size);
    Byte padded[16] = {};
    std::memcpy(padded, word, size);
    return short_key(padded, size);
}

inline uint64_t hash_of(const WordKey& key) { return mix(key.low ^ kSeedA, key.high ^ kSeedB); }

inline bool is_inline(const WordKey& key) { return key.high >> 56 != 0; }

}  // namespace groundup
