// MinHash signatures of documents, from their shingles (sequences of several words).
#pragma once

#include <vector>

#include "documents.h"

namespace groundup {

constexpr size_t kSignatureSize = 128;

// The measurements of one document; a structured dtype in Python has the same fields.
struct MeasuredDocument {
    int64_t characters, spaces;
    int64_t symbols;  // neither letter, mark, number nor space
    uint64_t hash;    // of its bytes, without surrounding whitespace
    uint32_t signature[kSignatureSize];
};

// Component i of a signature is the minimum of hash function i over the shingles, so two documents agree
// in a component with probability equal to their Jaccard similarity. A document with fewer words than a
// shingle is a single shingle.
void measure_documents(const std::vector<Span>& documents, size_t num_words, size_t num_threads, MeasuredDocument* out);

}  // namespace groundup
