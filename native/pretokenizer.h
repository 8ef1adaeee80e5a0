// Cuts text into pre-tokens: hand-written scanners for six published patterns, which the split engine
// understands too, faster on the vector instructions of today's processors.
//
// A scanner is memoryless: started at a pre-token's first byte, it needs nothing of what came
// before. So text can be scanned window by window and thread by thread.
#pragma once

#include "types.h"
#include "vectors.h"

namespace groundup {

constexpr size_t kWindowBytes = 4096;
constexpr size_t kMaxEnds = kWindowBytes + 64;

// Writes the ends of the pre-tokens of `text`, relative to its start, at most kMaxEnds; the last one
// written is where to continue. `text` is not empty and starts at a pre-token. Text that masks of bytes
// cannot decide is left to the engine, by writing none.
using ScanFunction = size_t (*)(Span text, uint32_t* ends);

// Null where there is none for the pattern, or for those instructions.
ScanFunction scanner_for(const std::string& pattern, Vectors vectors);

}  // namespace groundup
