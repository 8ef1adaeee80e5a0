#include "encoder.h"

#include <algorithm>

#include "word_cache.h"

namespace groundup {

template <class Id>
class WorkspaceOf final : public Workspace {
public:
    explicit WorkspaceOf(const Encoder& encoder)
        : Workspace(sizeof(Id)), encoder_(encoder), cache_(encoder.preloaded_.size() * 3 / 2), ends_(kMaxEnds), part_ends_(kMaxEnds) {
        // Allocate everything an ordinary stream needs now, so that encoding it allocates nothing.
        long_words_.make_room(encoder.merges_.num_merges(), kInitialWord);
        if (encoder.within_words_) within_words_ = std::make_unique<WorkspaceOf>(*encoder.within_words_);
        ids_.resize(kInitialWord);
        for (const uint32_t id : encoder.preloaded_) {
            const std::string& token = encoder.tokens_[id];
            const Byte* const word = reinterpret_cast<const Byte*>(token.data());
            const WordKey key = word_key(word, token.size(), word + token.size());
            cache_.insert(hash_of(key), key, word, token.size(), &id, 1);
        }
    }

    void encode(Span text, IdBuffer& out) override {
        SpecialTokens::Match match;
        size_t at = 0;
        while (encoder_.special_tokens_.find(text, at, match)) {
            encode_ordinary({text.data + at, match.begin - at}, text.data + text.size, out);
            out.push(match.id);
            at = match.begin + match.size;
        }
        encode_ordinary({text.data + at, text.size - at}, text.data + text.size, out);
    }

    size_t encode_stable(Span word, IdBuffer& out) override {
        const size_t window = encoder_.merges_.window_bytes();
        size_t done = 0;
        while (word.size - done > window)
            out.count += encode_window(word.data + done, reinterpret_cast<Id*>(out.room(window + kSlack)), done);
        return done;
    }

private:
    using Cache = WordCache<Id>;
    using Entry = typename Cache::Entry;
    static constexpr size_t kInitialWord = 4096;
    static constexpr size_t kBatch = 256;
    static constexpr size_t kSlack = Cache::kInlineIds;

    // Bytes up to `limit` may be read; `text` may end earlier.
    void encode_ordinary(Span text, const Byte* limit, IdBuffer& out) {
        for (Cursor cursor(*encoder_.splitter_); cursor.at < text.size;) {
            size_t begin;
            const size_t count = encoder_.splitter_->scan(text, cursor, begin, ends_.data());
            if (!count) continue;
            Id* const first = reinterpret_cast<Id*>(out.room(ends_[count - 1] + kSlack));
            out.count += static_cast<size_t>(encode_words(text.data + begin, ends_.data(), count, limit, first) - first);
        }
    }

    // One pre-token of the batch being looked up.
    struct Lookup {
        WordKey key;
        Entry* home;
    };

    // Encodes the words base[0..word_ends[0]), base[word_ends[0]..word_ends[1]), …; returns the end of the ids written.
    Id* encode_words(const Byte* base, const uint32_t* word_ends, size_t count, const Byte* limit, Id* next) {
        uint32_t begin = 0;
        for (size_t done = 0; done < count; done += kBatch) {
            const size_t batch = std::min(kBatch, count - done);
            const uint32_t* const ends = word_ends + done;
            Lookup lookups[kBatch];
            // Prefetch all cache lines before reading the first.
            const bool is_safe = limit - (base + ends[batch - 1]) >= 16;
            if (is_safe) look_up<true>(base, begin, ends, batch, limit, lookups);
            else look_up<false>(base, begin, ends, batch, limit, lookups);
            bool is_complete = false;
            for (size_t i = 0; i < batch; i++) {
                Entry* const home = lookups[i].home;
                if (__builtin_expect(!home->differs(lookups[i].key), 1)) {
                    std::memcpy(next, home->ids, 16);
                    next += home->num_ids();
                } else if (Entry* const other = Cache::beside(home); !other->differs(lookups[i].key)) {
                    std::memcpy(next, other->ids, 16);
                    next += other->num_ids();
                    std::swap(*home, *other);
                } else {
                    const uint32_t from = i ? ends[i - 1] : begin;
                    const Byte* const word = base + from;
                    size_t num_ids = cache_.find_slow(lookups[i].key, word, ends[i] - from, next);
                    if (!num_ids && !is_complete) {
                        insert_missing(base, from, ends + i, lookups + i, batch - i, next);
                        is_complete = true;
                        num_ids = cache_.find_slow(lookups[i].key, word, ends[i] - from, next);
                    }
                    next += num_ids ? num_ids : encode_slow(word, ends[i] - from, lookups[i].key, next);
                }
            }
            begin = ends[batch - 1];
        }
        return next;
    }

    template <bool kSafe>
    void look_up(const Byte* base, uint32_t begin, const uint32_t* ends, size_t count,
                 const Byte* limit, Lookup* lookups) const {
        const typename Cache::Homes homes = cache_.homes();
        for (size_t i = 0; i < count; i++) {
            const size_t size = ends[i] - begin;
            const WordKey key = kSafe && size <= kInlineWord ? short_key(base + begin, size)
                                                             : word_key(base + begin, size, limit);
            Entry* const home = homes.of(hash_of(key));
            __builtin_prefetch(home);
            lookups[i] = {key, home};
            begin = ends[i];
        }
    }

    // Merges the short words of a batch that the cache lacks, in groups.
    __attribute__((noinline)) void insert_missing(const Byte* base, uint32_t begin, const uint32_t* ends,
                                                  const Lookup* lookups, size_t count, Id* scratch) {
        ShortWord words[kWordGroup];
        const WordKey* keys[kWordGroup];
        size_t missing = 0;
        for (size_t i = 0; i < count; begin = ends[i++]) {
            const WordKey& key = lookups[i].key;
            const Byte* const word = base + begin;
            const size_t size = ends[i] - begin;
            const auto is_pending = [&](const WordKey* other) { return other->low == key.low && other->high == key.high; };
            if (lookups[i].home->differs(key) && Cache::beside(lookups[i].home)->differs(key) &&
                size <= kShortWord && !cache_.find_slow(key, word, size, scratch) &&
                !encoder_.find_unreachable(key, word, size) && std::none_of(keys, keys + missing, is_pending)) {
                keys[missing] = &key;
                words[missing].text = word;
                words[missing++].size = size;
            }
            if (missing < kWordGroup && i + 1 < count) continue;
            encoder_.merges_.encode_group(words, missing);
            for (size_t k = 0; k < missing; k++)
                cache_.insert(hash_of(*keys[k]), *keys[k], words[k].text, words[k].size, words[k].ids, words[k].count);
            missing = 0;
        }
    }

    __attribute__((noinline)) size_t encode_slow(const Byte* word, size_t size, const WordKey& key, Id* out) {
        size_t count = 1;
        if (const uint32_t* const id = encoder_.find_unreachable(key, word, size)) {
            ids_[0] = *id;
        } else if (size <= kShortWord) {
            count = encoder_.merges_.encode(word, size, ids_.data(), long_words_);
        } else {
            count = encode_long(word, size, out);
            if (size > kMaxCachedWord) return count;
            std::copy_n(out, count, room_for(count));
        }
        cache_.insert(hash_of(key), key, word, size, ids_.data(), count);
        return copy_ids(count, out);
    }

    // Encodes window by window if the whole word would need too much memory.
    size_t encode_long(const Byte* word, size_t size, Id* out) {
        size_t count = 0, done = 0;
        while (size - done > encoder_.merges_.window_bytes()) count += encode_window(word + done, out + count, done);
        return count + encode_whole(word + done, size - done, out + count);
    }

    // Writes the ids of a window that later text cannot affect; adds their bytes to `done`.
    size_t encode_window(const Byte* word, Id* out, size_t& done) {
        const size_t stable = encoder_.merges_.stable_bytes();
        encode_whole(word, encoder_.merges_.window_bytes(), out);
        size_t count = 0, used = 0;
        for (size_t end; (end = used + encoder_.offsets_[2 * size_t{out[count]} + 1]) <= stable; used = end) count++;
        done += used;
        return count;
    }

    size_t encode_whole(const Byte* word, size_t size, Id* out) {
        if (!within_words_) return encode_parts(word, size, out);
        const size_t count = within_words_->encode_parts(word, size, out);
        const std::vector<uint32_t> ids(out, out + count);
        return copy_ids(encoder_.merges_.merge_on(ids, room_for(count), long_words_), out);
    }

    // Encodes part by part, split where nothing merges.
    size_t encode_parts(const Byte* word, size_t size, Id* out) {
        const auto end_of_part = [&](size_t at) {
            while (++at < size && encoder_.inside_[size_t{word[at - 1]} << 8 | word[at]]) continue;
            return at;
        };
        size_t end = end_of_part(0), begin = 0;
        if (end == size) return copy_ids(encoder_.merges_.encode(word, size, room_for(size), long_words_), out);
        Id* next = out;
        for (; begin < size; begin = end, end = end_of_part(end)) {
            size_t count = 0;
            for (part_ends_[count++] = static_cast<uint32_t>(end - begin); end < size && count < kMaxEnds; count++)
                part_ends_[count] = static_cast<uint32_t>((end = end_of_part(end)) - begin);
            next = encode_words(word + begin, part_ends_.data(), count, word + size, next);
        }
        return static_cast<size_t>(next - out);
    }

    uint32_t* room_for(size_t size) {
        if (ids_.size() < size) ids_.resize(size);
        return ids_.data();
    }
    size_t copy_ids(size_t count, Id* out) const {
        for (size_t i = 0; i < count; i++) out[i] = static_cast<Id>(ids_[i]);
        return count;
    }

    const Encoder& encoder_;
    Cache cache_;
    std::vector<uint32_t> ends_, part_ends_;
    std::vector<uint32_t> ids_;
    LongWordSpace long_words_;
    std::unique_ptr<WorkspaceOf> within_words_;
};

Encoder::Encoder(Vocabulary vocabulary, std::shared_ptr<const Splitter> splitter)
    : tokens_(std::move(vocabulary.tokens)),
      merges_(tokens_, vocabulary.present, vocabulary.merges),
      special_tokens_(vocabulary.special_tokens),
      splitter_(std::move(splitter)) {
    offsets_.reserve(2 * tokens_.size());
    for (size_t id = 0; id < tokens_.size(); id++) {
        offsets_.push_back(static_cast<uint32_t>(blob_.size()));
        offsets_.push_back(vocabulary.present[id] ? static_cast<uint32_t>(tokens_[id].size()) : kNone);
        blob_.insert(blob_.end(), tokens_[id].begin(), tokens_[id].end());
    }
    blob_.resize(blob_.size() + 16);
    std::vector<bool> special(tokens_.size());
    for (const auto& [token, id] : vocabulary.special_tokens) {
        if (id >= tokens_.size())
            throw InputError("special token '" + token + "' has id " + std::to_string(id) +
                             ", beyond the vocabulary");
        special[id] = true;
    }
    inside_.resize(65536);
    for (size_t rank = 0; rank < vocabulary.merges.size(); rank++) {
        const auto& [left, right] = vocabulary.merges[rank];
        inside_[size_t{static_cast<Byte>(left.back())} << 8 | static_cast<Byte>(right[0])] = true;
        if (within_words_ || !merges_.is_ordered() || left.back() == ' ' || right[0] != ' ') continue;
        Vocabulary first{tokens_, vocabulary.present, vocabulary.merges, {}, false};
        first.merges.resize(rank);
        within_words_ = std::make_unique<Encoder>(std::move(first), splitter_);
    }
    LongWordSpace space;
    std::vector<uint32_t> ids;
    for (uint32_t id = 0; id < tokens_.size(); id++) {
        const std::string& token = tokens_[id];
        if (!vocabulary.present[id] || token.empty() || special[id]) continue;
        const bool may_preload = id < kMaxPreloaded && token.size() <= kInlineWord;
        if (!may_preload && !vocabulary.whole_words) continue;
        ids.resize(token.size());
        const Byte* bytes = reinterpret_cast<const Byte*>(token.data());
        const bool is_reachable = merges_.encode(bytes, token.size(), ids.data(), space) == 1 && ids[0] == id;
        if (vocabulary.whole_words && !is_reachable) {
            unreachable_.emplace(token, id);
            unreachable_hashes_[hash_of(word_key(bytes, token.size(), bytes + token.size())) & 65535] = true;
        }
        if (may_preload && (is_reachable || vocabulary.whole_words)) preloaded_.push_back(id);
    }
    borrow();
}

Encoder::~Encoder() = default;

std::shared_ptr<Workspace> Encoder::borrow(size_t thread) const {
    constexpr size_t kKept = 64;
    std::unique_ptr<Workspace> workspace;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto& one : free_)
            if (one->thread == thread) std::swap(one, free_.back());
        if (!free_.empty()) {
            workspace = std::move(free_.back());
            free_.pop_back();
        }
    }
    if (!workspace && id_bytes() == 2) workspace = std::make_unique<WorkspaceOf<uint16_t>>(*this);
    if (!workspace) workspace = std::make_unique<WorkspaceOf<uint32_t>>(*this);
    workspace->thread = thread;
    return {workspace.release(), [this](Workspace* used) {
        std::unique_ptr<Workspace> back(used);
        std::lock_guard<std::mutex> lock(mutex_);
        if (free_.size() < kKept) free_.push_back(std::move(back));
    }};
}

void Encoder::encode(Span text, IdBuffer& out) const {
    constexpr size_t kShort = size_t{1} << 16;
    const std::shared_ptr<Workspace> workspace = borrow();
    if (text.size > kShort) {
        out.reserve(text.size / 4 + 32);
        return workspace->encode(text, out);
    }
    IdBuffer& ids = workspace->ids;
    ids.count = 0;
    workspace->encode(text, ids);
    out.reserve(out.count = ids.count);
    out.copy(ids, 0, ids.count, 0);
}

size_t Encoder::encode_stream(Span text, IdBuffer& out) const {
    const size_t cut = find_stream_cut(text, *splitter_, special_tokens_);
    if (cut) {
        encode({text.data, cut}, out);
        return cut;
    }
    // No cut between pre-tokens: try inside the first one, if it is long.
    constexpr size_t kTried = 64;
    const Span stable = stable_prefix(text, special_tokens_);
    if (stable.size < 2 * merges_.window_bytes()) return 0;
    std::vector<size_t> positions{borrow()->encode_stable(stable, out)};
    const size_t num_ids = out.count;
    while (out.count && positions.size() < kTried) {
        positions.push_back(positions.back() - offsets_[2 * size_t{out.at(--out.count)} + 1]);
    }
    std::reverse(positions.begin(), positions.end());
    const size_t found = splitter_->find_resumption(stable, positions);
    const auto position = std::find(positions.begin(), positions.end(), found);
    out.count = found ? num_ids - static_cast<size_t>(positions.end() - position - 1) : 0;
    return found;
}

size_t Encoder::decoded_size(const uint32_t* ids, size_t count) const {
    size_t size = 0;
    for (size_t i = 0; i < count; i++) size += offsets_[2 * size_t{ids[i]} + 1];
    return size;
}

void Encoder::decode(const uint32_t* ids, size_t count, Byte* out) const {
    for (size_t i = 0; i < count; i++) {
        const Byte* token = blob_.data() + offsets_[2 * size_t{ids[i]}];
        const size_t size = offsets_[2 * size_t{ids[i]} + 1];
        std::memcpy(out, token, 16);
        if (size > 16) std::memcpy(out, token, size);
        out += size;
    }
}

}  // namespace groundup
