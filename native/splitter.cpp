#include "splitter.h"

#include <algorithm>

namespace groundup {

namespace {
constexpr size_t kMaxStages = 16;
}  // namespace

Behaviour behaviour_from_name(const std::string& name) {
    const std::pair<const char*, Behaviour> names[] = {
        {"isolated", Behaviour::kIsolated}, {"removed", Behaviour::kWithoutMatches},
        {"kept", Behaviour::kMatchesAlone}, {"merged with previous", Behaviour::kGapWithMatch},
        {"merged with next", Behaviour::kMatchWithGap}, {"contiguous", Behaviour::kContiguous}};
    for (const auto& [known, behaviour] : names)
        if (name == known) return behaviour;
    throw InputError("the unknown behaviour '" + name + "'");
}

Cursor::Cursor(const Splitter& splitter) : levels_(splitter.machines_.size()) {}

Splitter::Splitter(const std::vector<Stage>& stages, const std::string& scanner, Vectors vectors) {
    if (stages.empty() || stages.size() > kMaxStages)
        throw InputError(std::to_string(stages.size()) + " stages, not 1 to 16");
    std::vector<CodePoints> sets;
    std::vector<Program> programs;
    for (const Stage& stage : stages) programs.push_back(parse_pattern(stage.pattern, sets));
    symbols_ = std::make_unique<Symbols>(sets);
    for (size_t i = 0; i < stages.size(); i++)
        machines_.push_back({stages[i].behaviour, Automaton(programs[i], *symbols_), {}});
    for (Machine& machine : machines_) {
        machine.automaton.find_first_bytes(*symbols_, machine.begins);
        is_plain_ = is_plain_ && machine.behaviour == Behaviour::kIsolated && !machine.automaton.has_begin();
    }
    scanner_ = scanner_for(scanner, vectors);
    runs_ = machines_.back().behaviour == Behaviour::kIsolated;
    const uint32_t count = symbols_->count();
    cuts_.resize(count * count);
    for (uint32_t a = 0; a + 1 < count; a++) {
        for (uint32_t b = 0; b + 1 < count; b++) {
            const Machine& last = machines_.back();
            const bool left_matches = last.automaton.surely_begins(a), right_matches = last.automaton.surely_begins(b);
            bool safe = left_matches || right_matches;
            if (last.behaviour == Behaviour::kGapWithMatch) safe = left_matches;
            if (last.behaviour == Behaviour::kMatchWithGap) safe = right_matches;
            if (last.behaviour == Behaviour::kContiguous) safe = false;
            for (const Machine& machine : machines_)
                safe = safe && !machine.automaton.has_begin() && machine.automaton.separates(a, b);
            cuts_[a * count + b] = safe;
        }
    }
}

// Finds the next match at or after `from` in the stage's current piece.
bool Splitter::find_match(size_t stage, Span text, size_t from, Cursor& cursor) const {
    const Automaton& automaton = machines_[stage].automaton;
    Cursor::Level& level = cursor.levels_[stage];
    level.match_begin = level.match_end = level.end;
    const bool* const begins = machines_[stage].begins;
    for (size_t at = from, reach; at < level.end; at++) {
        // Skips continuation bytes too: no match begins inside a character.
        const Byte* const p = text.data;
        while (at + 4 <= level.end && !(begins[p[at]] | begins[p[at + 1]] | begins[p[at + 2]] | begins[p[at + 3]])) at += 4;
        while (at < level.end && !begins[p[at]]) at++;
        if (at == level.end) return false;
        const auto [symbol, size] = symbols_->read(text.data + at, text.data + level.end);
        size_t end = 0;
        if (automaton.may_begin(symbol) || at == level.begin)
            end = automaton.match(*symbols_, text.data, at, level.end, at == level.begin, level.overruns, reach);
        if (end) {
            level.match_begin = at;
            level.match_end = end;
            return true;
        }
        at += size - 1;
    }
    return false;
}

// Finds the next piece of a stage at or after `from`.
bool Splitter::next_piece(size_t stage, Span text, size_t from, Cursor& cursor, size_t& begin, size_t& end) const {
    Cursor::Level& level = cursor.levels_[stage];
    const Behaviour behaviour = machines_[stage].behaviour;
    while (true) {
        if (from >= level.end) {
            if (stage == 0) {
                if (from >= text.size) return false;
                level.begin = 0;
                level.end = text.size;
            } else if (!next_piece(stage - 1, text, from, cursor, level.begin, level.end)) {
                return false;
            }
            level.overruns.clear();
            from = std::max(from, level.begin);
            level.match_end = from;
        }
        if (level.match_end <= from) find_match(stage, text, from, cursor);
        begin = from;
        if (from < level.match_begin) {
            end = behaviour == Behaviour::kGapWithMatch ? level.match_end : level.match_begin;
            if (behaviour != Behaviour::kMatchesAlone) return true;
        } else {
            end = level.match_end;
            if (behaviour == Behaviour::kMatchWithGap || behaviour == Behaviour::kContiguous) {
                while (find_match(stage, text, end, cursor) && behaviour == Behaviour::kContiguous &&
                       level.match_begin == end)
                    end = level.match_end;
                if (behaviour == Behaviour::kMatchWithGap) end = level.match_begin;
            }
            if (behaviour != Behaviour::kWithoutMatches) return true;
        }
        from = end;
    }
}

size_t Splitter::scan(Span text, Cursor& cursor, size_t& begin, uint32_t* ends) const {
    begin = cursor.at;
    size_t stop = begin + kWindowBytes;
    if (scanner_) {
        if (const size_t count = scanner_({text.data + begin, text.size - begin}, ends)) {
            cursor.at += ends[count - 1];
            cursor.engine_bytes_ = ends[count - 1] < 256 ? 512 : 16;
            return count;
        }
        // Exponential backoff: the longer the scanner fails, the later it is tried again.
        stop = begin + cursor.engine_bytes_;
        cursor.engine_bytes_ = std::min(2 * cursor.engine_bytes_, kWindowBytes);
    }
    size_t count = 0;
    while (cursor.at < stop && count < kMaxEnds) {
        size_t& first = cursor.next_begin_;
        size_t& end = cursor.next_end_;
        if (end <= cursor.at && !next_piece(machines_.size() - 1, text, cursor.at, cursor, first, end)) {
            cursor.at = text.size;
            break;
        }
        if (first != cursor.at) {
            cursor.at = first;
            if (count) break;
            begin = first;
        }
        cursor.at = end;
        if (end - begin > UINT32_MAX) throw InputError("a single pre-token is larger than 4 GB");
        ends[count++] = static_cast<uint32_t>(end - begin);
        const Cursor::Level& level = cursor.levels_.back();
        if (!runs_ || cursor.at >= stop || count + Automaton::kMaxRun > kMaxEnds) continue;
        if (const size_t more = machines_.back().automaton.run(*symbols_, {text.data, level.end}, cursor.at, stop, begin, ends + count)) {
            count += more;
            cursor.at = begin + ends[count - 1];
        }
    }
    return count;
}

size_t Splitter::safe_cut(Span text, size_t from) const {
    const Byte* const end = text.data + text.size;
    size_t at = from ? from - 1 : 0;
    for (int k = 0; k < 3 && at && is_continuation(text.data[at]); k++) at--;
    for (uint32_t before = kNone; at < text.size;) {
        const auto [symbol, size] = symbols_->read(text.data + at, end);
        if (before != kNone && at >= from && cuts_[before * symbols_->count() + symbol]) return at;
        before = symbol;
        at += size;
    }
    return text.size;
}

// Whether the text from `position` on, inside or at the end of its first pre-token, splits as it does in the whole
// text. `searches` started with the text, one per stage. Without `across`, no match or gap may span the cut, because
// the text before it is split again.
bool Splitter::resumes(Span text, std::vector<Automaton::Search>& searches, size_t position, bool across) const {
    constexpr size_t kSoon = 64;
    size_t before = position - 1;
    while (before && position - before < 4 && is_continuation(text.data[before])) before--;
    const Byte* const end = text.data + text.size;
    const auto last = symbols_->read(text.data + before, end), next = symbols_->read(text.data + position, end);
    if (before + last.size != position) return false;
    // Up to here, the stages so far leave the same pieces with and without the cut.
    size_t reach = std::min(text.size, position + kSoon);
    bool is_cut = across;
    for (size_t i = 0; i < machines_.size(); i++) {
        const Automaton& automaton = machines_[i].automaton;
        Automaton::Search& whole = searches[i];
        while (whole.row && whole.at < position) automaton.step(*symbols_, text, whole);
        if (automaton.separates(last.symbol, next.symbol)) {
            if (whole.row && whole.at == position) automaton.step(*symbols_, text, whole);
            is_cut = is_cut || whole.last == position || automaton.surely_begins(next.symbol);
            size_t at = position;
            for (Symbols::Read read; at < reach; at += read.size)
                if (automaton.may_begin((read = symbols_->read(text.data + at, end)).symbol)) break;
            reach = std::min(reach, at);
            continue;
        }
        if (!whole.row || whole.at != position) return false;
        Automaton::Search same = whole, fresh = automaton.begin_at(position);
        // The first match ends here, as it would at the end of the text, and so do those of later stages.
        if (!automaton.step(*symbols_, text, same)) return same.last == position && automaton.ends(whole.row);
        // Otherwise the searches with and without the cut must reach the same state and end alike.
        bool is_one = false;
        for (same = whole; across && !is_one && automaton.step(*symbols_, text, same) && same.at <= reach;) {
            if (!automaton.step(*symbols_, text, fresh)) break;
            const bool ended = same.last == fresh.last && same.last > position;
            is_one = same.row == fresh.row && (ended || automaton.is_sure(same.row));
        }
        if (!is_one) return false;
        reach = automaton.is_sure(same.row) ? same.at : same.last;
    }
    return is_cut;
}

std::vector<Automaton::Search> Splitter::searches_at(size_t position) const {
    std::vector<Automaton::Search> searches;
    for (const Machine& machine : machines_) searches.push_back(machine.automaton.begin_at(position));
    return searches;
}

size_t Splitter::find_resumption(Span text, const std::vector<size_t>& positions) const {
    size_t found = 0, begin, end;
    Cursor cursor(*this);
    if (!is_plain_ || !next_piece(machines_.size() - 1, text, 0, cursor, begin, end)) return found;
    std::vector<Automaton::Search> searches = searches_at(0);
    for (const size_t position : positions)
        if (position && position <= end && position < text.size && resumes(text, searches, position, true))
            found = position;
    return found;
}

size_t Splitter::last_cut(Span text) const {
    size_t cut = 0, begin, end;
    Cursor cursor(*this);
    while (is_plain_ && next_piece(machines_.size() - 1, text, cut, cursor, begin, end) && end < text.size) {
        std::vector<Automaton::Search> searches = searches_at(cut);
        if (!resumes(text, searches, end, false)) break;
        cut = end;
    }
    return cut;
}

}  // namespace groundup
