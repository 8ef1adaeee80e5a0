// Small types and primitives that every part of the native core uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace groundup {

using Byte = uint8_t;

constexpr uint32_t kNone = UINT32_MAX;

// A mistake in what the caller gave us; python_support.h turns it into ValueError.
struct InputError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Span {
    const Byte* data = nullptr;
    size_t size = 0;
};

inline uint64_t load64(const Byte* p) {
    uint64_t value;
    std::memcpy(&value, p, 8);
    return value;
}

// gcc and clang have it on every processor of 64 bits; the standard does not know it.
__extension__ typedef unsigned __int128 Uint128;

// Folds the 128-bit product of two words into one: a fast mixer with full avalanche.
inline uint64_t mix(uint64_t a, uint64_t b) {
    const Uint128 product = static_cast<Uint128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr uint64_t kSeedA = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kSeedB = 0xD1B54A32D192ED03ull;

}  // namespace groundup
