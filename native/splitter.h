// Splits text into pre-tokens by a pattern of one or more stages, each applied to the pieces left by the
// previous one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "automaton.h"
#include "pretokenizer.h"

namespace groundup {

// What a stage does with its matches and the gaps between them. kIsolated: all are pieces. kWithoutMatches:
// matches are removed. kMatchesAlone: gaps are removed. kGapWithMatch: a gap joins the match after it.
// kMatchWithGap: a match joins the gap after it. kContiguous: adjacent matches are joined.
enum class Behaviour { kIsolated, kWithoutMatches, kMatchesAlone, kGapWithMatch, kMatchWithGap, kContiguous };

Behaviour behaviour_from_name(const std::string& name);

struct Stage {
    std::string pattern;
    Behaviour behaviour;
};

class Splitter;

// The position and state of a scan.
class Cursor {
public:
    explicit Cursor(const Splitter& splitter);
    size_t at = 0;  // the text before is done

private:
    friend class Splitter;
    // Of a stage: the current piece of the previous stage, and the last match in it.
    struct Level {
        size_t begin = 0, end = 0, match_begin = 0, match_end = 0;
        Overruns overruns;
    };
    std::vector<Level> levels_;
    size_t engine_bytes_ = 64;
    size_t next_begin_ = 0, next_end_ = 0;  // a piece found after removed text
};

class Splitter {
public:
    // `scanner` names the equivalent hand-written scanner, if there is one.
    Splitter(const std::vector<Stage>& stages, const std::string& scanner, Vectors vectors = vectors_in_use());

    // Writes up to kMaxEnds ends of pre-tokens from cursor.at on, relative to `begin`, the start of the
    // first. There may be removed text before `begin` and after the last.
    size_t scan(Span text, Cursor& cursor, size_t& begin, uint32_t* ends) const;

    // The first position at or after `from` where cutting the text does not change its pre-tokens;
    // text.size if there is none. Depends only on the two adjacent characters.
    size_t safe_cut(Span text, size_t from) const;

    // The last of some increasing positions inside the first pre-token of `text`, which may continue after
    // it, from which the rest splits as in the whole text; 0 if there is none.
    size_t find_resumption(Span text, const std::vector<size_t>& positions) const;

    // The last boundary of pre-tokens up to which a stream may be cut at every boundary; 0 if there is none.
    size_t last_cut(Span text) const;

private:
    friend class Cursor;
    struct Machine {
        Behaviour behaviour;
        Automaton automaton;
        bool begins[256];  // whether a match may begin with this byte
    };
    bool find_match(size_t stage, Span text, size_t from, Cursor& cursor) const;
    bool next_piece(size_t stage, Span text, size_t from, Cursor& cursor, size_t& begin, size_t& end) const;
    std::vector<Automaton::Search> searches_at(size_t position) const;
    bool resumes(Span text, std::vector<Automaton::Search>& searches, size_t position, bool across) const;

    std::unique_ptr<Symbols> symbols_;
    std::vector<Machine> machines_;
    std::vector<bool> cuts_;  // by the symbols before and after a cut
    ScanFunction scanner_ = nullptr;
    bool is_plain_ = true;  // whether all matches are isolated, and none depends on the start of the text
    bool runs_ = false;  // whether Automaton::run can find the last stage's matches
};

}  // namespace groundup
