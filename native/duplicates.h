// Documents that were kept, known by a hash and by bands of their MinHash signature: is the next one
// among them, or like one of them? A few hundred bytes a document, whatever its length.
#pragma once

#include <vector>

#include "shingles.h"

namespace groundup {

class DuplicateIndex {
public:
    // Similar is what agrees in `threshold` of the signature. Candidates share one of `num_bands` bands
    // of it; with none, only documents that are the same are found.
    DuplicateIndex(size_t num_bands, double threshold);

    struct Match {
        int64_t number;     // of the document that was there before, -1 for none
        int64_t is_same;    // byte for byte, but for white space at the ends
        double similarity;  // as the signatures estimate it
    };
    // Finds the document that came first among those like it, or keeps this one under `number`.
    Match add(int64_t number, uint64_t hash, const uint32_t* signature);

    size_t memory_bytes() const;

private:
    // Open addressing; a slot holds 32 bits of a key and a row, counted from 1.
    struct Table {
        struct Slot {
            uint32_t tag, row;
        };
        std::vector<Slot> slots = std::vector<Slot>(1024);
        size_t count = 0;
        int shift = 54;
        size_t home(uint32_t tag) const { return static_cast<size_t>((tag * kSeedA) >> shift); }
        void insert(uint32_t tag, uint32_t row);
    };

    void find_like(const Table& table, uint32_t tag, const Byte* prints, size_t& best, size_t& best_count) const;

    size_t num_bands_;
    double threshold_;
    Table exact_, bands_;
    std::vector<int64_t> numbers_;
    std::vector<uint64_t> hashes_;
    std::vector<Byte> prints_;  // kSignatureSize a row: a byte of each number
};

}  // namespace groundup
