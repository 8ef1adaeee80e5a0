#include "pattern.h"

#include <algorithm>
#include <utility>

namespace groundup {

namespace {

constexpr size_t kMaxBytes = 1 << 16, kMaxSets = 250, kMaxSteps = 20000;
constexpr int kMaxDepth = 100;
constexpr uint32_t kLongS = 0x17F, kKelvin = 0x212A;
constexpr uint32_t kMaxRepeats = 1000;

CodePoints combine(const CodePoints& a, const CodePoints& b, bool (*keep)(bool, bool)) {
    CodePoints made;
    for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
        const uint32_t at = std::min(i < a.size() ? a[i] : kNone, j < b.size() ? b[j] : kNone);
        i += i < a.size() && a[i] == at;
        j += j < b.size() && b[j] == at;
        if (keep(i % 2, j % 2) != (made.size() % 2 == 1)) made.push_back(at);
    }
    return made;
}

CodePoints unite(const CodePoints& a, const CodePoints& b) {
    return combine(a, b, [](bool x, bool y) { return x || y; });
}

CodePoints difference(const CodePoints& a, const CodePoints& b) {
    return combine(a, b, [](bool x, bool y) { return x && !y; });
}

CodePoints complement(const CodePoints& a) { return difference({0, kEndOfText}, a); }

// A node of the syntax tree.
struct Node {
    enum Kind : uint8_t { kSet, kLook, kBegin, kSequence, kAlternatives, kRepeat } kind;
    CodePoints set;
    std::vector<Node> parts;
    uint32_t min_count = 1, max_count = 1;  // kNone: any number
    char mode = 0;                 // '?': lazy, '+': possessive

    bool may_be_empty() const {
        const auto is_empty = [](const Node& part) { return part.may_be_empty(); };
        if (kind == kSet) return false;
        if (kind == kAlternatives) return std::any_of(parts.begin(), parts.end(), is_empty);
        return min_count == 0 || std::all_of(parts.begin(), parts.end(), is_empty);
    }
};

class Parser {
public:
    Parser(const std::string& text, std::vector<CodePoints>& sets) : sets_(sets) {
        if (text.size() > kMaxBytes) throw InputError("more than " + std::to_string(kMaxBytes) + " bytes");
        const Byte* p = reinterpret_cast<const Byte*>(text.data());
        for (const Byte* const end = p + text.size(); p < end; p += decode_char(p, end).size)
            text_.push_back(decode_char(p, end).code_point);
    }

    Program parse() {
        const Node whole = alternatives();
        if (at_ < text_.size()) fail("an unmatched ')'", at_);
        if (whole.may_be_empty()) fail("a match of no characters (write + instead of *),", 0);
        const uint32_t end = add({Step::kMatch, 0, 0, 0});
        program_.start = emit(whole, end);
        return std::move(program_);
    }

private:
    [[noreturn]] static void fail(const std::string& what, size_t position) {
        throw InputError(what + " at position " + std::to_string(position));
    }

    uint32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : kNone; }
    bool accept(const char* expected) {
        size_t size = 0;
        for (; expected[size]; size++)
            if (peek(size) != static_cast<Byte>(expected[size])) return false;
        at_ += size;
        return true;
    }

    // Parses up to a closing parenthesis or the end.
    Node alternatives() {
        Node node{Node::kAlternatives, {}, {}};
        do {
            Node sequence{Node::kSequence, {}, {}};
            while (at_ < text_.size() && peek() != '|' && peek() != ')') quantified(sequence.parts);
            node.parts.push_back(std::move(sequence));
        } while (accept("|"));
        return node.parts.size() == 1 ? Node(std::move(node.parts[0])) : node;
    }

    void quantified(std::vector<Node>& parts) {
        const size_t begin = at_;
        Node node = atom();
        const size_t position = at_;
        Node repeat{Node::kRepeat, {}, {}};
        if (accept("*")) {
            repeat.min_count = 0, repeat.max_count = kNone;
        } else if (accept("+")) {
            repeat.max_count = kNone;
        } else if (accept("?")) {
            repeat.min_count = 0;
        } else if (accept("{")) {
            const bool bare = peek() == ',';
            repeat.min_count = bare ? 0 : number(position);
            repeat.max_count = repeat.min_count;
            if (accept(",")) repeat.max_count = peek() == '}' && !bare ? kNone : number(position);
            if (!accept("}") || repeat.max_count < repeat.min_count) fail("an invalid repetition in braces", position);
        } else {
            parts.push_back(std::move(node));
            return;
        }
        repeat.mode = accept("?") ? '?' : accept("+") ? '+' : 0;
        if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') fail("a repetition of a repetition", at_);
        if (node.kind == Node::kSequence && node.parts.size() == 1) node = Node(std::move(node.parts[0]));
        if (repeat.mode == '+' && node.kind != Node::kSet) fail("a possessive repetition of a group", position);
        if (repeat.max_count > 1 && node.may_be_empty()) fail("a repetition of something that can match nothing", begin);
        repeat.parts.push_back(std::move(node));
        parts.push_back(std::move(repeat));
    }

    uint32_t number(size_t position) {
        uint32_t value = kNone;
        for (; peek() >= '0' && peek() <= '9'; at_++) {
            value = (value == kNone ? 0 : 10 * value) + peek() - '0';
            if (value > kMaxRepeats) fail("a repetition of more than 1000 times", position);
        }
        if (value == kNone) fail("an invalid repetition in braces", position);
        return value;
    }

    Node set_of(CodePoints set) const { return {Node::kSet, std::move(set), {}}; }

    Node atom() {
        const size_t position = at_;
        const uint32_t c = text_[at_++];
        switch (c) {
            case '(': return group(position);
            case '[': return set_of(class_set(position));
            case '.': return set_of(dot_all_ ? complement({}) : complement({'\n', '\n' + 1}));
            case '^': return {Node::kBegin, {}, {}};
            case '$': return {Node::kLook, {kEndOfText, kEndOfText + 1}, {}};
            case '*': case '+': case '?': fail("a quantifier after nothing", position);
            case '{': fail("a brace that starts no repetition (fuzzy matching is unsupported; write \\{)", position);
            case '\\': break;
            default: return set_of(with_cases({c, c + 1}, position));
        }
        switch (peek()) {
            case 'A': at_++; return {Node::kBegin, {}, {}};
            case 'z': case 'Z': at_++; return {Node::kLook, {kEndOfText, kEndOfText + 1}, {}};
            case 'b': case 'B': fail("a word boundary", position);
            default: return set_of(escape(position));
        }
    }

    Node group(size_t position) {
        const bool any_case = any_case_, dot_all = dot_all_;
        enter(position);
        const bool looks = accept("?=") || accept("?!"), negative = text_[at_ - 1] == '!';
        if (!looks && accept("?")) {
            const bool named = accept("P<") || (peek() == '<' && peek(1) != '=' && peek(1) != '!');
            while (named && peek() != kNone && text_[at_++] != '>') continue;
            for (bool on = true; !named && !accept(":"); at_++) {
                const uint32_t c = peek();
                if (c == ')') {
                    // Flags for the rest of the enclosing group.
                    at_++, depth_--;
                    return {Node::kSequence, {}, {}};
                }
                if (c == '-') on = false;
                else if (c == 'i') any_case_ = on;
                else if (c == 's') dot_all_ = on;
                else fail(c == '<' ? "a look-behind" : c == '>' ? "an atomic group" : c == '(' ? "a conditional"
                            : c == 'R' || c == '&' || (c >= '0' && c <= '9') ? "a recursion"
                            : "a group of unknown kind", position);
            }
        }
        Node node = alternatives();
        if (!accept(")")) fail("an unclosed '('", position);
        depth_--;
        any_case_ = any_case;
        dot_all_ = dot_all;
        if (!looks) return node;
        const CodePoints ahead = look_set(node, position);
        return {Node::kLook, negative ? difference({0, kEndOfText + 1}, ahead) : ahead, {}};
    }

    void enter(size_t position) {
        if (++depth_ > kMaxDepth) fail("more than a hundred nested groups", position);
    }

    CodePoints look_set(const Node& node, size_t position) const {
        if (node.kind == Node::kSet || (node.kind == Node::kLook && node.set[0] == kEndOfText)) return node.set;
        if (node.kind == Node::kSequence && node.parts.size() == 1) return look_set(node.parts[0], position);
        if (node.kind != Node::kAlternatives) fail("a look-ahead that is not one character", position);
        CodePoints set;
        for (const Node& part : node.parts) set = unite(set, look_set(part, position));
        return set;
    }

    using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

    static void add_set(Ranges& ranges, const CodePoints& set) {
        for (size_t i = 0; i < set.size(); i += 2) ranges.emplace_back(set[i], set[i + 1]);
    }

    CodePoints class_set(size_t position) {
        enter(position);
        const bool negative = accept("^");
        Ranges characters, ranges;
        CodePoints met = complement({});
        const auto meet = [&] {
            add_set(ranges, with_cases(set_of_ranges(characters), position));
            met = difference(met, complement(set_of_ranges(ranges)));
            characters.clear(), ranges.clear();
        };
        for (bool is_first = true; is_first || !accept("]"); is_first = false) {
            const size_t begin = at_;
            if (at_ >= text_.size()) fail("an unclosed '['", position);
            if (accept("[:")) fail("a POSIX class", begin);
            if (accept("&&")) {
                meet();
            } else if (accept("[")) {
                add_set(ranges, class_set(begin));
            } else {
                CodePoints item = class_item(begin);
                if (is_single(item) && peek() == '-' && peek(1) != ']' && peek(1) != kNone) {
                    at_++;
                    const CodePoints high = class_item(begin);
                    if (!is_single(high) || high[0] < item[0]) fail("an invalid range", begin);
                    item[1] = high[1];
                    characters.emplace_back(item[0], item[1]);
                } else {
                    add_set(is_single(item) ? characters : ranges, item);
                }
            }
        }
        meet();
        depth_--;
        return negative ? complement(met) : met;
    }

    CodePoints class_item(size_t position) {
        if (accept("\\")) return escape(position);
        at_++;
        return {text_[at_ - 1], text_[at_ - 1] + 1};
    }

    static bool is_single(const CodePoints& set) { return set.size() == 2 && set[1] == set[0] + 1; }

    static CodePoints set_of_ranges(Ranges& ranges) {
        std::sort(ranges.begin(), ranges.end());
        CodePoints set;
        for (const auto& [first, end] : ranges) {
            if (set.empty() || first > set.back()) set.insert(set.end(), {first, end});
            else set.back() = std::max(set.back(), end);
        }
        return set;
    }

    // With (?i), adds the other case of each letter. Limited to ASCII and the two characters that fold to it.
    CodePoints with_cases(CodePoints set, size_t position) const {
        if (!any_case_) return set;
        Ranges ranges;
        add_set(ranges, set);
        for (size_t i = 0; i < set.size(); i += 2) {
            for (uint32_t c = set[i]; c < set[i + 1]; c++) {
                const uint32_t small = c == kLongS ? 's' : c == kKelvin ? 'k' : c | 0x20;
                if (small >= 'a' && small <= 'z') {
                    for (const uint32_t same : {small, small - 0x20}) ranges.emplace_back(same, same + 1);
                    if (small == 's') ranges.emplace_back(kLongS, kLongS + 1);
                    if (small == 'k') ranges.emplace_back(kKelvin, kKelvin + 1);
                } else if (c >= 0x80 && (class_of_code_point(c) == kUpper || class_of_code_point(c) == kLower)) {
                    fail("a cased letter beyond ASCII inside (?i:…)", position);
                }
            }
        }
        return set_of_ranges(ranges);
    }

    // The set of an escape, after its backslash.
    CodePoints escape(size_t position) {
        const uint32_t c = peek();
        at_++;
        const auto one = [](uint32_t code_point) { return CodePoints{code_point, code_point + 1}; };
        switch (c) {
            case kNone: fail("a backslash at the end", position);
            case 's': return find_property("space");
            case 'S': return complement(find_property("space"));
            case 'd': return find_property("nd");
            case 'D': return complement(find_property("nd"));
            case 'w': return find_property("word");
            case 'W': return complement(find_property("word"));
            case 'p': case 'P': return property(c == 'P', position);
            case 'n': return one('\n');
            case 'r': return one('\r');
            case 't': return one('\t');
            case 'f': return one('\f');
            case 'v': return one('\v');
            case 'x': return one(hexadecimal(2, position));
            case 'u': return one(hexadecimal(4, position));
            default: break;
        }
        if (c >= '1' && c <= '9') fail("a back-reference", position);
        if (c < 0x80 && (kAsciiClass[c] == kNumber || is_letter(static_cast<CharClass>(kAsciiClass[c]))))
            fail(std::string("the escape \\") + static_cast<char>(c), position);
        return one(c);
    }

    // Parses `digits` hexadecimal digits, or any number of them in braces.
    uint32_t hexadecimal(int digits, size_t position) {
        const bool braces = accept("{");
        uint32_t value = 0;
        for (int i = 0; braces ? peek() != '}' : i < digits; i++, at_++) {
            const uint32_t digit = peek() - '0' < 10 ? peek() - '0' : (peek() | 0x20) - 'a' + 10;
            value = value << 4 | digit;
            if (digit > 15 || value >= kEndOfText) fail("an invalid code point", position);
        }
        at_ += braces;
        return value;
    }

    CodePoints property(bool negative, size_t position) {
        std::string name;
        const bool braces = accept("{");
        if (braces && accept("^")) negative = !negative;
        for (bool more = true; more; more = braces && peek() != '}') {
            const uint32_t c = peek();
            at_++;
            if (c >= 0x80 || name.size() > 60) fail("an unclosed property", position);
            if (c == '=' || c == ':') name.clear();
            else if (c != '_' && c != '-' && c != ' ') name += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
        }
        if (braces) at_++;
        if (any_case_ && (name == "lu" || name == "ll" || name == "lt")) fail("a case property inside (?i:…)", position);
        const CodePoints set = find_property(name);
        if (set.empty()) fail("the unknown property \\p{" + name + "}", position);
        return negative ? complement(set) : set;
    }

    uint32_t add(const Step& step) {
        if (program_.steps.size() >= kMaxSteps) throw InputError("more than 20000 steps after expanding repetitions");
        program_.steps.push_back(step);
        return static_cast<uint32_t>(program_.steps.size() - 1);
    }

    uint32_t number_of(const CodePoints& set) {
        const auto found = std::find(sets_.begin(), sets_.end(), set);
        if (found == sets_.end() && sets_.size() == kMaxSets) throw InputError("more than 250 character sets");
        const auto number = found - sets_.begin();
        if (found == sets_.end()) sets_.push_back(set);
        return static_cast<uint32_t>(number);
    }

    // Emits the steps of a node, which continue at `next`; returns the first.
    uint32_t emit(const Node& node, uint32_t next) {
        if (node.kind == Node::kSet) return add({Step::kSet, number_of(node.set), next, 0});
        if (node.kind == Node::kLook) return add({Step::kLook, number_of(node.set), next, 0});
        if (node.kind == Node::kBegin) return add({Step::kBegin, 0, next, 0});
        if (node.kind == Node::kSequence) {
            for (size_t i = node.parts.size(); i-- > 0;) next = emit(node.parts[i], next);
            return next;
        }
        if (node.kind == Node::kAlternatives) {
            uint32_t entry = emit(node.parts.back(), next);
            for (size_t i = node.parts.size() - 1; i-- > 0;)
                entry = add({Step::kSplit, 0, emit(node.parts[i], next), entry});
            return entry;
        }
        const Node& part = node.parts[0];
        // Possessive: no character of the set may follow.
        uint32_t after = next;
        if (node.mode == '+')
            after = add({Step::kLook, number_of(difference({0, kEndOfText + 1}, part.set)), next, 0});
        const auto choice = [&](uint32_t more) {
            return node.mode == '?' ? Step{Step::kSplit, 0, after, more} : Step{Step::kSplit, 0, more, after};
        };
        uint32_t entry = next;
        if (node.max_count == kNone) {
            entry = add({});
            program_.steps[entry] = choice(emit(part, entry));
        } else {
            for (uint32_t i = node.min_count; i < node.max_count; i++) entry = add(choice(emit(part, entry)));
        }
        for (uint32_t i = 0; i < node.min_count; i++) entry = emit(part, entry);
        return entry;
    }

    std::vector<CodePoints>& sets_;
    std::vector<uint32_t> text_;
    Program program_;
    size_t at_ = 0;
    int depth_ = 0;
    bool any_case_ = false, dot_all_ = false;
};

}  // namespace

Program parse_pattern(const std::string& text, std::vector<CodePoints>& sets) {
    return Parser(text, sets).parse();
}

}  // namespace groundup
