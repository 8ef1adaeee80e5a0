// Words of a text, the shingles (runs of several words) they make, MinHash signatures of documents,
// and an index of those signatures that finds documents like earlier ones.
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
// agree in a number with the probability of their Jaccard similarity.
void measure_documents(Span text, const Bounds* bounds, size_t count, size_t num_words, size_t num_threads,
                       MeasuredDocument* out);

// The hashes of all shingles, document after document. One with fewer words is a single shingle.
std::vector<uint64_t> hash_shingles(Span text, const Bounds* bounds, size_t count, size_t num_words);

// Documents that were kept: a few hundred bytes each, whatever their length.
class DuplicateIndex {
public:
    // Similar is what agrees in `threshold` of the signature. Candidates share one of `num_bands` bands
    // of it; with none, only documents that are the same are found.
    DuplicateIndex(size_t num_bands, double threshold);

    enum class Found : int64_t { kNothing, kAlike, kSame };
    // Whether an earlier document is like this one; if not, it is kept.
    Found add(const MeasuredDocument& document);

private:
    // Open addressing; a slot holds 32 bits of a key and a row, counted from 1.
    struct Slot {
        uint32_t tag, row;
    };
    size_t home(uint32_t tag) const { return static_cast<size_t>((tag * kSeedA) >> shift_); }
    template <class Visit>
    void visit(uint32_t tag, Visit visit_row) const;
    void insert(uint32_t tag, uint32_t row);

    size_t num_bands_;
    double threshold_;
    std::vector<Slot> slots_ = std::vector<Slot>(1024);
    size_t count_ = 0;
    int shift_ = 54;
    std::vector<uint64_t> hashes_;
    std::vector<Byte> prints_;  // kSignatureSize a row: a byte of each number
};

}  // namespace groundup
