// Hash table keys of pre-tokens: up to 15 bytes are stored in two 64-bit words and compared exactly;
// longer ones are compared by a fingerprint, then by their bytes.
#pragma once

#include "types.h"

namespace groundup {

constexpr size_t kInlineWord = 15;

struct WordKey {
    uint64_t low;
    uint64_t high;  // the top byte holds the length (1 to 15), or 0 for a longer word
};

// kKeyMasks[n] keeps the first n of 15 bytes.
struct KeyMasks {
    WordKey of[16];
    constexpr KeyMasks() : of() {
        for (int n = 0; n < 16; n++) {
            of[n].low = n >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * n)) - 1;
            of[n].high = n <= 8 ? 0 : (uint64_t{1} << (8 * (n - 8))) - 1;
        }
    }
};
inline constexpr KeyMasks kKeyMasks{};

// Requires 16 readable bytes at `word`.
inline WordKey short_key(const Byte* word, size_t size) {
    WordKey bytes;
    std::memcpy(&bytes, word, 16);
    const WordKey mask = kKeyMasks.of[size];
    return {bytes.low & mask.low, (bytes.high & mask.high) | uint64_t{size} << 56};
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

// The key of a word in text that ends at `limit`, without reading past it.
inline WordKey word_key(const Byte* word, size_t size, const Byte* limit) {
    if (__builtin_expect(size > kInlineWord, 0)) return long_key(word, size);
    if (__builtin_expect(limit - word >= 16, 1)) return short_key(word, size);
    Byte padded[16] = {};
    std::memcpy(padded, word, size);
    return short_key(padded, size);
}

// The product of the two 32-bit halves. Small Arm cores multiply 32-bit values three times as fast as
// 64-bit ones, but gcc does not recognize this case.
inline uint64_t multiply_halves(uint64_t word) {
#if defined(__aarch64__)
    uint64_t product;
    asm("umull %0, %w1, %w2" : "=r"(product) : "r"(word), "r"(word >> 32));
    return product;
#else
    return (word & UINT32_MAX) * (word >> 32);
#endif
}

inline uint64_t hash_of(const WordKey& key) {
    const uint64_t product = multiply_halves(key.low ^ kSeedA) ^ multiply_halves(key.high ^ kSeedB);
    return product ^ product >> 32;
}

inline bool is_inline(const WordKey& key) { return key.high >> 56 != 0; }

}  // namespace groundup
