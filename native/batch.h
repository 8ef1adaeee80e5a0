// Many documents to one run of ids, on several threads, in the documents' order.
//
// Documents may still be arriving while the first are being encoded: `feed` announces them.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "encoder.h"

namespace groundup {

class EncodeBatch {
public:
    // `end_id` goes behind every document, unless it is kNone.
    EncodeBatch(const Encoder& encoder, size_t num_documents, size_t num_threads, uint32_t end_id);

    // From one thread: the next document; then that there are no more (or that reading them failed).
    void feed(Span document);
    void finish_feeding(bool failed = false);

    // Encodes until nothing is left. Each thread calls it once with its own number.
    void work(size_t thread);

    // After all threads are done: the ids, and where each document begins (and the last ends).
    void collect(size_t num_threads, IdBuffer& ids, std::vector<int64_t>& offsets);

private:
    // A few whole documents, or a part of a long one.
    struct Unit {
        size_t first_document, num_documents;
        size_t begin, end;  // bytes of the document, where it is a part
        size_t thread = 0;
        size_t first_id = 0, num_ids = 0;
    };
    bool take(size_t& number, Unit& unit);

    const Encoder& encoder_;
    const uint32_t end_id_;
    std::vector<Span> documents_;
    std::vector<int64_t> counts_;  // ids of each document
    std::vector<Unit> units_;
    std::vector<IdBuffer> outputs_;
    std::mutex mutex_;
    std::condition_variable arrived_;
    size_t ready_ = 0, next_ = 0, next_byte_ = 0;
    bool complete_ = false, failed_ = false;
};

}  // namespace groundup
