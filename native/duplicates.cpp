#include "duplicates.h"

#include <cstring>

namespace groundup {

namespace {
// Documents that share a band and are not alike, a form letter's perhaps: more are not looked at.
constexpr size_t kMostAlike = 64;

uint32_t tag_of(uint64_t key) { return static_cast<uint32_t>(mix(key ^ kSeedA, kSeedB) >> 32); }

// Of so many equal bytes: one of 256 is equal by chance.
double similarity_of(size_t count) {
    return (static_cast<double>(count) / kSignatureSize - 1.0 / 256) / (1 - 1.0 / 256);
}
}  // namespace

DuplicateIndex::DuplicateIndex(size_t num_bands, double threshold) : num_bands_(num_bands), threshold_(threshold) {
    if (num_bands && kSignatureSize % num_bands) throw InputError("a signature has no such number of bands");
}

void DuplicateIndex::Table::insert(uint32_t tag, uint32_t row) {
    if (2 * ++count > slots.size()) {
        std::vector<Slot> old(slots.size() * 2);
        old.swap(slots);
        shift--;
        count = 1;
        for (const Slot& slot : old)
            if (slot.row) insert(slot.tag, slot.row);
    }
    size_t at = home(tag);
    while (slots[at].row) at = (at + 1) & (slots.size() - 1);
    slots[at] = {tag, row};
}

DuplicateIndex::Match DuplicateIndex::add(int64_t number, uint64_t hash, const uint32_t* signature) {
    const uint32_t exact_tag = tag_of(hash);
    for (size_t at = exact_.home(exact_tag); exact_.slots[at].row; at = (at + 1) & (exact_.slots.size() - 1)) {
        const size_t row = exact_.slots[at].row - 1;
        if (exact_.slots[at].tag == exact_tag && hashes_[row] == hash) return {numbers_[row], 1, 1.0};
    }
    Byte prints[kSignatureSize];
    for (size_t i = 0; i < kSignatureSize; i++) prints[i] = static_cast<Byte>((signature[i] * 0x9E3779B1u) >> 24);
    const size_t width = num_bands_ ? kSignatureSize / num_bands_ : 0;
    std::vector<uint32_t> tags(num_bands_);
    size_t best = SIZE_MAX, best_count = 0;
    for (size_t band = 0; band < num_bands_; band++) {
        uint64_t key = band + 1;
        for (size_t i = 0; i < width; i++) key = mix(key ^ signature[band * width + i], kSeedB ^ key);
        tags[band] = tag_of(key);
        find_like(bands_, tags[band], prints, best, best_count);
    }
    if (best != SIZE_MAX) {
        return {numbers_[best], 0, similarity_of(best_count)};
    }
    if (numbers_.size() >= UINT32_MAX - 1) throw InputError("more documents than can be told apart");
    // Memory may end in between: a row counts once it has its number, and what leads to it comes last.
    const uint32_t row = static_cast<uint32_t>(numbers_.size()) + 1;
    if (num_bands_) {
        prints_.resize(row * kSignatureSize);
        std::memcpy(prints_.data() + (row - 1) * kSignatureSize, prints, kSignatureSize);
    }
    hashes_.resize(row);
    hashes_.back() = hash;
    numbers_.push_back(number);
    exact_.insert(exact_tag, row);
    for (const uint32_t tag : tags) {
        size_t alike = 0;
        for (size_t at = bands_.home(tag); bands_.slots[at].row; at = (at + 1) & (bands_.slots.size() - 1))
            alike += bands_.slots[at].tag == tag;
        if (alike < kMostAlike) bands_.insert(tag, row);
    }
    return {-1, 0, 0.0};
}

void DuplicateIndex::find_like(const Table& table, uint32_t tag, const Byte* prints, size_t& best,
                               size_t& best_count) const {
    for (size_t at = table.home(tag); table.slots[at].row; at = (at + 1) & (table.slots.size() - 1)) {
        if (table.slots[at].tag != tag) continue;
        const size_t row = table.slots[at].row - 1;
        if (row >= best) continue;
        const Byte* const other = prints_.data() + row * kSignatureSize;
        size_t count = 0;
        for (size_t i = 0; i < kSignatureSize; i++) count += prints[i] == other[i];
        if (similarity_of(count) >= threshold_) {
            best = row;
            best_count = count;
        }
    }
}

size_t DuplicateIndex::memory_bytes() const {
    return (exact_.slots.capacity() + bands_.slots.capacity()) * sizeof(Table::Slot) + prints_.capacity() +
           numbers_.capacity() * sizeof(int64_t) + hashes_.capacity() * sizeof(uint64_t);
}

}  // namespace groundup
