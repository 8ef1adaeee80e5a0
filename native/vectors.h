// SIMD instruction sets: those this CPU supports, the one in use, and macros for code that is compiled
// once per set. One binary contains the code for all of them, and the choice is made at run time.
#pragma once

#include <string>
#include <vector>

namespace groundup {

// kPlain: portable C++. NEON is part of every 64-bit Arm CPU; kAvx512 is AVX-512 with the byte
// instructions of Ice Lake (F, BW, VL, DQ and VBMI2).
enum class Vectors { kPlain, kNeon, kAvx2, kAvx512 };

const char* name_of(Vectors vectors);

// The sets that this CPU supports, fastest last.
const std::vector<Vectors>& available_vectors();

// Throws InputError for the name of a set that this CPU does not support.
Vectors vectors_from_name(const std::string& name);

// The fastest, or the one that the environment variable GROUNDUP_VECTORS names; read once.
Vectors vectors_in_use();

}  // namespace groundup

// Everything between VECTOR_CODE("avx2,…") and END_VECTOR_CODE may use those instructions.
#define GROUNDUP_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define VECTOR_CODE(features) \
    GROUNDUP_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define END_VECTOR_CODE GROUNDUP_PRAGMA(clang attribute pop)
#else
#define VECTOR_CODE(features) GROUNDUP_PRAGMA(GCC push_options) GROUNDUP_PRAGMA(GCC target(features))
#define END_VECTOR_CODE GROUNDUP_PRAGMA(GCC pop_options)
#endif
