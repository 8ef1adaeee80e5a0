#include "word_counts.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <queue>
#include <utility>

#include "parallel.h"

namespace groundup {

namespace {
constexpr size_t kFirstCapacity = size_t{1} << 16;
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kBatch = 64;
}  // namespace

WordCounts::WordCounts(size_t longest)
    : table_(std::make_unique<ZeroedBlock>(kFirstCapacity * sizeof(Entry))),
      mask_(kFirstCapacity - 1),
      longest_(std::min<size_t>(longest, UINT32_MAX)) {}

const Byte* WordCounts::word_of(const Entry& entry) const {
    return entry.high >> 56 ? reinterpret_cast<const Byte*>(&entry) : arena_.data() + entry.offset + 4;
}

size_t WordCounts::size_of(const Entry& entry) const {
    if (entry.high >> 56) return entry.high >> 56;
    uint32_t size;
    std::memcpy(&size, arena_.data() + entry.offset, 4);
    return size;
}

void WordCounts::add_key(const WordKey& key, uint64_t hash, const Byte* word, size_t size,
                         uint64_t count) {
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
        Entry& entry = entries()[i];
        if (entry.low == key.low && entry.high == key.high && entry.count &&
            (size <= kInlineWord ||
             (size_of(entry) == size && std::memcmp(word_of(entry), word, size) == 0))) {
            entry.count += count;
            return;
        }
        if (entry.count) continue;
        if (size > longest_)
            throw InputError("a pre-token of " + std::to_string(size) + " bytes is longer than the " +
                             std::to_string(longest_) + " that the memory allowed is enough for");
        // The entry comes behind all that may run out of memory.
        const uint64_t offset = arena_.size();
        if (size > kInlineWord) {
            const uint32_t stored = static_cast<uint32_t>(size);
            const Byte* stored_bytes = reinterpret_cast<const Byte*>(&stored);
            arena_.insert(arena_.end(), stored_bytes, stored_bytes + 4);
            arena_.insert(arena_.end(), word, word + size);
        }
        entry = {key.low, key.high, count, size > kInlineWord ? offset : 0};
        if (++used_ * 4 > mask_ * 3) grow();
        return;
    }
}

void WordCounts::grow() {
    const size_t old_capacity = mask_ + 1;
    auto old = std::make_unique<ZeroedBlock>(2 * old_capacity * sizeof(Entry));
    std::swap(old, table_);
    mask_ = 2 * old_capacity - 1;
    const Entry* from = reinterpret_cast<const Entry*>(old->data());
    for (size_t k = 0; k < old_capacity; k++) {
        if (!from[k].count) continue;
        size_t i = hash_of({from[k].low, from[k].high}) & mask_;
        while (entries()[i].count) i = (i + 1) & mask_;
        entries()[i] = from[k];
    }
}

void WordCounts::clear() {
    table_ = std::make_unique<ZeroedBlock>(kFirstCapacity * sizeof(Entry));
    mask_ = kFirstCapacity - 1;
    used_ = 0;
    arena_ = {};
}

void WordCounts::add(const Byte* word, size_t size, uint64_t count, const Byte* limit) {
    if (!size || !count) return;
    const WordKey key = word_key(word, size, limit);
    add_key(key, hash_of(key), word, size, count);
}

void WordCounts::count_words(const Byte* base, const uint32_t* ends, size_t count,
                             const Byte* limit) {
    uint32_t begin = 0;
    for (size_t done = 0; done < count; done += kBatch) {
        const size_t batch = std::min(kBatch, count - done);
        WordKey keys[kBatch];
        uint64_t hashes[kBatch];
        uint32_t at = begin;
        for (size_t i = 0; i < batch; i++) {
            keys[i] = word_key(base + at, ends[done + i] - at, limit);
            hashes[i] = hash_of(keys[i]);
            __builtin_prefetch(&entries()[hashes[i] & mask_], 1);
            at = ends[done + i];
        }
        for (size_t i = 0; i < batch; i++) {
            Entry& entry = entries()[hashes[i] & mask_];
            if (__builtin_expect(entry.low == keys[i].low && entry.high == keys[i].high &&
                                     is_inline(keys[i]), 1)) {
                entry.count++;
            } else {
                add_key(keys[i], hashes[i], base + begin, ends[done + i] - begin, 1);
            }
            begin = ends[done + i];
        }
    }
}

void WordCounts::add_text(Span text, ScanFunction scan, const SpecialTokens& special_tokens) {
    const Byte* const limit = text.data + text.size;
    std::vector<uint32_t> ends(kMaxEnds);
    size_t at = 0;
    while (at < text.size) {
        SpecialTokens::Match match{text.size, 0, 0};
        special_tokens.find(text, at, match);
        Span ordinary{text.data + at, match.begin - at};
        while (ordinary.size) {
            const size_t count = scan(ordinary, ends.data());
            count_words(ordinary.data, ends.data(), count, limit);
            ordinary = {ordinary.data + ends[count - 1], ordinary.size - ends[count - 1]};
        }
        at = match.begin + match.size;
    }
}

void WordCounts::add_all(const WordCounts& other) {
    other.for_each([this](const Byte* word, size_t size, uint64_t count) {
        // An inline word stands in its 32-byte entry, so 16 bytes can be read there.
        add(word, size, count, size <= kInlineWord ? word + 16 : word + size);
    });
}

namespace {

// A position in a run file.
class RunReader {
public:
    explicit RunReader(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rb"), &std::fclose) {
        if (!file_) throw InputError("cannot read the spilled run " + path);
        std::fseek(file_.get(), 0, SEEK_END);
        file_bytes_ = std::ftell(file_.get());
        std::rewind(file_.get());
        advance();
    }

    void advance() {
        uint32_t size;
        const size_t read = std::fread(&size, 1, 4, file_.get());
        if (read == 0 && !std::ferror(file_.get())) {
            done = true;
            return;
        }
        if (read != 4) throw InputError("the spilled run " + path_ + " is cut short");
        // A damaged size must not decide over memory.
        if (static_cast<long>(size) > file_bytes_) throw InputError("the spilled run " + path_ + " is damaged");
        word.resize(size);
        if (std::fread(&count, 8, 1, file_.get()) != 1 || std::fread(word.data(), 1, size, file_.get()) != size)
            throw InputError("the spilled run " + path_ + " is cut short");
    }

    std::string word;
    uint64_t count = 0;
    bool done = false;

private:
    std::string path_;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
    long file_bytes_ = 0;
};

}  // namespace

namespace {

// Writes words to a run file.
class RunWriter {
public:
    explicit RunWriter(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
        if (!file_) throw InputError("cannot write the run " + path);
    }
    ~RunWriter() {
        if (file_) std::fclose(file_);
    }
    RunWriter(const RunWriter&) = delete;
    RunWriter& operator=(const RunWriter&) = delete;

    void add(const Byte* word, size_t size, uint64_t count) {
        const uint32_t stored = static_cast<uint32_t>(size);
        ok_ = ok_ && std::fwrite(&stored, 4, 1, file_) == 1 &&
              std::fwrite(&count, 8, 1, file_) == 1 && std::fwrite(word, 1, size, file_) == size;
    }
    void close() {
        ok_ = std::fclose(file_) == 0 && ok_;
        file_ = nullptr;
        if (!ok_) throw InputError("cannot write the run " + path_ + ": is the disk full?");
    }

private:
    std::string path_;
    std::FILE* file_;
    bool ok_ = true;
};

}  // namespace

void visit_runs(const std::vector<std::string>& paths, const VisitWord& visit) {
    std::vector<std::unique_ptr<RunReader>> runs;
    for (const std::string& path : paths) {
        runs.push_back(std::make_unique<RunReader>(path));
        if (runs.back()->done) runs.pop_back();
    }
    const auto later = [&](size_t a, size_t b) { return runs[a]->word > runs[b]->word; };
    std::priority_queue<size_t, std::vector<size_t>, decltype(later)> queue(later);
    for (size_t i = 0; i < runs.size(); i++) queue.push(i);
    std::string word;
    uint64_t count = 0;
    const auto flush = [&] {
        if (count) visit(reinterpret_cast<const Byte*>(word.data()), word.size(), count);
    };
    while (!queue.empty()) {
        const size_t i = queue.top();
        queue.pop();
        if (count && runs[i]->word == word) {
            count += runs[i]->count;
        } else {
            flush();
            word = runs[i]->word;
            count = runs[i]->count;
        }
        runs[i]->advance();
        if (!runs[i]->done) queue.push(i);
    }
    flush();
}

void WordCounts::spill(const std::string& path) {
    struct Item {
        const Byte* word;
        size_t size;
        uint64_t count;
    };
    std::vector<Item> items;
    items.reserve(used_);
    for_each([&](const Byte* word, size_t size, uint64_t count) { items.push_back({word, size, count}); });
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
        const int order = std::memcmp(a.word, b.word, std::min(a.size, b.size));
        return order ? order < 0 : a.size < b.size;
    });
    RunWriter writer(path);
    for (const Item& item : items) writer.add(item.word, item.size, item.count);
    writer.close();
    clear();
}

std::vector<std::string> merge_runs(std::vector<std::string> paths) {
    constexpr size_t kOpenAtOnce = 64;
    for (size_t round = 0; paths.size() > kOpenAtOnce; round++) {
        std::vector<std::string> merged;
        for (size_t i = 0; i < paths.size(); i += kOpenAtOnce) {
            const auto first = paths.begin() + static_cast<std::ptrdiff_t>(i);
            const std::vector<std::string> group(first, paths.begin() + static_cast<std::ptrdiff_t>(
                                                            std::min(i + kOpenAtOnce, paths.size())));
            merged.push_back(group[0] + ".merged" + std::to_string(round));
            RunWriter writer(merged.back());
            visit_runs(group, [&](const Byte* word, size_t size, uint64_t count) {
                writer.add(word, size, count);
            });
            writer.close();
            for (const std::string& path : group) std::remove(path.c_str());
        }
        paths = std::move(merged);
    }
    return paths;
}

void count_words(Span text, ScanFunction scan, const SpecialTokens& special_tokens,
                 std::vector<WordCounts>& tables) {
    std::mutex mutex;
    size_t next = 0;
    // Starting a thread takes longer than a small text does.
    const size_t num_threads = text.size > 2 * kPieceBytes ? tables.size() : 1;
    run_threads(num_threads, [&](size_t thread) {
        while (true) {
            Span piece;
            {
                // Pieces are cut one after another, so that each cut is found once.
                std::lock_guard<std::mutex> lock(mutex);
                if (next >= text.size) return;
                const Span rest{text.data + next, text.size - next};
                size_t cut = rest.size;
                if (rest.size > 2 * kPieceBytes) {
                    cut = find_safe_cut(rest, kPieceBytes);
                    while (cut < rest.size && special_tokens.crosses(rest, cut))
                        cut = find_safe_cut(rest, cut + 1);
                }
                piece = {rest.data, cut};
                next += cut;
            }
            tables[thread].add_text(piece, scan, special_tokens);
        }
    });
}

void join(std::vector<WordCounts>& tables) {
    for (size_t i = 1; i < tables.size(); i++) {
        tables[0].add_all(tables[i]);
        tables[i].clear();
    }
}

}  // namespace groundup
