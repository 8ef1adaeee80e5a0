// A separate program that checks that the core computes the same with every SIMD instruction set of this
// CPU. It needs no Python, so that it also runs in an emulator of another CPU.
//
// Prints a line for each instruction set; exits with 1 at the first difference.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "encoder.h"
#include "float_rows.h"
#include "splitter.h"
#include "vectors.h"

using namespace groundup;

namespace {

void check(bool holds, const char* what) {
    if (holds) return;
    std::printf("failed: %s\n", what);
    std::exit(1);
}

// A random number generator that gives the same numbers on every machine.
struct Random {
    uint64_t state = 1;
    uint64_t below(uint64_t limit) {
        state = mix(state ^ kSeedA, kSeedB);
        return state % limit;
    }
    float real() { return static_cast<float>(below(2001)) / 200.0f - 5.0f; }
};

std::string random_text(Random& random, size_t num_pieces) {
    static const char* const pieces[] = {
        "a", "the", "The", "ing", " ", " ", "  ", "\n", "\r\n", "\t", "1", "2024", "'s", "'LL", "'", ".", "//",
        "\xC3\xA9", "\xD0\x96", "\xE5\xAD\x97", "\xE3\x80\x80", "\xC2\xA0", "\xF0\x9F\x98\x80", "\xD9\xA3", "\xCC\x81", "\xFF"};
    std::string text;
    for (size_t i = 0; i < num_pieces; i++) {
        const std::string piece = pieces[random.below(sizeof pieces / sizeof *pieces)];
        const size_t repeats = random.below(40) ? 1 : 1 + random.below(5000 / piece.size());
        for (size_t k = 0; k < repeats; k++) text += piece;
    }
    return text;
}

// The patterns that have scanners, copied from src/groundup/tokenizer/patterns.py.
const std::pair<const char*, const char*> kPatterns[] = {
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {"cl100k", R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3})"
               R"(| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\Z|\s*[\r\n]|\s+(?!\S)|\s)"},
    {"o200k", R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
              R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
              R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
              R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

std::vector<size_t> cuts_of(const std::string& text, const Splitter& splitter) {
    std::vector<size_t> cuts;
    std::vector<uint32_t> ends(kMaxEnds);
    for (Cursor cursor(splitter); cursor.at < text.size();) {
        size_t begin;
        const size_t count = splitter.scan({reinterpret_cast<const Byte*>(text.data()), text.size()}, cursor, begin, ends.data());
        for (size_t i = 0; i < count; i++) cuts.push_back(begin + ends[i]);
    }
    return cuts;
}

void check_scanners(Vectors vectors) {
    Random random;
    for (const auto& [name, pattern] : kPatterns) {
        const std::vector<Stage> stages{{pattern, Behaviour::kIsolated}};
        const Splitter scanning(stages, name, vectors), plain(stages, name, Vectors::kPlain);
        for (int round = 0; round < 25; round++) {
            const std::string text = random_text(random, 1 + random.below(2000));
            check(cuts_of(text, scanning) == cuts_of(text, plain), "a scanner cuts as the engine does");
        }
    }
}

// Reference merging: the earliest merge that applies anywhere, at its leftmost position.
std::vector<std::string> merge_slowly(std::string word, const Vocabulary& vocabulary) {
    std::vector<std::string> parts;
    for (const char byte : word) parts.emplace_back(1, byte);
    for (bool merged = true; merged;) {
        merged = false;
        for (const auto& [left, right] : vocabulary.merges) {
            for (size_t i = 0; i + 1 < parts.size() && !merged; i++) {
                if (parts[i] != left || parts[i + 1] != right) continue;
                parts[i] += right;
                parts.erase(parts.begin() + static_cast<ptrdiff_t>(i) + 1);
                merged = true;
            }
            if (merged) break;
        }
    }
    return parts;
}

void check_encoder() {
    Vocabulary vocabulary;
    for (int byte = 0; byte < 256; byte++) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    Random random;
    const std::string letters = "abcde ";
    while (vocabulary.tokens.size() < 400) {
        const auto part = [&] {
            return random.below(3) ? std::string(1, letters[random.below(letters.size())])
                                   : vocabulary.tokens[256 + random.below(vocabulary.tokens.size() - 255) - 1];
        };
        const std::string left = part(), right = part();
        if (std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), left + right) != vocabulary.tokens.end())
            continue;
        vocabulary.tokens.push_back(left + right);
        vocabulary.merges.emplace_back(left, right);
    }
    vocabulary.present.assign(vocabulary.tokens.size(), true);
    const std::vector<Stage> stages{{kPatterns[0].second, Behaviour::kIsolated}};
    const Encoder encoder(vocabulary, std::make_shared<const Splitter>(stages, "gpt2"));
    for (size_t size = 1; size < 200; size++) {
        std::string word;
        for (size_t i = 0; i < size; i++) word += letters[random.below(letters.size() - 1)];
        std::vector<std::string> found;
        IdBuffer ids(encoder.id_bytes());
        encoder.encode({reinterpret_cast<const Byte*>(word.data()), word.size()}, ids);
        for (size_t i = 0; i < ids.count; i++)
            found.push_back(vocabulary.tokens[reinterpret_cast<const uint16_t*>(ids.data())[i]]);
        check(found == merge_slowly(word, vocabulary), "a word is merged as the definition says");
    }
}

void check_close(float found, double expected, const char* what) {
    check(std::abs(found - expected) <= 1e-5 + 1e-4 * std::abs(expected), what);
}

void check_rows() {
    Random random;
    for (const size_t width : {size_t{1}, size_t{6}, size_t{16}, size_t{37}, size_t{128}}) {
        std::vector<float> x(2 * width), gain(width), out(width), scale(1), losses(1);
        for (float& value : x) value = random.real();
        for (float& value : gain) value = random.real();
        run(NormRows{x.data(), nullptr, gain.data(), nullptr, out.data(), scale.data(), 1, width, 1e-5f}, 1);
        double squares = 0;
        for (size_t i = 0; i < width; i++) squares += double{x[i]} * x[i];
        const double norm = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        for (size_t i = 0; i < width; i++) check_close(out[i], x[i] * norm * gain[i], "a row is normed");
        run(GateRows{x.data(), out.data(), 1, width}, 1);
        for (size_t i = 0; i < width; i++)
            check_close(out[i], x[i] / (1 + std::exp(-double{x[i]})) * x[width + i], "a row is gated");
        std::vector<float> logits(x.begin(), x.begin() + static_cast<ptrdiff_t>(width));
        const int64_t target = static_cast<int64_t>(random.below(width));
        run(LossRows{logits.data(), losses.data(), &target, 1, width, 0.0f}, 1);
        double total = 0;
        for (size_t i = 0; i < width; i++) total += std::exp(double{x[i]});
        check_close(losses[0], std::log(total) - x[static_cast<size_t>(target)], "a loss is right");
        for (size_t i = 0; i < width; i++)
            check_close(logits[i], std::exp(double{x[i]}) / total - (i == static_cast<size_t>(target)),
                        "the gradient of a loss is right");
    }
}

// The outputs of the heads of one sequence, by the formula, summed with weights `d_out`.
double attend_by_formula(const AttentionShape& shape, const std::vector<double>& packed,
                         const std::vector<double>& gains, const std::vector<float>& d_out, std::vector<double>& out) {
    const size_t seq = shape.seq, size = shape.d_head, width = shape.num_heads * size;
    double total = 0;
    for (size_t head = 0; head < shape.num_heads; head++) {
        std::vector<double> made[2] = {std::vector<double>(seq * size), std::vector<double>(seq * size)};
        for (size_t part = 0; part < 2; part++)
            for (size_t position = 0; position < seq; position++) {
                const double* const x = packed.data() + (position * 3 + part) * width + head * size;
                double* const to = made[part].data() + position * size;
                double squares = 0;
                for (size_t i = 0; i < size; i++) squares += x[i] * x[i];
                const double norm = 1 / std::sqrt(squares / static_cast<double>(size) + double{shape.eps});
                for (size_t i = 0; i < size; i += 2) {
                    const double even = x[i] * norm * gains[part * size + i];
                    const double odd = x[i + 1] * norm * gains[part * size + i + 1];
                    const double cos = shape.cos[(position * size + i) / 2], sin = shape.sin[(position * size + i) / 2];
                    to[i] = even * cos - odd * sin;
                    to[i + 1] = even * sin + odd * cos;
                }
            }
        for (size_t query = 0; query < seq; query++) {
            const size_t first = shape.starts ? static_cast<size_t>(shape.starts[query]) : 0;
            std::vector<double> weights(query + 1);
            double sum = 0;
            for (size_t key = first; key <= query; key++) {
                double score = 0;
                for (size_t i = 0; i < size; i++) score += made[0][query * size + i] * made[1][key * size + i];
                sum += weights[key] = std::exp(score / std::sqrt(static_cast<double>(size)));
            }
            for (size_t i = 0; i < size; i++) {
                const size_t at = query * width + head * size + i;
                out[at] = 0;
                for (size_t key = first; key <= query; key++)
                    out[at] += weights[key] / sum * packed[(key * 3 + 2) * width + head * size + i];
                total += out[at] * double{d_out[at]};
            }
        }
    }
    return total;
}

// Causal attention with QK norm and RoPE, within documents of a given length if that is not 0, and the
// derivative of its sum in some direction.
void check_attention(size_t seq, size_t num_heads, size_t d_head, size_t document = 0) {
    Random random;
    const size_t size = seq * num_heads * d_head;
    std::vector<float> packed(3 * size), gains(2 * d_head), cos(seq * d_head / 2), sin(seq * d_head / 2), d_out(size);
    for (float& value : packed) value = random.real() / 4;
    for (float& value : gains) value = 1 + random.real() / 10;
    for (float& value : d_out) value = random.real() / 4;
    for (size_t i = 0; i < cos.size(); i++) {
        cos[i] = static_cast<float>(std::cos(double(i)));
        sin[i] = static_cast<float>(std::sin(double(i)));
    }
    std::vector<int64_t> starts(seq);
    for (size_t i = 0; i < seq && document; i++) starts[i] = static_cast<int64_t>(i / document * document);
    const AttentionShape shape = {1, seq, num_heads, d_head, cos.data(), sin.data(), gains.data(),
                                  document ? starts.data() : nullptr, 1e-5f};
    std::vector<float> out(size), log_sums(seq * num_heads), d_packed(3 * size), d_gains(2 * d_head);
    run(Attention{shape, packed.data(), out.data(), log_sums.data()}, 2);
    run(AttentionGradient{shape, packed.data(), out.data(), log_sums.data(), d_out.data(), d_packed.data(),
                          d_gains.data()},
        2);
    std::vector<double> x(packed.begin(), packed.end()), gain(gains.begin(), gains.end()), expected(size), unused(size);
    attend_by_formula(shape, x, gain, d_out, expected);
    for (size_t i = 0; i < size; i++) check_close(out[i], expected[i], "heads attend");
    const double step = 1e-5;
    std::vector<double> sums;
    std::vector<float> directions(3 * size + 2 * d_head);
    for (float& value : directions) value = random.real();
    for (const double sign : {1.0, -1.0}) {
        std::vector<double> moved_x = x, moved_gain = gain;
        for (size_t i = 0; i < x.size(); i++) moved_x[i] += sign * step * double{directions[i]};
        for (size_t i = 0; i < gain.size(); i++) moved_gain[i] += sign * step * double{directions[x.size() + i]};
        sums.push_back(attend_by_formula(shape, moved_x, moved_gain, d_out, unused));
    }
    double slope = 0, largest = 0;
    for (size_t i = 0; i < directions.size(); i++) {
        const double part = double{directions[i]} * double{i < x.size() ? d_packed[i] : d_gains[i - x.size()]};
        slope += part;
        largest = std::max(largest, std::abs(part));
    }
    check(std::abs((sums[0] - sums[1]) / (2 * step) - slope) <= 1e-4 * largest, "the gradient of attention is right");
}

void check_all_attention() {
    check_attention(1, 1, 2);
    check_attention(21, 2, 6);
    check_attention(40, 1, 32);
    check_attention(37, 1, 70);
    check_attention(90, 1, 10, 1);
    check_attention(90, 2, 34, 37);
}

// One step with a = 1.5 and b = -0.5, and one with only c.
void check_orthogonalization(size_t rows, size_t columns) {
    Random random;
    const float coefficients[] = {1.5f, -0.5f, 0.0f, 0.0f, 0.0f, 2.0f};
    std::vector<float> matrices(2 * rows * columns), out(matrices.size());
    for (float& value : matrices) value = random.real();
    run(Orthogonalization{matrices.data(), coefficients, out.data(), 2, rows, columns, 2}, 2);
    const auto multiply = [](const std::vector<double>& a, const std::vector<double>& b, size_t depth) {
        const size_t height = a.size() / depth, width = b.size() / depth;
        std::vector<double> product(height * width);
        for (size_t m = 0; m < height; m++)
            for (size_t i = 0; i < width; i++)
                for (size_t k = 0; k < depth; k++) product[m * width + i] += a[m * depth + k] * b[k * width + i];
        return product;
    };
    for (size_t number = 0; number < 2; number++) {
        const auto begin = matrices.begin() + static_cast<ptrdiff_t>(number * rows * columns);
        std::vector<double> x(begin, begin + static_cast<ptrdiff_t>(rows * columns)), turned(x.size());
        double squares = 0;
        for (const double value : x) squares += value * value;
        for (double& value : x) value /= std::sqrt(squares);
        for (size_t step = 0; step < 2; step++) {
            for (size_t m = 0; m < rows; m++)
                for (size_t i = 0; i < columns; i++) turned[i * rows + m] = x[m * columns + i];
            const std::vector<double> gram = multiply(x, turned, columns), third = multiply(gram, x, rows);
            const std::vector<double> fifth = multiply(gram, third, rows);
            for (size_t i = 0; i < x.size(); i++) x[i] = step ? 2 * fifth[i] : 1.5 * x[i] - 0.5 * third[i];
        }
        for (size_t i = 0; i < x.size(); i++) check_close(out[number * x.size() + i], x[i], "a matrix is orthogonalized");
    }
}

}  // namespace

int main() {
    for (const Vectors vectors : available_vectors()) {
        check_scanners(vectors);
        std::printf("%s: scanners agree\n", name_of(vectors));
    }
    check_encoder();
    check_rows();
    check_all_attention();
    check_orthogonalization(1, 3);
    check_orthogonalization(21, 37);
    std::printf("%s: encoder and rows agree\n", name_of(vectors_in_use()));
    return 0;
}
