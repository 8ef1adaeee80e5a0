// Text to ids and back, for one vocabulary. Safe to use from many threads at once.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory.h"
#include "merges.h"
#include "stream_cut.h"

namespace groundup {

struct Vocabulary {
    std::vector<std::string> tokens;  // by id
    std::vector<bool> present;        // ids may leave gaps
    std::vector<std::pair<std::string, std::string>> merges;
    std::vector<std::pair<std::string, uint32_t>> special_tokens;
    bool whole_words = false;  // a pre-token that is in the vocabulary is that token, merges or not
};

// Ids as they come out: two bytes each where the vocabulary allows, else four.
class IdBuffer {
public:
    explicit IdBuffer(size_t id_bytes) : id_bytes_(id_bytes) {}
    size_t id_bytes() const { return id_bytes_; }
    size_t count = 0;

    // Room for `more` ids behind those there are.
    Byte* room(size_t more) {
        block_.reserve((count + more) * id_bytes_);
        return block_.data() + count * id_bytes_;
    }
    void reserve(size_t ids) {
        if (ids * id_bytes_ > block_.capacity()) block_.resize(ids * id_bytes_);
    }
    void shrink() { block_.resize(count * id_bytes_); }
    Byte* data() const { return block_.data(); }
    GrowingBlock take() { return std::move(block_); }

private:
    size_t id_bytes_;
    GrowingBlock block_;
};

// What one thread needs while it encodes: the word cache above all.
class Workspace {
public:
    virtual ~Workspace() = default;
    virtual void encode(Span text, IdBuffer& out) = 0;
    // Encodes what holds of the beginning of a long pre-token, whatever follows it; returns its bytes.
    virtual size_t encode_settled(Span word, IdBuffer& out) = 0;
};

// Ids below this are tried: those behind them are rare words, and each costs 64 bytes a thread.
constexpr uint32_t kMostReadyWords = 1u << 16;

class Encoder {
public:
    Encoder(Vocabulary vocabulary, std::shared_ptr<const Splitter> splitter);
    ~Encoder();

    size_t vocab_size() const { return tokens_.size(); }
    size_t id_bytes() const { return tokens_.size() <= 65536 ? 2 : 4; }

    void encode(Span text, IdBuffer& out) const;

    // The ids that what comes later in a stream cannot change; returns how many bytes they stand for.
    size_t encode_stream(Span text, IdBuffer& out) const;

    // A position at or after `from` to cut one long text for several threads.
    size_t parallel_cut(Span text, size_t from) const { return find_cut(text, from, *splitter_, special_tokens_); }

    size_t decoded_size(const uint32_t* ids, size_t count) const;
    void decode(const uint32_t* ids, size_t count, Byte* out) const;  // 16 bytes behind out's end
    bool knows(uint64_t id) const { return id < tokens_.size() && offsets_[2 * id + 1] != kNone; }

    // A workspace for one thread, which comes back when it is let go.
    std::shared_ptr<Workspace> borrow() const;

private:
    template <class Id>
    friend class WorkspaceOf;

    std::vector<std::string> tokens_;
    std::vector<uint32_t> offsets_;  // begin and size in blob_ of every id
    std::vector<Byte> blob_;
    MergeTable merges_;
    // What a long pre-token is cut into, so that its parts are looked up as words are: no token has two bytes
    // beside each other that are not `inside_`. Where later merges go across words, the ones before the first
    // such do this, as an encoder of their own.
    std::vector<bool> inside_;
    std::unique_ptr<Encoder> within_words_;
    SpecialTokens special_tokens_;
    std::vector<uint32_t> ready_words_;  // tokens that words are, put into the cache beforehand
    std::unordered_map<std::string, uint32_t> unreachable_;  // whole words that merges do not make
    std::shared_ptr<const Splitter> splitter_;

    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Workspace>> free_;
};

// Writes the ids of all documents, `end_id` behind each unless it is kNone, and where each document begins and
// the last ends.
void encode_batch(const Encoder& encoder, const std::vector<Span>& documents, size_t num_threads, uint32_t end_id,
                  IdBuffer& ids, std::vector<int64_t>& offsets);

}  // namespace groundup
