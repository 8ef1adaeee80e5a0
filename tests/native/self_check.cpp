// A program, not a part of the module: does the core compute the same with every kind of vector that
// this processor has? It needs no Python, so that it also runs in an emulator of another processor.
//
// Prints a line for each kind; exits with 1 at the first difference.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "encoder.h"
#include "float_rows.h"
#include "pretokenizer.h"
#include "vectors.h"

using namespace groundup;

namespace {

void check(bool holds, const char* what) {
    if (holds) return;
    std::printf("failed: %s\n", what);
    std::exit(1);
}

// The same numbers on every machine.
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

std::vector<size_t> cuts_of(const std::string& text, ScanFunction scan) {
    std::vector<size_t> cuts;
    std::vector<uint32_t> ends(kMaxEnds);
    const Byte* const data = reinterpret_cast<const Byte*>(text.data());
    for (size_t at = 0; at < text.size();) {
        const size_t count = scan({data + at, text.size() - at}, ends.data());
        for (size_t i = 0; i < count; i++) cuts.push_back(at + ends[i]);
        at = cuts.back();
    }
    return cuts;
}

void check_scanners(Vectors vectors) {
    Random random;
    for (int round = 0; round < 25; round++) {
        const std::string text = random_text(random, 1 + random.below(2000));
        for (const Pattern pattern : {Pattern::kGpt2, Pattern::kCl100k, Pattern::kLlama3, Pattern::kQwen2,
                                      Pattern::kO200k})
            check(cuts_of(text, scanner_for(pattern, vectors)) ==
                      cuts_of(text, scanner_for(pattern, Vectors::kPlain)),
                  "a scanner cuts as the plain one does");
    }
}

// Merges by the definition: the earliest rule that applies anywhere, at its leftmost position.
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
    const Pattern pattern = Pattern::kGpt2;
    const Encoder encoder(vocabulary, &pattern);
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
    // Two heads of six values at position 1 of two.
    std::vector<float> packed(2 * 12), rotated(2 * 12), cos(2 * 3), sin(2 * 3);
    for (float& value : packed) value = random.real();
    for (size_t i = 0; i < 6; i++) {
        cos[i] = static_cast<float>(std::cos(double(i)));
        sin[i] = static_cast<float>(std::sin(double(i)));
    }
    run(RotationRows{{packed.data(), packed.data()}, nullptr, cos.data(), sin.data(), {rotated.data(), rotated.data()},
                 nullptr, 2, 12, 12, 2, 2, 6, false}, 1);
    for (size_t row = 0; row < 2; row++)
        for (size_t pair = 0; pair < 6; pair++) {
            const double even = packed[row * 12 + 2 * pair], odd = packed[row * 12 + 2 * pair + 1];
            const double angle = static_cast<double>(row * 3 + pair % 3);
            check_close(rotated[row * 12 + 2 * pair], even * std::cos(angle) - odd * std::sin(angle), "a pair is rotated");
            check_close(rotated[row * 12 + 2 * pair + 1], even * std::sin(angle) + odd * std::cos(angle), "a pair is rotated");
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
    std::printf("%s: encoder and rows agree\n", name_of(vectors_in_use()));
    return 0;
}
