// Hand-written SIMD scanners that split text into pre-tokens for six published patterns, faster than
// the automaton, which supports these patterns too.
//
// A scanner is stateless: started at the first byte of a pre-token, it does not depend on earlier
// text. So text can be scanned window by window, and by several threads.
#pragma once

#include "types.h"
#include "vectors.h"

namespace groundup {

constexpr size_t kWindowBytes = 4096;
constexpr size_t kMaxEnds = kWindowBytes + 64;

// Writes up to kMaxEnds ends of pre-tokens of `text`, relative to its start, and returns their number;
// the next scan starts at the last one. `text` is not empty and starts at a pre-token. Returns 0 for text
// that byte masks cannot split, which is left to the automaton.
using ScanFunction = size_t (*)(Span text, uint32_t* ends);

// Null if there is no scanner for the pattern or for these instructions.
ScanFunction scanner_for(const std::string& pattern, Vectors vectors);

}  // namespace groundup
