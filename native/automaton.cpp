#include "automaton.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

namespace groundup {

namespace {
constexpr size_t kMaxSymbols = 250, kMaxStates = 4096;
constexpr size_t kMaxWork = size_t{1} << 25;    // steps followed during construction
constexpr size_t kMaxThreads = size_t{1} << 22;  // summed over all states
constexpr size_t kMaxRuns = size_t{1} << 20;
// The flags of an entry of `runs_`.
constexpr uint32_t kEnds = 1, kEndedBefore = 2, kUnclear = 4;
}  // namespace

Symbols::Symbols(const std::vector<CodePoints>& sets) {
    // Code points between two adjacent edges belong to the same sets.
    CodePoints edges{0, kEndOfText, kEndOfText + 1};
    for (const CodePoints& set : sets) edges.insert(edges.end(), set.begin(), set.end());
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    const size_t count = edges.size() - 1;
    std::vector<uint32_t> kinds(count, 0);
    uint32_t num_kinds = 1;
    for (const CodePoints& set : sets) {
        std::map<std::pair<uint32_t, bool>, uint32_t> split;
        for (size_t i = 0, j = 0; i < count; i++) {
            while (j < set.size() && set[j] <= edges[i]) j++;
            const auto kind = std::make_pair(kinds[i], j % 2 == 1);
            kinds[i] = split.emplace(kind, static_cast<uint32_t>(split.size())).first->second;
        }
        num_kinds = static_cast<uint32_t>(split.size());
        if (num_kinds > kMaxSymbols)
            throw InputError("more than " + std::to_string(kMaxSymbols) + " classes of characters");
    }
    members_.assign(num_kinds, std::vector<bool>(sets.size()));
    std::vector<uint8_t> symbols(kEndOfText);
    for (size_t i = 0; i < count; i++) {
        for (size_t set = 0; set < sets.size(); set++)
            members_[kinds[i]][set] =
                (std::upper_bound(sets[set].begin(), sets[set].end(), edges[i]) - sets[set].begin()) % 2 == 1;
        if (i + 1 < count)
            std::fill(symbols.begin() + edges[i], symbols.begin() + edges[i + 1], static_cast<uint8_t>(kinds[i]));
    }
    // The end of the text may be in the same sets as characters, but has a symbol of its own.
    members_.push_back(std::vector<bool>(members_[kinds.back()]));
    std::copy(symbols.begin(), symbols.begin() + 128, ascii_);
    std::unordered_map<std::string_view, uint16_t> numbers;
    for (size_t page = 0; page < kEndOfText; page += 64) {
        const uint8_t* const block = symbols.data() + page;
        const std::string_view key(reinterpret_cast<const char*>(block), 64);
        const auto [found, is_new] = numbers.emplace(key, static_cast<uint16_t>(numbers.size()));
        if (is_new) blocks_.insert(blocks_.end(), block, block + 64);
        pages_.push_back(found->second);
    }
}

Automaton::Automaton(const Program& program, const Symbols& symbols) : num_symbols_(symbols.count()) {
    using Threads = std::vector<uint32_t>;
    std::map<Threads, uint32_t> numbers;
    std::vector<const Threads*> states;
    size_t num_threads = 0, work = 0;
    const auto number_of = [&](Threads threads) {
        const auto [found, is_new] = numbers.emplace(std::move(threads), static_cast<uint32_t>(states.size()));
        if (is_new) states.push_back(&found->first);
        if (is_new) num_threads += found->first.size();
        return found->second * num_symbols_;
    };
    number_of({});  // the dead state
    start_ = begin_ = number_of({program.start});
    const auto is_begin = [](const Step& step) { return step.kind == Step::kBegin; };
    // The state at the start of the text is marked by a number that no step has.
    if (std::any_of(program.steps.begin(), program.steps.end(), is_begin)) begin_ = number_of({program.start, kNone});
    std::vector<uint32_t> seen(program.steps.size(), 0), taken(program.steps.size(), 0), stack;
    uint32_t round = 0;
    for (size_t state = 0; state < states.size(); state++) {
        for (uint32_t symbol = 0; symbol < num_symbols_; symbol++) {
            const Threads& threads = *states[state];
            const bool at_begin = !threads.empty() && threads.back() == kNone;
            Threads next;
            bool ends = false;
            round++;
            for (size_t i = 0; i + at_begin < threads.size() && !ends; i++) {
                stack.assign(1, threads[i]);
                while (!stack.empty() && !ends) {
                    const uint32_t number = stack.back();
                    const Step& step = program.steps[number];
                    stack.pop_back();
                    if (seen[number] == round) continue;
                    seen[number] = round;
                    work++;
                    const bool holds = step.kind == Step::kBegin ? at_begin : symbols.has(symbol, step.set);
                    switch (step.kind) {
                        case Step::kMatch: ends = true; break;
                        case Step::kSplit: stack.insert(stack.end(), {step.other, step.next}); break;
                        case Step::kLook: case Step::kBegin:
                            if (holds) stack.push_back(step.next);
                            break;
                        case Step::kSet:
                            if (holds && taken[step.next] != round) next.push_back(step.next);
                            if (holds) taken[step.next] = round;
                    }
                }
            }
            table_.push_back(number_of(symbol == symbols.end() ? Threads() : std::move(next)) << 1 | ends);
        }
        if (states.size() > kMaxStates || work > kMaxWork || num_threads > kMaxThreads)
            throw InputError("more than " + std::to_string(kMaxStates) + " states or is too complex");
    }
    if (std::none_of(table_.begin(), table_.end(), [](uint32_t to) { return to & 1; }))
        throw InputError("no text that it matches");
    // A state is sure to match if every symbol ends a match or leads to such a state.
    sure_.assign(states.size(), true);
    sure_[0] = false;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t state = 1; state < states.size(); state++) {
            for (uint32_t symbol = 0; symbol < num_symbols_ && sure_[state]; symbol++) {
                const uint32_t to = entry(static_cast<uint32_t>(state) * num_symbols_, symbol);
                if (!(to & 1) && !sure_[(to >> 1) / num_symbols_]) sure_[state] = false, changed = true;
            }
        }
    }
    make_runs();
}

// A run's state is the automaton's row and, if a match ends before the last character, that character: together
// they determine the state of the search for the next match. kGap is text in which no match has started.
void Automaton::make_runs() {
    constexpr uint32_t kGap = UINT32_MAX >> 1;
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> numbers;
    std::vector<std::pair<uint32_t, uint32_t>> runs;
    // The row, and the last character read if a match ends before it.
    const auto number_of = [&](uint32_t to, uint32_t symbol) {
        const auto run = std::make_pair(to >> 1, to & 1 ? symbol : kNone);
        const auto [found, is_new] = numbers.emplace(run, static_cast<uint32_t>(runs.size()));
        if (is_new) runs.push_back(run);
        return found->second * num_symbols_ * 8;
    };
    number_of(start_ << 1, 0);
    for (size_t i = 0; i < runs.size() && runs_.size() < kMaxRuns; i++) {
        for (uint32_t symbol = 0; symbol < num_symbols_; symbol++) {
            const auto [row, before] = runs[i];
            const uint32_t begun = entry(start_, symbol) ? entry(start_, symbol) : kGap << 1;
            const bool is_gap = row == kGap;
            uint32_t to = is_gap ? begun : entry(row, symbol), ended = 0;
            if (is_gap && begun >> 1 != kGap) {
                ended = kEnds;
                if (!surely_begins(symbol)) to = 0;
            } else if (!to && before != kNone) {
                to = entry(entry(start_, before) >> 1, symbol);
                ended = kEndedBefore;
            }
            if (to == 1) {
                to = begun;
                ended |= kEnds;
            }
            runs_.push_back(to ? number_of(to, symbol) | ended : kUnclear);
        }
    }
    if (runs_.size() >= kMaxRuns) runs_.assign(num_symbols_, kUnclear);
}

size_t Automaton::run(const Symbols& symbols, Span text, size_t at, size_t stop, size_t base, uint32_t* ends) const {
    stop = std::min({text.size, stop, at + kRunBytes});
    const uint32_t* row = runs_.data();
    size_t count = 0, before = at;
    while (at < stop) {
        const size_t block = std::min(stop, at + 64), had = count;
        while (at < block) {
            const auto [symbol, size] = symbols.read(text.data + at, text.data + text.size);
            const uint32_t to = row[symbol];
            if (__builtin_expect(to & kUnclear, 0)) return count;
            ends[count] = static_cast<uint32_t>(before - base);
            count += to >> 1 & 1;
            ends[count] = static_cast<uint32_t>(at - base);
            count += to & 1;
            row = runs_.data() + (to >> 3);
            before = at;
            at += size;
        }
        if (count == had) break;
    }
    return count;
}

size_t Automaton::match(const Symbols& symbols, const Byte* text, size_t begin, size_t end, bool is_first,
                        Overruns& overruns, size_t& reach) const {
    overruns.begin(begin);
    uint32_t row = is_first ? begin_ : start_;
    size_t at = begin, last = 0;
    const uint32_t* const table = table_.data();
    while (true) {
        const size_t stop = std::min(end, (at | (Overruns::kEvery - 1)) + 1);
        while (at < stop) {
            const auto [symbol, size] = symbols.read(text + at, text + end);
            const uint32_t to = table[row + symbol];
            if (to & 1) last = at;
            row = to >> 1;
            if (!row) break;
            at += size;
        }
        if (!row || at >= end) break;
        if (overruns.stops(at, row / num_symbols_, last)) break;
    }
    if (row && at >= end && (table[row + symbols.end()] & 1)) last = end;
    if (!overruns.empty()) overruns.finish(std::max(begin, last));
    reach = at;
    return last;
}

void Automaton::find_first_bytes(const Symbols& symbols, bool* begins) const {
    const bool any_high = may_begin(symbols.of(0xFFFD));
    for (uint32_t byte = 0; byte < 256; byte++)
        begins[byte] = has_begin() || byte >= 0xF0 || (byte < 0x80 ? may_begin(symbols.of(byte)) : any_high);
    for (uint32_t c = 0x80; c < 0x10000; c++) {
        const uint32_t lead = c < 0x800 ? 0xC0 | c >> 6 : 0xE0 | c >> 12;
        begins[lead] = begins[lead] || may_begin(symbols.of(c));
    }
}

bool Automaton::separates(uint32_t a, uint32_t b) const {
    for (uint32_t row = num_symbols_; row < table_.size(); row += num_symbols_) {
        const uint32_t after = entry(row, a) >> 1;
        if (!after) continue;
        if (entry(after, b) >> 1 || entry(after, b) != entry(after, num_symbols_ - 1)) return false;
    }
    return true;
}

}  // namespace groundup
