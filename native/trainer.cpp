// The words stand in one flat array of symbols, most frequent first, with a mark between them. A
// symbol stands at its first and at its last byte's position, so both neighbours of a position are found
// without links. Every pair knows its positions; a position is checked when it is used. All
// positions of a pair arise during one merge (the one that makes its younger half), in order and never
// later, so the lists are written once, and a pair's count only falls after that: a heap
// of counts that are at worst too high is enough.
#include "trainer.h"

#include <algorithm>
#include <map>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>

namespace groundup {

namespace {

struct Pair {
    uint32_t left, right;
    uint64_t count;
    uint64_t first;      // its positions in the arena
    uint32_t num_positions;
};

// Pair -> number, open addressing.
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

// Positions of pairs, one list behind another; grows without being copied.
template <class Position>
class PositionArena {
public:
    uint64_t size() const { return size_; }
    Position& operator[](uint64_t i) { return reinterpret_cast<Position*>(block_.data())[i]; }
    void resize(uint64_t size) {
        block_.reserve(size * sizeof(Position));
        size_ = size;
    }

private:
    GrowingBlock block_;
    uint64_t size_ = 0;
};

// What there is to lay out: how many bytes the words of each count have, with a mark behind each.
struct Totals {
    uint64_t num_words = 0;
    uint64_t num_bytes = 0;   // of the text
    uint64_t size = 1;        // of the words that have a pair, with their marks
    std::map<uint64_t, uint64_t, std::greater<>> size_by_count;
};

Totals add_up(const WordCounts& words) {
    Totals totals;
    uint64_t last_count = 0;
    uint64_t* size_of_count = nullptr;
    words.for_each([&](const Byte*, size_t size, uint64_t count) {
        totals.num_words++;
        totals.num_bytes += count * size;
        if (size < 2) return;
        if (count != last_count) {
            size_of_count = &totals.size_by_count[count];
            last_count = count;
        }
        *size_of_count += size + 1;
        totals.size += size + 1;
    });
    return totals;
}

// How often the word at a position occurs: words of equal counts stand together.
class Weights {
public:
    void add(uint64_t begin, uint64_t count) {
        if (counts_.empty() || counts_.back() != count) {
            begins_.push_back(begin);
            counts_.push_back(count);
        }
    }
    void finish(uint64_t size) {
        if (begins_.empty()) return;  // no word has a pair, so nobody will ask
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
    Trainer(WordCounts& words, const Totals& totals, size_t num_merges)
        : num_merges_(num_merges), num_words_(totals.num_words), num_symbols_(totals.num_bytes) {
        lay_out(words, totals);
    }

    Training run(const std::function<void()>& look_up) {
        for (int b = 0; b < 256; b++) tokens_.emplace_back(1, static_cast<char>(b));
        sizes_.assign(256, 1);
        left_group_.assign(256 + num_merges_, kNone);
        right_group_.assign(256 + num_merges_, kNone);
        index_byte_pairs();
        Training training;
        training.num_words = num_words_;
        training.num_bytes = num_symbols_;
        while (training.merges.size() < num_merges_ && !heap_.empty()) {
            const Ranked top = heap_.top();
            heap_.pop();
            Pair& pair = pairs_[top.pair];
            if (pair.count != top.count) {
                if (pair.count) heap_.push(rank(top.pair));
                continue;
            }
            training.merges.emplace_back(pair.left, pair.right);
            merge(top.pair);
            if (training.merges.size() % 256 == 0) look_up();
        }
        training.num_symbols = num_symbols_;
        return training;
    }

private:
    static constexpr Symbol kMark = static_cast<Symbol>(-1);  // between words
    static constexpr Symbol kGone = static_cast<Symbol>(-2);  // was the first byte of a right half

    struct Ranked {
        uint64_t count;
        uint64_t prefix;  // first bytes of the left token, to decide most ties
        uint32_t pair;
    };
    struct Later {
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
    // The positions of one new pair, while the merge that makes it runs.
    struct Group {
        uint32_t other;
        bool other_is_left;
        uint64_t lost;    // weight taken from the pair this one replaces
        uint64_t gained;
        uint32_t num_positions;
        uint64_t first;
    };
    struct Found {
        uint32_t group;
        Position position;
    };

    void lay_out(WordCounts& words, const Totals& totals) {
        symbols_.assign(totals.size, kMark);
        std::unordered_map<uint64_t, uint64_t> next_of_count;
        uint64_t begin = 1;
        for (const auto& [count, size] : totals.size_by_count) {
            weights_.add(begin, count);
            next_of_count[count] = begin;
            begin += size;
        }
        weights_.finish(symbols_.size());
        uint64_t last_count = 0;
        uint64_t* next = nullptr;
        words.for_each([&](const Byte* word, size_t size, uint64_t count) {
            if (size < 2) return;
            if (count != last_count) {
                next = &next_of_count[count];
                last_count = count;
            }
            for (size_t k = 0; k < size; k++) symbols_[*next + k] = word[k];
            *next += size + 1;
        });
        words.clear();
    }

    void index_byte_pairs() {
        std::vector<uint64_t> counts(65536, 0);
        std::vector<uint32_t> positions(65536, 0);
        const auto each_pair = [this](auto visit) {
            for (size_t i = 0; i + 1 < symbols_.size(); i++) {
                if (symbols_[i] != kMark && symbols_[i + 1] != kMark)
                    visit(i, size_t{symbols_[i]} << 8 | symbols_[i + 1]);
            }
        };
        each_pair([&](size_t i, size_t key) {
            counts[key] += weights_.at(i);
            positions[key]++;
        });
        std::vector<uint64_t> next(65536, 0);
        uint64_t total = 0;
        for (size_t key = 0; key < 65536; key++) {
            if (!positions[key]) continue;
            const uint32_t left = static_cast<uint32_t>(key >> 8), right = key & 255;
            index_.insert(left, right, static_cast<uint32_t>(pairs_.size()));
            pairs_.push_back({left, right, counts[key], total, positions[key]});
            next[key] = total;
            total += positions[key];
        }
        arena_.resize(total);
        each_pair([&](size_t i, size_t key) { arena_[next[key]++] = static_cast<Position>(i); });
        for (size_t i = 0; i < pairs_.size(); i++) heap_.push(rank(static_cast<uint32_t>(i)));
    }

    Ranked rank(uint32_t number) const {
        const Pair& pair = pairs_[number];
        const std::string& left = tokens_[pair.left];
        uint64_t prefix = 0;
        for (size_t i = 0; i < 8; i++)
            prefix = prefix << 8 | (i < left.size() ? static_cast<Byte>(left[i]) : 0);
        return {pair.count, prefix, number};
    }

    // The group of the new pair with `other`, made on first use.
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
        tokens_.push_back(tokens_[pair.left] + tokens_[pair.right]);
        sizes_.push_back(size);
        pairs_[number].count = 0;
        groups_.clear();
        found_.clear();
        Symbol* const symbols = symbols_.data();
        constexpr uint32_t kAhead = 8;
        for (uint32_t i = 0; i < pair.num_positions; i++) {
            if (i + kAhead < pair.num_positions)
                __builtin_prefetch(&symbols[arena_[pair.first + i + kAhead]]);
            const Position at = arena_[pair.first + i];
            const Position middle = static_cast<Position>(at + left_size);
            if (symbols[at] != pair.left || symbols[middle] != pair.right) continue;
            const uint64_t weight = weights_.at(at);
            num_symbols_ -= weight;
            symbols[middle] = kGone;
            symbols[at] = static_cast<Symbol>(made);
            symbols[at + size - 1] = static_cast<Symbol>(made);
            const Symbol before = symbols[at - 1], behind = symbols[at + size];
            if (before != kMark) {
                if (before == made) {
                    // The pair (made, left) came into being a moment ago and is gone already.
                    groups_[group_of(pair.left, false)].gained -= weight;
                } else {
                    groups_[group_of(before, true)].lost += weight;
                }
                gain(before, true, weight, static_cast<Position>(at - sizes_[before]));
            }
            if (behind != kMark) {
                groups_[group_of(behind, false)].lost += weight;
                gain(behind, false, weight, at);
            }
        }
        record(pair, made);
    }

    // Takes from the old pairs what they lost and files the new ones.
    void record(const Pair& merged, uint32_t made) {
        uint64_t end = arena_.size();
        for (Group& group : groups_) {
            (group.other_is_left ? left_group_ : right_group_)[group.other] = kNone;
            if (group.lost) {
                const uint32_t old = group.other_is_left ? index_.find(group.other, merged.left)
                                                         : index_.find(merged.right, group.other);
                // The merged pair itself (in runs of one symbol) has its count set already.
                if (old != kNone && pairs_[old].count) pairs_[old].count -= group.lost;
            }
            group.first = end;
            if (group.gained) end += group.num_positions;
        }
        arena_.resize(end);
        for (const Group& group : groups_) {
            if (!group.gained) continue;
            const uint32_t left = group.other_is_left ? group.other : made;
            const uint32_t right = group.other_is_left ? made : group.other;
            const uint32_t number = static_cast<uint32_t>(pairs_.size());
            pairs_.push_back({left, right, group.gained, group.first, group.num_positions});
            index_.insert(left, right, number);
            heap_.push(rank(number));
        }
        for (const Found& found : found_) {
            Group& group = groups_[found.group];
            if (group.gained) arena_[group.first++] = found.position;
        }
    }

    size_t num_merges_;
    std::vector<Symbol> symbols_;
    Weights weights_;
    uint64_t num_words_;
    uint64_t num_symbols_;
    std::vector<std::string> tokens_;
    std::vector<uint32_t> sizes_;
    std::vector<Pair> pairs_;
    PairIndex index_;
    PositionArena<Position> arena_;
    std::priority_queue<Ranked, std::vector<Ranked>, Later> heap_{Later{this}};
    std::vector<uint32_t> left_group_, right_group_;  // by symbol; kNone outside a merge
    std::vector<Group> groups_;
    std::vector<Found> found_;
};

}  // namespace

Training train(WordCounts& words, size_t num_merges, const std::function<void()>& look_up) {
    const Totals totals = add_up(words);
    // A merge takes away one symbol at least: however many are asked for, there are no more.
    num_merges = std::min<uint64_t>(num_merges, totals.size);
    const bool narrow = num_merges + 256 < 65534;
    if (totals.size >= UINT32_MAX) return Trainer<uint32_t, uint64_t>(words, totals, num_merges).run(look_up);
    if (narrow) return Trainer<uint16_t, uint32_t>(words, totals, num_merges).run(look_up);
    return Trainer<uint32_t, uint32_t>(words, totals, num_merges).run(look_up);
}

}  // namespace groundup
