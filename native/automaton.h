// A DFA that finds a pattern's matches with one table lookup per character, whatever the pattern.
//
// A state is the list of possible steps in order of preference; a step that matches discards those of
// lower preference. Look-ahead is resolved one character late, when the next character is read.
#pragma once

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "pattern.h"

namespace groundup {

// Maps characters to symbols: characters that belong to the same sets share a symbol, and the last symbol
// is the end of the text.
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

    // Reads the character at p; an invalid byte counts as U+FFFD.
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

// Remembers (position, state) of long searches that found no match, every 64 bytes: a later search that
// gets there in the same state stops, which keeps the total time linear in the text.
class Overruns {
public:
    static constexpr size_t kEvery = 64;

    void begin(size_t at) {
        if (!failing_.empty() && at > furthest_) failing_.clear();
    }
    void clear() {
        if (!failing_.empty()) failing_.clear();  // clear() takes time even if the set is empty
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
    static constexpr size_t kMaxRun = 1024, kRunBytes = 512;

    // Throws InputError if it needs too many states.
    Automaton(const Program& program, const Symbols& symbols);

    // Returns the end of the match that starts at text[begin], at most `end`, or 0 if there is none. Sets `reach` to
    // where the search stopped: the match does not depend on text after it, unless it is `end`.
    size_t match(const Symbols& symbols, const Byte* text, size_t begin, size_t end, bool is_first,
                 Overruns& overruns, size_t& reach) const;

    // The same search, one character at a time; step() returns false when it is over.
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

    // Writes the ends of consecutive matches from `at` to about `stop`, relative to `base`, as long as one lookup per
    // character decides them and no match is long; match() continues after the last. Returns their number, up to kMaxRun.
    size_t run(const Symbols& symbols, Span text, size_t at, size_t stop, size_t base, uint32_t* ends) const;

    bool may_begin(uint32_t symbol) const { return entry(start_, symbol) > 1; }
    // For each byte, whether a match may begin with it.
    void find_first_bytes(const Symbols& symbols, bool* begins) const;
    // Whether a match ends if the text ends in this state.
    bool ends(uint32_t row) const { return entry(row, num_symbols_ - 1) & 1; }
    bool has_begin() const { return begin_ != start_; }

    // Whether every search that reads `a` stops before `b`, with the result it has if the text ends there.
    bool separates(uint32_t a, uint32_t b) const;
    // Whether a search that starts with this symbol, or is in this state, finds a (later) end, whatever follows.
    bool surely_begins(uint32_t symbol) const { return is_sure(entry(start_, symbol) >> 1); }
    bool is_sure(uint32_t row) const { return sure_[row / num_symbols_]; }

private:
    // Twice the row of the next state, plus 1 if a match ends before the symbol.
    uint32_t entry(uint32_t row, uint32_t symbol) const { return table_[row + symbol]; }

    void make_runs();

    uint32_t num_symbols_;
    uint32_t start_ = 0, begin_ = 0;
    std::vector<uint32_t> table_;
    std::vector<uint32_t> runs_;  // eight times the next row, plus the flags kEnds, …
    std::vector<bool> sure_;  // by state
};

}  // namespace groundup
