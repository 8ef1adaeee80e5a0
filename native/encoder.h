// Encodes text to ids and decodes ids for one vocabulary. Thread-safe.
#pragma once

#include <algorithm>
#include <bitset>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory.h"
#include "merges.h"
#include "stream_cut.h"
#include "word_key.h"

namespace groundup {

struct Vocabulary {
    std::vector<std::string> tokens;  // by id
    std::vector<bool> present;        // false for unused ids
    std::vector<std::pair<std::string, std::string>> merges;
    std::vector<std::pair<std::string, uint32_t>> special_tokens;
    bool whole_words = false;  // a pre-token in the vocabulary becomes that token, whatever the merges
};

// Encoded ids: two bytes each if all of the vocabulary's fit, else four.
class IdBuffer {
public:
    explicit IdBuffer(size_t id_bytes) : id_bytes_(id_bytes) {}
    size_t id_bytes() const { return id_bytes_; }
    size_t count = 0;

    // Reserves space for `more` ids after the current ones.
    Byte* room(size_t more) {
        block_.reserve((count + more) * id_bytes_);
        return block_.data() + count * id_bytes_;
    }
    void reserve(size_t ids) { if (ids * id_bytes_ > block_.capacity()) block_.resize(ids * id_bytes_); }
    void push(uint32_t id) {
        std::memcpy(room(1), &id, id_bytes_);
        count++;
    }
    uint32_t at(size_t i) const {
        return id_bytes_ == 2 ? reinterpret_cast<uint16_t*>(data())[i] : reinterpret_cast<uint32_t*>(data())[i];
    }
    void copy(const IdBuffer& from, size_t first, size_t size, size_t position) {
        std::copy_n(from.data() + first * id_bytes_, size * id_bytes_, data() + position * id_bytes_);
    }
    void shrink() { block_.resize(count * id_bytes_); }
    Byte* data() const { return block_.data(); }
    GrowingBlock take() { return std::move(block_); }

private:
    size_t id_bytes_;
    GrowingBlock block_;
};

// The state of one encoding thread, mainly its word cache.
class Workspace {
public:
    explicit Workspace(size_t id_bytes) : ids(id_bytes) {}
    virtual ~Workspace() = default;
    size_t thread = 0;  // that borrowed it
    IdBuffer ids;       // of a short text, before they are copied to memory of the right size
    virtual void encode(Span text, IdBuffer& out) = 0;
    // Encodes the prefix of a long pre-token that later text cannot affect; returns its size in bytes.
    virtual size_t encode_stable(Span word, IdBuffer& out) = 0;
};

// Only ids below this are preloaded: later ones are rare words, and each costs 64 bytes per thread.
constexpr uint32_t kMaxPreloaded = 1u << 16;

class Encoder {
public:
    Encoder(Vocabulary vocabulary, std::shared_ptr<const Splitter> splitter);
    ~Encoder();

    size_t vocab_size() const { return tokens_.size(); }
    size_t id_bytes() const { return tokens_.size() <= 65536 ? 2 : 4; }

    void encode(Span text, IdBuffer& out) const;  // `out` is empty

    // Encodes the prefix of a stream that later text cannot affect; returns its size in bytes.
    size_t encode_stream(Span text, IdBuffer& out) const;

    // Returns a position at or after `from` at which a long text can be split between threads.
    size_t parallel_cut(Span text, size_t from) const { return find_cut(text, from, *splitter_, special_tokens_); }

    size_t decoded_size(const uint32_t* ids, size_t count) const;
    void decode(const uint32_t* ids, size_t count, Byte* out) const;  // may write 16 bytes past the end
    bool knows(uint64_t id) const { return id < tokens_.size() && offsets_[2 * id + 1] != kNone; }

    // Borrows a workspace, if possible the one that this thread of a batch used last, until it is released.
    std::shared_ptr<Workspace> borrow(size_t thread = 0) const;

private:
    template <class Id>
    friend class WorkspaceOf;

    const uint32_t* find_unreachable(const WordKey& key, const Byte* word, size_t size) const {
        if (!unreachable_hashes_[hash_of(key) & 65535]) return nullptr;
        const auto found = unreachable_.find(std::string(reinterpret_cast<const char*>(word), size));
        return found == unreachable_.end() ? nullptr : &found->second;
    }

    std::vector<std::string> tokens_;
    std::vector<uint32_t> offsets_;  // of every id: its offset in blob_ and its size
    std::vector<Byte> blob_;
    MergeTable merges_;
    // inside_[a << 8 | b]: whether a token may contain the bytes a b. A long pre-token is split between all other
    // pairs of bytes, and its parts are looked up like words. If later merges cross words (SuperBPE), an encoder
    // with only the merges before the first such one does this.
    std::vector<bool> inside_;
    std::unique_ptr<Encoder> within_words_;
    SpecialTokens special_tokens_;
    std::vector<uint32_t> preloaded_;  // tokens inserted into every new cache
    std::unordered_map<std::string, uint32_t> unreachable_;  // whole words that merges do not produce
    std::bitset<65536> unreachable_hashes_;
    std::shared_ptr<const Splitter> splitter_;

    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Workspace>> free_;
};

// Encodes all documents, with `end_id` after each unless it is kNone. `offsets` gets the index of each document's
// first id, and the total.
void encode_batch(const Encoder& encoder, const std::vector<Span>& documents, size_t num_threads, uint32_t end_id,
                  IdBuffer& ids, std::vector<int64_t>& offsets);

}  // namespace groundup
