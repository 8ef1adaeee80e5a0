// Cuts text into pre-tokens as a pattern of one or several stages says, each cutting the pieces the
// one before it left.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "automaton.h"
#include "pretokenizer.h"

namespace groundup {

// What becomes of a stage's matches and of the text between them: pieces of their own, no pieces at all,
// a piece together with the match behind or before it, or one piece of matches that touch.
enum class Behaviour { kIsolated, kWithoutMatches, kMatchesAlone, kGapWithMatch, kMatchWithGap, kContiguous };

Behaviour behaviour_from_name(const std::string& name);

struct Stage {
    std::string pattern;
    Behaviour behaviour;
};

class Splitter;

// Where a scan of a text stands.
class Cursor {
public:
    explicit Cursor(const Splitter& splitter);
    size_t at = 0;  // the text up to here is done

private:
    friend class Splitter;
    // Of a stage: the piece of the stage before that it works on, and the match it found last.
    struct Level {
        size_t begin = 0, end = 0, match_begin = 0, match_end = 0;
        Overruns overruns;
    };
    std::vector<Level> levels_;
    size_t engine_bytes_ = 64;
    size_t next_begin_ = 0, next_end_ = 0;  // a piece that was found behind text left out
};

class Splitter {
public:
    // `scanner` names the hand-written scanner that cuts alike, if there is one.
    Splitter(const std::vector<Stage>& stages, const std::string& scanner, Vectors vectors = vectors_in_use());

    // Writes the ends of pre-tokens from cursor.at on, at most kMaxEnds, relative to `begin`, where the
    // first begins. Text that belongs to no pre-token may lie before `begin` and behind the last.
    size_t scan(Span text, Cursor& cursor, size_t& begin, uint32_t* ends) const;

    // The first position at or after `from` where text may be cut so that both sides split as the whole
    // does; text.size when there is none. It depends on the characters beside it alone.
    size_t safe_cut(Span text, size_t from) const;

    // The last of some rising places inside of a pre-token that begins `text` and may go on behind it, from
    // which on the text splits as the whole does; 0 when there is none.
    size_t find_resumption(Span text, const std::vector<size_t>& places) const;

    // As far as text that continues may be cut from pre-token to pre-token; 0 where it may not.
    size_t last_cut(Span text) const;

private:
    friend class Cursor;
    struct Machine {
        Behaviour behaviour;
        Automaton automaton;
        bool begins[256];  // the bytes that a match may begin with
    };
    bool find_match(size_t stage, Span text, size_t from, Cursor& cursor) const;
    bool next_piece(size_t stage, Span text, size_t from, Cursor& cursor, size_t& begin, size_t& end) const;
    std::vector<Automaton::Search> searches_at(size_t place) const;
    bool resumes(Span text, std::vector<Automaton::Search>& searches, size_t place, bool across) const;

    std::unique_ptr<Symbols> symbols_;
    std::vector<Machine> machines_;
    std::vector<bool> cuts_;  // by the symbols before and behind
    ScanFunction scanner_ = nullptr;
    bool is_plain_ = true;  // whether all matches are isolated, and none asks where a text begins
    bool runs_ = false;  // whether the last stage's matches may be taken many at a time
};

}  // namespace groundup
