// Words of a text, whatever its language, and the shingles (runs of several words) they make: what
// documents are compared by, and the counts that their quality is judged by.
#pragma once

#include <vector>

#include "documents.h"
#include "unicode.h"

namespace groundup {

constexpr size_t kSignatureSize = 128;

// Inclusive first and last code point.
struct CodePoints {
    int64_t first, last;
};

// Of one document; its Python twin names the columns.
struct DocumentCounts {
    int64_t characters = 0;
    int64_t spaces = 0;
    int64_t letters = 0;
    int64_t script_letters = 0;    // of the code points asked for
    int64_t symbols = 0;           // neither letter, mark, number nor space
    int64_t line_bytes = 0;        // of lines that are not blank
    int64_t repeated_line_bytes = 0;
    int64_t shingles = 0;
    int64_t repeated_shingles = 0;
};

struct MeasuredDocument {
    DocumentCounts counts;
    uint64_t hash = 0;  // of its bytes without white space at the ends
    uint32_t signature[kSignatureSize];
};

// MinHash: number i is the least value of hash function i over the distinct shingles, so that two
// documents agree in a number with the probability of their Jaccard similarity. Columns are filled by
// as many threads as asked for; the result is the same.
void measure_documents(Span text, const Bounds* bounds, size_t count, const std::vector<CodePoints>& script,
                       size_t num_words, size_t num_threads, MeasuredDocument* out);

// The hashes of all shingles of `num_words` words, document after document; counts[i] is how many
// document i has. One with fewer words is a single shingle.
std::vector<uint64_t> hash_shingles(Span text, const Bounds* bounds, size_t count, size_t num_words,
                                    int64_t* counts);

}  // namespace groundup
