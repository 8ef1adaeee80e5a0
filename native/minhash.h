// Words of a text, the shingles (runs of several words) they make, MinHash signatures of documents.
#pragma once

#include <vector>

#include "documents.h"

namespace groundup {

constexpr size_t kSignatureSize = 128;

// Of one document; its Python twin names the columns.
struct MeasuredDocument {
    int64_t characters, spaces;
    int64_t symbols;  // neither letter, mark, number nor space
    uint64_t hash;    // of its bytes without white space at the ends
    uint32_t signature[kSignatureSize];
};

// MinHash: number i is the least value of hash function i over the shingles, so that two documents
// agree in a number with the probability of their Jaccard similarity. A document with fewer words than
// a shingle has is a single one.
void measure_documents(const std::vector<Span>& documents, size_t num_words, size_t num_threads, MeasuredDocument* out);

}  // namespace groundup
