// The machine that finds a pattern's match: one table look-up a character, whatever the pattern.
//
// A state is the list of the steps that are still possible, the preferred one first; a step that has
// matched cuts off those behind it. What looks ahead is decided a character late, on reading the next.
#pragma once

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "pattern.h"

namespace groundup {

// Characters that no set of a pattern tells apart share a symbol; the last symbol is the end of the text.
class Symbols {
public:
    explicit Symbols(const std::vector<CodePoints>& sets);

    uint32_t count() const { return static_cast<uint32_t>(members_.size()); }
    uint32_t end() const { return count() - 1; }
    bool has(uint32_t symbol, uint32_t set) const { return members_[symbol][set]; }

    struct Read {
        uint32_t symbol, size;
    };
    uint32_t of(uint32_t code_point) const { return blocks_[pages_[code_point >> 6] << 6 | (code_point & 63)]; }

    // The character at p; a byte that begins none counts as U+FFFD.
    Read read(const Byte* p, const Byte* end) const {
        if (__builtin_expect(*p < 0x80, 1)) return {ascii_[*p], 1};
        uint32_t code_point;
        const uint32_t size = valid_char_size(p, end, code_point);
        return size ? Read{of(code_point), size} : Read{of(0xFFFD), 1};
    }

private:
    std::vector<std::vector<bool>> members_;  // by symbol, then set
    std::vector<uint16_t> pages_;
    std::vector<uint8_t> blocks_;
    uint8_t ascii_[128];
};

// Where searches ran on for long without a match: one that comes there in the same state stops, which
// keeps the work linear in the text.
class Overruns {
public:
    static constexpr size_t kEvery = 64;

    void begin(size_t at) {
        if (!failing_.empty() && at > furthest_) failing_.clear();
    }
    void clear() {
        if (!failing_.empty()) failing_.clear();  // which takes time even where there is nothing
    }
    bool stops(size_t at, uint32_t state, size_t last) {
        if (!trail_.empty() && last >= trail_.back().first) trail_.clear();
        if (!failing_.empty() && failing_.count(at << 12 | state)) return true;
        trail_.emplace_back(at, state);
        return false;
    }
    void finish(size_t last) {
        for (const auto& [at, state] : trail_) {
            if (at <= last + kEvery) continue;
            failing_.insert(at << 12 | state);
            furthest_ = std::max(furthest_, at);
        }
        trail_.clear();
    }
    bool empty() const { return trail_.empty(); }

private:
    std::vector<std::pair<size_t, uint32_t>> trail_;
    std::unordered_set<uint64_t> failing_;
    size_t furthest_ = 0;
};

class Automaton {
public:
    static constexpr size_t kMostRun = 1024, kRunBytes = 512;

    // Throws InputError when it would take too many states.
    Automaton(const Program& program, const Symbols& symbols);

    // The end of the match at text.data[begin], at most `end`; 0 when there is none. `reach` is set to where the search
    // ended: what comes behind it decided nothing, unless it is `end`.
    size_t match(const Symbols& symbols, const Byte* text, size_t begin, size_t end, bool is_first,
                 Overruns& overruns, size_t& reach) const;

    // The same search, one character at a time; false when it is over.
    struct Search {
        size_t at;
        uint32_t row;
        size_t last;
    };
    Search begin_at(size_t at) const { return {at, start_, 0}; }
    bool step(const Symbols& symbols, Span text, Search& search) const {
        const auto [symbol, size] = symbols.read(text.data + search.at, text.data + text.size);
        const uint32_t to = entry(search.row, symbol);
        if (to & 1) search.last = search.at;
        search.row = to >> 1;
        search.at += size;
        return search.row != 0;
    }

    // Writes where one match after the other ends from `at` to about `stop`, as long as that takes one look-up a character
    // and no match is long: where the last ended, match() goes on. Returns their number, at most kMostRun.
    size_t run(const Symbols& symbols, Span text, size_t at, size_t stop, size_t base, uint32_t* ends) const;

    bool may_begin(uint32_t symbol) const { return entry(start_, symbol) > 1; }
    // Of each byte, whether a match may begin with it.
    void find_first_bytes(const Symbols& symbols, bool* begins) const;
    // Whether a match ends where the text does.
    bool ends(uint32_t row) const { return entry(row, num_symbols_ - 1) & 1; }
    bool has_begin() const { return begin_ != start_; }

    // Whether a match that comes to `a` ends before `b`, or not, as it does before the end of the text.
    bool parts(uint32_t a, uint32_t b) const;
    // Whether a search that begins at a symbol, or has come so far, finds a further end, whatever follows.
    bool surely_begins(uint32_t symbol) const { return is_sure(entry(start_, symbol) >> 1); }
    bool is_sure(uint32_t row) const { return sure_[row / num_symbols_]; }

private:
    // The row of the state behind a symbol, times two; one more where a match ends before the symbol.
    uint32_t entry(uint32_t row, uint32_t symbol) const { return table_[row + symbol]; }

    void make_runs();

    uint32_t num_symbols_;
    uint32_t start_ = 0, begin_ = 0;
    std::vector<uint32_t> table_;
    std::vector<uint32_t> runs_;  // the row to go on with, times eight, and what ends
    std::vector<bool> sure_;  // by state
};

}  // namespace groundup
