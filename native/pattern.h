// The pattern language of published tokenizers: from a pattern's text to a program of single steps.
//
// Sets with Unicode properties, alternatives in order, repetition (greedy, lazy, possessive), groups and
// looking one character ahead. What a machine of bounded size cannot follow is refused by name and place.
#pragma once

#include <string>
#include <vector>

#include "types.h"
#include "unicode.h"

namespace groundup {

// The end of the text is a character too, for what looks ahead.
constexpr uint32_t kEndOfText = 0x110000;

// kSet takes a character of a set, kLook only looks whether it is one, kBegin holds where the text begins;
// kSplit tries `next` and then `other`.
struct Step {
    enum Kind : uint8_t { kMatch, kSet, kLook, kBegin, kSplit } kind;
    uint32_t set;
    uint32_t next, other;
};

struct Program {
    std::vector<Step> steps;
    uint32_t start;
};

// Adds the sets it uses to `sets`, each once. Throws InputError for what is not in the language.
Program parse_pattern(const std::string& text, std::vector<CodePoints>& sets);

}  // namespace groundup
