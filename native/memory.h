// Blocks of memory straight from the system: zeroed, on large pages where it offers them, and
// growing in place where it can.
#pragma once

#include <cstdlib>
#include <new>

#include "types.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace groundup {

// A fixed, zeroed table.
class ZeroedBlock {
public:
    explicit ZeroedBlock(size_t size) : size_(size) {
#if defined(__linux__)
        // Large pages begin at multiples of their size, so map a little more and align.
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
    size_t size() const { return size_; }
    void clear() { std::memset(data_, 0, size_); }

private:
    void* base_ = nullptr;
    Byte* data_ = nullptr;
    size_t size_ = 0;
#if defined(__linux__)
    size_t mapped_ = 0;
#endif
};

// A growing run of bytes; realloc moves large blocks without copying them.
class GrowingBlock {
public:
    GrowingBlock() = default;
    ~GrowingBlock() { std::free(data_); }
    GrowingBlock(GrowingBlock&& other) noexcept { swap(other); }
    GrowingBlock& operator=(GrowingBlock&& other) noexcept {
        swap(other);
        return *this;
    }

    Byte* data() const { return data_; }
    size_t capacity() const { return capacity_; }

    void reserve(size_t bytes) {
        if (bytes <= capacity_) return;
        resize(bytes + bytes / 2);
    }
    void resize(size_t bytes) {
        void* grown = std::realloc(data_, bytes ? bytes : 1);
        if (!grown) throw std::bad_alloc();
        data_ = static_cast<Byte*>(grown);
        capacity_ = bytes;
    }

private:
    void swap(GrowingBlock& other) {
        std::swap(data_, other.data_);
        std::swap(capacity_, other.capacity_);
    }
    Byte* data_ = nullptr;
    size_t capacity_ = 0;
};

}  // namespace groundup
