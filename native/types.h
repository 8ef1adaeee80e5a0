// Types and primitives shared by the whole native core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace groundup {

using Byte = uint8_t;

constexpr uint32_t kNone = UINT32_MAX;

// Invalid input from the caller; python_support.h converts it to ValueError.
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

// Not in the C++ standard, but gcc and clang have it on every 64-bit platform.
__extension__ typedef unsigned __int128 Uint128;

// Folds the 128-bit product of two 64-bit words to 64 bits: a fast mixer with full avalanche.
inline uint64_t mix(uint64_t a, uint64_t b) {
    const Uint128 product = static_cast<Uint128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr uint64_t kSeedA = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kSeedB = 0xD1B54A32D192ED03ull;

}  // namespace groundup
