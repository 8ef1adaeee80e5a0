// Cuts text into pre-tokens: hand-written scanners for the published split patterns.
//
// A scanner is memoryless: started at a pre-token's first byte, it needs nothing of what came
// before. So text can be scanned window by window and thread by thread.
#pragma once

#include "types.h"
#include "vectors.h"

namespace groundup {

enum class Pattern { kGpt2, kCl100k, kLlama3, kQwen2, kO200k };

// Throws InputError for a name no scanner was written for.
Pattern pattern_from_name(const std::string& name);

constexpr size_t kWindowBytes = 4096;
constexpr size_t kMaxEnds = kWindowBytes + 64;

// Writes the ends of the pre-tokens of `text`, relative to its start, at least one and at most
// kMaxEnds; the last one written is where to continue. `text` is not empty and starts at a pre-token.
using ScanFunction = size_t (*)(Span text, uint32_t* ends);

// Vectors::kPlain gives the byte-by-byte twin of the others.
ScanFunction scanner_for(Pattern pattern, Vectors vectors = vectors_in_use());

// The first position at or after `from` where text may be cut so that both sides split as the whole
// does, for every pattern above; text.size when there is none.
size_t find_safe_cut(Span text, size_t from);

}  // namespace groundup
