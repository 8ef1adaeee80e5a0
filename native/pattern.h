// Parses the regular expressions of published tokenizers into programs of single steps.
//
// Supports sets with Unicode properties, ordered alternatives, repetition (greedy, lazy, possessive), groups
// and one character of look-ahead. What a finite automaton cannot match is rejected, by name and position.
#pragma once

#include <string>
#include <vector>

#include "types.h"
#include "unicode.h"

namespace groundup {

// For look-ahead, the end of the text is a character too.
constexpr uint32_t kEndOfText = 0x110000;

// kSet consumes a character of a set, kLook tests for one without consuming it, kBegin holds at the start of
// the text; kSplit tries `next`, then `other`.
struct Step {
    enum Kind : uint8_t { kMatch, kSet, kLook, kBegin, kSplit } kind;
    uint32_t set;
    uint32_t next, other;
};

struct Program {
    std::vector<Step> steps;
    uint32_t start;
};

// Adds the sets it uses to `sets`, without duplicates. Throws InputError for unsupported syntax.
Program parse_pattern(const std::string& text, std::vector<CodePoints>& sets);

}  // namespace groundup
