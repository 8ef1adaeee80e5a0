// Memory directly from the operating system: zeroed, on huge pages where available, grown in place where possible.
#pragma once

#include <cstdlib>
#include <new>
#include <utility>

#include "types.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace groundup {

// A zeroed block of fixed size.
class ZeroedBlock {
public:
    explicit ZeroedBlock(size_t size) {
#if defined(__linux__)
        // Huge pages are aligned to their size, so map one page more and align.
        constexpr size_t kLargePage = size_t{1} << 21;
        mapped_ = size >= kLargePage ? size + kLargePage : size;
        base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base_ == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<Byte*>(base_);
        if (size >= kLargePage) {
            data_ += (kLargePage - reinterpret_cast<uintptr_t>(base_) % kLargePage) % kLargePage;
            madvise(data_, size, MADV_HUGEPAGE);
        }
#else
        base_ = std::calloc(size + 64, 1);
        if (!base_) throw std::bad_alloc();
        data_ = static_cast<Byte*>(base_);
        data_ += (64 - reinterpret_cast<uintptr_t>(base_) % 64) % 64;
#endif
    }
    ~ZeroedBlock() {
#if defined(__linux__)
        munmap(base_, mapped_);
#else
        std::free(base_);
#endif
    }
    ZeroedBlock(const ZeroedBlock&) = delete;
    ZeroedBlock& operator=(const ZeroedBlock&) = delete;

    Byte* data() const { return data_; }

private:
    void* base_ = nullptr;
    Byte* data_ = nullptr;
#if defined(__linux__)
    size_t mapped_ = 0;
#endif
};

// A growable byte array. Large ones use mmap, so they grow without being copied and use huge pages. Smaller ones use
// malloc, which recycles freed memory: fresh pages for every call cost 4% when encoding 10 MB.
class GrowingBlock {
public:
    GrowingBlock() = default;
    ~GrowingBlock() { drop(); }
    GrowingBlock(GrowingBlock&& other) noexcept { swap(other); }
    GrowingBlock& operator=(GrowingBlock&& other) noexcept {
        swap(other);
        return *this;
    }

    Byte* data() const { return data_; }
    size_t capacity() const { return capacity_; }

    void reserve(size_t bytes) {
        if (bytes > capacity_) resize(bytes + bytes / 2);
    }

    void resize(size_t bytes) {
        if (!bytes) bytes = 1;
#if defined(__linux__)
        if (mapped_ || (!data_ && bytes >= kMapped)) {
            void* moved = data_ ? mremap(data_, capacity_, bytes, MREMAP_MAYMOVE)
                                : mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (moved == MAP_FAILED) throw std::bad_alloc();
            if (bytes > capacity_) madvise(moved, bytes, MADV_HUGEPAGE);
            data_ = static_cast<Byte*>(moved);
            mapped_ = true;
            capacity_ = bytes;
            return;
        }
#endif
        void* grown = std::realloc(data_, bytes);
        if (!grown) throw std::bad_alloc();
        data_ = static_cast<Byte*>(grown);
        capacity_ = bytes;
    }

private:
    static constexpr size_t kMapped = size_t{1} << 23;

    void drop() {
#if defined(__linux__)
        if (mapped_) return void(munmap(data_, capacity_));
#endif
        std::free(data_);
    }
    void swap(GrowingBlock& other) {
        std::swap(data_, other.data_);
        std::swap(capacity_, other.capacity_);
        std::swap(mapped_, other.mapped_);
    }

    Byte* data_ = nullptr;
    size_t capacity_ = 0;
    bool mapped_ = false;
};

}  // namespace groundup
