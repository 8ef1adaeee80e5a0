// All words are stored in one flat array of symbols, most frequent first, separated by marks. A symbol is stored at
// the positions of its first and last byte, so both neighbors of a position are found without links. Each pair has a
// list of positions, which are checked when they are used. All positions of a pair arise during a single merge (the
// one that produces the later of its two symbols), in order, so each list is written once and the pair's count only
// decreases afterwards: a heap whose counts may be too high suffices. Pairs rarer than a limit, which is most of
// them, are left out until they are needed; then all pairs are recounted.
#include "trainer.h"

#include <algorithm>
#include <atomic>
#include <queue>
#include <string>

#include "encoder.h"
#include "parallel.h"

namespace groundup {

namespace {

struct Pair {
    uint32_t left, right;
    uint64_t count;
    uint64_t first;      // index of its positions in the arena
    uint32_t num_positions;
};

// Maps pairs to numbers, by open addressing.
class PairIndex {
public:
    PairIndex() : slots_(1 << 16, Slot{UINT64_MAX, 0}) {}

    uint32_t find(uint32_t left, uint32_t right) const {
        const uint64_t key = uint64_t{left} << 32 | right;
        const size_t mask = slots_.size() - 1;
        for (size_t i = mix(key ^ kSeedA, kSeedB) & mask;; i = (i + 1) & mask) {
            if (slots_[i].key == key) return slots_[i].number;
            if (slots_[i].key == UINT64_MAX) return kNone;
        }
    }
    void insert(uint32_t left, uint32_t right, uint32_t number) {
        if (++used_ * 3 > slots_.size() * 2) grow();
        insert_slot({uint64_t{left} << 32 | right, number});
    }

private:
    struct Slot {
        uint64_t key;
        uint32_t number;
    };
    void insert_slot(Slot slot) {
        const size_t mask = slots_.size() - 1;
        size_t i = mix(slot.key ^ kSeedA, kSeedB) & mask;
        while (slots_[i].key != UINT64_MAX) i = (i + 1) & mask;
        slots_[i] = slot;
    }
    void grow() {
        std::vector<Slot> old(slots_.size() * 2, Slot{UINT64_MAX, 0});
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.key != UINT64_MAX) insert_slot(slot);
        }
    }
    std::vector<Slot> slots_;
    size_t used_ = 0;
};

struct Word {
    const Byte* bytes;
    size_t size;
    uint64_t count;
};

// The count of the word at a position; words with equal counts are adjacent.
class Weights {
public:
    // Sets the count of the word at `begin` and of all later ones.
    void add(uint64_t begin, uint64_t count) {
        if (counts_.empty() || counts_.back() != count) {
            begins_.push_back(begin);
            counts_.push_back(count);
        }
    }
    void finish(uint64_t size) {
        if (begins_.empty()) return;  // there are no words, so at() is never called
        begins_.push_back(UINT64_MAX);
        run_at_.reserve(size / kStep + 1);
        size_t run = 0;
        for (uint64_t position = 0; position <= size; position += kStep) {
            while (begins_[run + 1] <= position) run++;
            run_at_.push_back(static_cast<uint32_t>(run));
        }
    }
    uint64_t at(uint64_t position) const {
        size_t run = run_at_[position / kStep];
        while (begins_[run + 1] <= position) run++;
        return counts_[run];
    }

private:
    static constexpr uint64_t kStep = 16;
    std::vector<uint64_t> begins_, counts_;
    std::vector<uint32_t> run_at_;
};

// Symbol is uint16_t or uint32_t; Position is uint32_t or uint64_t.
template <class Symbol, class Position>
class Trainer {
public:
    // Continues from the existing merges up to `num_merges`; a token has at most `max_words` words (0: any number).
    Trainer(Training& training, size_t num_merges, size_t max_words, size_t num_threads)
        : training_(training), num_merges_(num_merges), max_words_(max_words), num_threads_(num_threads) {
        for (int b = 0; b < 256; b++) add_token(std::string(1, static_cast<char>(b)));
        for (const auto& [left, right] : training.merges) add_token(tokens_[left] + tokens_[right]);
        sizes_.assign(tokens_.size(), 1);
        left_group_.assign(256 + num_merges, kNone);
        right_group_.assign(256 + num_merges, kNone);
    }

    void run(WordCounts& counts, std::vector<Word> words, const std::function<void()>& poll) {
        store_words(words);
        words = {};
        counts.clear();
        const uint64_t num_left = std::max<uint64_t>(num_merges_ - training_.merges.size(), 1);
        limit_ = std::max<uint64_t>(training_.num_symbols / ((training_.merges.empty() ? 96 : 32) * num_left), 1);
        index_pairs();
        while (training_.merges.size() < num_merges_) {
            if (heap_.empty() || heap_.top().count < limit_) {
                if (limit_ == 1) break;
                limit_ = std::max<uint64_t>(limit_ / 16, 1);
                index_pairs();
                continue;
            }
            const Ranked top = heap_.top();
            heap_.pop();
            Pair& pair = pairs_[top.pair];
            if (pair.count != top.count) {
                if (pair.count) heap_.push(rank(top.pair));
                continue;
            }
            training_.merges.emplace_back(pair.left, pair.right);
            merge(top.pair);
            if (training_.merges.size() % 256 == 0) poll();
        }
    }

private:
    static constexpr Symbol kMark = static_cast<Symbol>(-1);  // between words
    static constexpr Symbol kGone = static_cast<Symbol>(-2);  // at the first byte of a merged right half

    struct Ranked {
        uint64_t count;
        uint64_t prefix;  // first eight bytes of the left token, which decide most ties
        uint32_t pair;
    };
    struct HasLowerPriority {
        const Trainer* trainer;
        bool operator()(const Ranked& a, const Ranked& b) const {
            if (a.count != b.count) return a.count < b.count;
            if (a.prefix != b.prefix) return a.prefix < b.prefix;
            const Pair& x = trainer->pairs_[a.pair];
            const Pair& y = trainer->pairs_[b.pair];
            if (x.left != y.left) return trainer->tokens_[x.left] < trainer->tokens_[y.left];
            return trainer->tokens_[x.right] < trainer->tokens_[y.right];
        }
    };
    // The positions of one new pair, during the merge that creates it.
    struct Group {
        uint32_t other;
        bool other_is_left;
        uint64_t lost;    // weight lost by the pair that this one replaces
        uint64_t gained;
        uint32_t num_positions;
        uint64_t first;
    };
    struct Found {
        uint32_t group;
        Position position;
    };

    void add_token(std::string token) {
        const auto is_blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
        uint32_t num_words = 0;
        for (size_t i = 0; i < token.size(); i++) num_words += !is_blank(token[i]) && (!i || is_blank(token[i - 1]));
        words_.push_back(num_words << 2 | uint32_t{!is_blank(token[0])} << 1 | uint32_t{!is_blank(token.back())});
        tokens_.push_back(std::move(token));
    }

    bool is_wanted(uint64_t count, uint32_t left, uint32_t right) const {
        const uint32_t a = words_[left], b = words_[right];
        return count >= limit_ && (!max_words_ || (a >> 2) + (b >> 2) - (a & b >> 1 & 1) <= max_words_);
    }

    // Stores the words as symbols, most frequent first, with the existing merges applied.
    void store_words(std::vector<Word>& words) {
        std::sort(words.begin(), words.end(), [](const Word& a, const Word& b) { return a.count > b.count; });
        // An encoder whose ids are our symbols.
        Vocabulary vocabulary{tokens_, std::vector<bool>(tokens_.size(), true), {}, {}, false};
        for (const auto& [left, right] : training_.merges) vocabulary.merges.emplace_back(tokens_[left], tokens_[right]);
        const Encoder encoder(std::move(vocabulary), std::make_shared<Splitter>(std::vector<Stage>{{"(?s:.+)", Behaviour::kIsolated}}, ""));
        constexpr size_t kBlock = 4096;
        std::vector<std::vector<Symbol>> blocks(words.size() / kBlock + 1);
        std::atomic<size_t> next{0};
        run_threads(num_threads_, [&](size_t) {
            std::shared_ptr<Workspace> workspace;
            IdBuffer ids(encoder.id_bytes());
            for (size_t b; (b = next++) < blocks.size();) {
                std::vector<Symbol>& block = blocks[b];
                for (size_t i = b * kBlock; i < std::min((b + 1) * kBlock, words.size()); i++) {
                    if (training_.merges.empty()) {
                        block.insert(block.end(), words[i].bytes, words[i].bytes + words[i].size);
                    } else {
                        if (!workspace) workspace = encoder.borrow();
                        ids.count = 0;
                        workspace->encode({words[i].bytes, words[i].size}, ids);
                        for (size_t k = 0; k < ids.count; k++) block.push_back(static_cast<Symbol>(ids.at(k)));
                    }
                    block.push_back(kMark);
                }
            }
        });
        symbols_.assign(1, kMark);
        for (std::vector<Symbol>& block : blocks) {
            symbols_.insert(symbols_.end(), block.begin(), block.end());
            block = {};
        }
        training_.num_symbols = 0;
        uint64_t at = 1;
        for (const Word& word : words) {
            weights_.add(at, word.count);
            const uint64_t begin = at;
            while (symbols_[at] != kMark) at++;
            training_.num_symbols += (at++ - begin) * word.count;
        }
        weights_.finish(symbols_.size());
    }

    // Rebuilds the index of all pairs that occur at least `limit_` times. Each thread counts the pairs of its buckets.
    void index_pairs() {
        pairs_.clear();
        index_ = PairIndex();
        heap_ = decltype(heap_)(HasLowerPriority{this});
        struct Part {
            PairIndex index;
            std::vector<Pair> pairs;
        };
        std::vector<Part> parts(std::min<size_t>(num_threads_, (symbols_.size() >> 22) + 1));
        // The total of a bucket is an upper bound for the count of each of its pairs.
        constexpr uint32_t kBucketBits = 21;
        const auto bucket_of = [](uint64_t left, uint64_t right) { return (left << 32 | right) * kSeedA >> (64 - kBucketBits); };
        const ZeroedBlock block(sizeof(uint32_t) << kBucketBits);
        uint32_t* const totals = reinterpret_cast<uint32_t*>(block.data());
        std::vector<bool> is_frequent(size_t{1} << kBucketBits, true);
        const auto each_pair = [&](auto ahead, auto visit) {
            run_threads(parts.size(), [&](size_t thread) {
                constexpr size_t kAhead = 16;
                for (uint64_t at = 1, next; at < symbols_.size(); at = next) {
                    if (at + kAhead + 1 < symbols_.size()) ahead(symbols_[at + kAhead], symbols_[at + kAhead + 1]);
                    next = at + (symbols_[at] == kMark ? 1 : sizes_[symbols_[at]]);
                    if (symbols_[at] == kMark || symbols_[next] == kMark) continue;
                    const uint64_t bucket = bucket_of(symbols_[at], symbols_[next]);
                    if (is_frequent[bucket] && bucket * parts.size() >> kBucketBits == thread) visit(parts[thread], bucket, at, symbols_[next]);
                }
            });
        };
        const auto nothing_ahead = [](uint64_t, uint64_t) {};
        each_pair([&](uint64_t left, uint64_t right) { __builtin_prefetch(&totals[bucket_of(left, right)], 1); },
                  [&](Part&, uint64_t bucket, uint64_t at, uint32_t) {
            totals[bucket] = static_cast<uint32_t>(std::min<uint64_t>(totals[bucket] + weights_.at(at), UINT32_MAX));
        });
        for (size_t bucket = 0; bucket < is_frequent.size(); bucket++) is_frequent[bucket] = totals[bucket] >= limit_;
        each_pair(nothing_ahead, [&](Part& part, uint64_t, uint64_t at, uint32_t right) {
            uint32_t number = part.index.find(symbols_[at], right);
            if (number == kNone) {
                number = static_cast<uint32_t>(part.pairs.size());
                part.index.insert(symbols_[at], right, number);
                part.pairs.push_back({symbols_[at], right, 0, 0, 0});
            }
            part.pairs[number].count += weights_.at(at);
            part.pairs[number].num_positions++;
        });
        uint64_t end = 0;
        for (Part& part : parts)
            for (Pair& pair : part.pairs) {
                pair.first = end;
                if (is_wanted(pair.count, pair.left, pair.right)) end += pair.num_positions;
                else pair.count = 0;
            }
        resize_arena(end);
        each_pair(nothing_ahead, [&](Part& part, uint64_t, uint64_t at, uint32_t right) {
            Pair& pair = part.pairs[part.index.find(symbols_[at], right)];
            if (pair.count) arena()[pair.first++] = static_cast<Position>(at);
        });
        for (Part& part : parts)
            for (Pair& pair : part.pairs) {
                pair.first -= pair.num_positions;
                if (pair.count) add(pair);
            }
    }

    void add(const Pair& pair) {
        const uint32_t number = static_cast<uint32_t>(pairs_.size());
        pairs_.push_back(pair);
        index_.insert(pair.left, pair.right, number);
        heap_.push(rank(number));
    }

    Position* arena() const { return reinterpret_cast<Position*>(arena_.data()); }
    void resize_arena(uint64_t size) {
        arena_.reserve(size * sizeof(Position));
        arena_size_ = size;
    }

    Ranked rank(uint32_t number) const {
        const Pair& pair = pairs_[number];
        const std::string& left = tokens_[pair.left];
        uint64_t prefix = 0;
        for (size_t i = 0; i < 8; i++)
            prefix = prefix << 8 | (i < left.size() ? static_cast<Byte>(left[i]) : 0);
        return {pair.count, prefix, number};
    }

    // The group of the new pair with `other`, created on first use.
    uint32_t group_of(uint32_t other, bool other_is_left) {
        uint32_t& number = (other_is_left ? left_group_ : right_group_)[other];
        if (number == kNone) {
            number = static_cast<uint32_t>(groups_.size());
            groups_.push_back({other, other_is_left, 0, 0, 0, 0});
        }
        return number;
    }

    void gain(uint32_t other, bool other_is_left, uint64_t weight, Position position) {
        const uint32_t number = group_of(other, other_is_left);
        groups_[number].gained += weight;
        groups_[number].num_positions++;
        found_.push_back({number, position});
    }

    void merge(uint32_t number) {
        const Pair pair = pairs_[number];
        const uint32_t made = static_cast<uint32_t>(tokens_.size());
        const uint32_t left_size = sizes_[pair.left], size = left_size + sizes_[pair.right];
        add_token(tokens_[pair.left] + tokens_[pair.right]);
        sizes_.push_back(size);
        pairs_[number].count = 0;
        groups_.clear();
        found_.clear();
        Symbol* const symbols = symbols_.data();
        constexpr uint32_t kAhead = 8;
        for (uint32_t i = 0; i < pair.num_positions; i++) {
            if (i + kAhead < pair.num_positions)
                __builtin_prefetch(&symbols[arena()[pair.first + i + kAhead]]);
            const Position at = arena()[pair.first + i];
            const Position middle = static_cast<Position>(at + left_size);
            if (symbols[at] != pair.left || symbols[middle] != pair.right) continue;
            const uint64_t weight = weights_.at(at);
            training_.num_symbols -= weight;
            symbols[middle] = kGone;
            symbols[at] = static_cast<Symbol>(made);
            symbols[at + size - 1] = static_cast<Symbol>(made);
            const Symbol before = symbols[at - 1], after = symbols[at + size];
            if (before != kMark) {
                if (before == made) {
                    // The pair (made, left), created one occurrence earlier, is gone already.
                    groups_[group_of(pair.left, false)].gained -= weight;
                } else {
                    groups_[group_of(before, true)].lost += weight;
                }
                gain(before, true, weight, static_cast<Position>(at - sizes_[before]));
            }
            if (after != kMark) {
                groups_[group_of(after, false)].lost += weight;
                gain(after, false, weight, at);
            }
        }
        record(pair, made);
    }

    // Subtracts what the old pairs lost from their counts, and indexes the new pairs.
    void record(const Pair& merged, uint32_t made) {
        uint64_t end = arena_size_;
        for (Group& group : groups_) {
            (group.other_is_left ? left_group_ : right_group_)[group.other] = kNone;
            if (group.lost) {
                const uint32_t old = group.other_is_left ? index_.find(group.other, merged.left)
                                                         : index_.find(merged.right, group.other);
                // The merged pair itself (in runs of one symbol) already has a count of 0.
                if (old != kNone && pairs_[old].count) pairs_[old].count -= group.lost;
            }
            group.first = end;
            const uint32_t left = group.other_is_left ? group.other : made;
            const uint32_t right = group.other_is_left ? made : group.other;
            if (!is_wanted(group.gained, left, right)) {
                group.gained = 0;
                continue;
            }
            end += group.num_positions;
            add({left, right, group.gained, group.first, group.num_positions});
        }
        resize_arena(end);
        for (const Found& found : found_) {
            Group& group = groups_[found.group];
            if (group.gained) arena()[group.first++] = found.position;
        }
    }

    Training& training_;
    size_t num_merges_, max_words_, num_threads_;
    uint64_t limit_ = 1;
    std::vector<Symbol> symbols_;
    Weights weights_;
    std::vector<std::string> tokens_;
    std::vector<uint32_t> words_;  // by token: 4 * number of words + 2 * (starts with one) + (ends with one)
    std::vector<uint32_t> sizes_;  // by token: number of positions
    std::vector<Pair> pairs_;
    PairIndex index_;
    GrowingBlock arena_;  // the lists of positions of all pairs
    uint64_t arena_size_ = 0;
    std::priority_queue<Ranked, std::vector<Ranked>, HasLowerPriority> heap_{HasLowerPriority{this}};
    std::vector<uint32_t> left_group_, right_group_;  // by symbol; kNone outside a merge
    std::vector<Group> groups_;
    std::vector<Found> found_;
};

}  // namespace

Training train(std::vector<WordCounts>& tables, size_t num_merges, const std::function<void()>& poll,
               const Splitter* within, size_t num_within) {
    join(tables);
    Training training;
    const auto learn = [&](WordCounts& counts, size_t up_to, size_t max_words) {
        std::vector<Word> words;
        uint64_t size = 1;
        counts.for_each([&](const Byte* bytes, size_t length, uint64_t count) {
            words.push_back({bytes, length, count});
            size += length + 1;
        });
        // Each merge removes at least one symbol, which bounds their number.
        up_to = std::min<uint64_t>(up_to, training.merges.size() + size);
        const auto run = [&](auto trainer) { trainer.run(counts, std::move(words), poll); };
        if (size >= UINT32_MAX) run(Trainer<uint32_t, uint64_t>(training, up_to, max_words, tables.size()));
        else if (up_to + 256 < 65534) run(Trainer<uint16_t, uint32_t>(training, up_to, max_words, tables.size()));
        else run(Trainer<uint32_t, uint32_t>(training, up_to, max_words, tables.size()));
    };
    tables[0].for_each([&](const Byte*, size_t size, uint64_t count) {
        training.num_words++;
        training.num_bytes += size * count;
    });
    if (within) {
        std::vector<WordCounts> parts;
        for (size_t i = 0; i < tables.size(); i++) parts.emplace_back(SIZE_MAX);
        run_threads(parts.size(), [&](size_t part) {
            tables[0].for_each([&](const Byte* bytes, size_t size, uint64_t count) {
                parts[part].add_text({bytes, size}, *within, SpecialTokens(), count);
            }, part, parts.size());
        });
        join(parts);
        training.num_words = parts[0].size();
        learn(parts[0], std::min(num_within, num_merges), 0);
    }
    learn(tables[0], num_merges, within ? kMaxWords : 0);
    return training;
}

}  // namespace groundup
