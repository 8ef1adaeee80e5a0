#include "batch.h"

#include <atomic>

#include "parallel.h"

namespace groundup {

namespace {
constexpr size_t kUnitBytes = size_t{1} << 17;
constexpr size_t kLongDocument = size_t{1} << 20;
}  // namespace

EncodeBatch::EncodeBatch(const Encoder& encoder, size_t num_documents, size_t num_threads,
                         uint32_t end_id)
    : encoder_(encoder), end_id_(end_id), counts_(num_documents, 0) {
    documents_.reserve(num_documents);
    for (size_t i = 0; i < num_threads; i++) outputs_.emplace_back(encoder.id_bytes());
}

void EncodeBatch::feed(Span document) {
    // documents_ never moves (its space is reserved), so only the count needs the lock.
    documents_.push_back(document);
    std::lock_guard<std::mutex> lock(mutex_);
    ready_ = documents_.size();
    arrived_.notify_one();
}

void EncodeBatch::finish_feeding(bool failed) {
    std::lock_guard<std::mutex> lock(mutex_);
    complete_ = true;
    failed_ = failed;
    arrived_.notify_all();
}

bool EncodeBatch::take(size_t& number, Unit& unit) {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait(lock, [this] { return next_ < ready_ || complete_; });
    if (failed_ || next_ >= ready_) return false;
    unit = {next_, 1, next_byte_, 0};
    const Span document = documents_[next_];
    if (document.size > kLongDocument) {
        const size_t left = document.size - next_byte_;
        const Span rest{document.data + next_byte_, left};
        const size_t cut = left > 2 * kUnitBytes ? encoder_.parallel_cut(rest, kUnitBytes) : left;
        unit.end = next_byte_ + cut;
        next_byte_ = unit.end;
        if (next_byte_ == document.size) {
            next_++;
            next_byte_ = 0;
        }
    } else {
        size_t bytes = document.size;
        unit.end = document.size;
        next_++;
        while (next_ < ready_ && bytes < kUnitBytes && documents_[next_].size <= kLongDocument) {
            bytes += documents_[next_++].size;
            unit.num_documents++;
        }
    }
    number = units_.size();
    units_.push_back(unit);
    return true;
}

void EncodeBatch::work(size_t thread) {
    std::unique_ptr<Workspace> workspace;
    IdBuffer& out = outputs_[thread];
    size_t number;
    Unit unit;
    while (take(number, unit)) {
        if (!workspace) workspace = encoder_.acquire();
        const size_t first = out.count;
        for (size_t i = 0; i < unit.num_documents; i++) {
            const size_t document = unit.first_document + i;
            Span text = documents_[document];
            bool last = true;
            if (unit.num_documents == 1) {
                last = unit.end == text.size;
                text = {text.data + unit.begin, unit.end - unit.begin};
            }
            const size_t before = out.count;
            encoder_.encode(text, out, *workspace);
            if (last && end_id_ != kNone) {
                Byte* room = out.room(1);
                std::memcpy(room, &end_id_, out.id_bytes());
                out.count++;
            }
            if (unit.num_documents > 1) {
                counts_[document] = static_cast<int64_t>(out.count - before);
            } else {
                std::lock_guard<std::mutex> lock(mutex_);
                counts_[document] += static_cast<int64_t>(out.count - before);
            }
        }
        std::lock_guard<std::mutex> lock(mutex_);
        units_[number].thread = thread;
        units_[number].first_id = first;
        units_[number].num_ids = out.count - first;
    }
    if (workspace) encoder_.release(std::move(workspace));
}

void EncodeBatch::collect(size_t num_threads, IdBuffer& ids, std::vector<int64_t>& offsets) {
    offsets.assign(1, 0);
    offsets.reserve(counts_.size() + 1);
    for (const int64_t count : counts_) offsets.push_back(offsets.back() + count);
    const size_t total = static_cast<size_t>(offsets.back());
    if (outputs_.size() == 1 || outputs_[0].count == total) {
        ids = std::move(outputs_[0]);
        ids.shrink();
        return;
    }
    ids.reserve(total);
    ids.count = total;
    std::vector<size_t> begins;
    size_t begin = 0;
    for (const Unit& unit : units_) {
        begins.push_back(begin);
        begin += unit.num_ids;
    }
    const size_t id_bytes = ids.id_bytes();
    std::atomic<size_t> next{0};
    run_threads(num_threads, [&](size_t) {
        for (size_t i; (i = next++) < units_.size();) {
            const Unit& unit = units_[i];
            std::memcpy(ids.data() + begins[i] * id_bytes,
                        outputs_[unit.thread].data() + unit.first_id * id_bytes,
                        unit.num_ids * id_bytes);
        }
    });
}

}  // namespace groundup
