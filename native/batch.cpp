// Encodes many documents on several threads.
#include <atomic>

#include "encoder.h"
#include "parallel.h"

namespace groundup {

namespace {
constexpr size_t kUnitBytes = size_t{1} << 17;
constexpr size_t kLongDocument = size_t{1} << 20;

// A document, or a part of a long one.
struct Piece {
    Span text;
    bool ends_document;
    size_t num_ids = 0;
};

// Consecutive pieces that one thread encodes, and the range of their ids in its output.
struct Unit {
    size_t first, end;
    size_t thread = 0, first_id = 0, num_ids = 0;
};
}  // namespace

void encode_batch(const Encoder& encoder, const std::vector<Span>& documents, size_t num_threads, uint32_t end_id,
                  IdBuffer& ids, std::vector<int64_t>& offsets) {
    std::vector<Piece> pieces;
    std::vector<Unit> units;
    size_t bytes = kUnitBytes;
    const auto add = [&](Span text, bool ends_document) {
        if (bytes >= kUnitBytes) {
            units.push_back({pieces.size(), 0});
            bytes = 0;
        }
        pieces.push_back({text, ends_document});
        units.back().end = pieces.size();
        bytes += text.size;
    };
    for (Span rest : documents) {
        while (rest.size > kLongDocument) {
            const size_t cut = encoder.parallel_cut(rest, kUnitBytes);
            if (cut == rest.size) break;
            add({rest.data, cut}, false);
            rest = {rest.data + cut, rest.size - cut};
        }
        add(rest, true);
    }
    std::vector<IdBuffer> outputs;
    for (size_t i = 0; i < num_threads; i++) outputs.emplace_back(encoder.id_bytes());
    std::vector<std::atomic<bool>> taken(units.size());
    run_threads(num_threads, [&](size_t thread) {
        std::shared_ptr<Workspace> workspace;
        IdBuffer& out = outputs[thread];
        // Each thread begins with its own part, whose words its cache knows if it has encoded them before.
        for (size_t i = 0, first = units.size() * thread / num_threads; i < units.size(); i++) {
            const size_t number = (first + i) % units.size();
            if (taken[number].exchange(true)) continue;
            if (!workspace) workspace = encoder.borrow(thread);
            Unit& unit = units[number];
            unit.thread = thread;
            unit.first_id = out.count;
            for (size_t k = unit.first; k < unit.end; k++) {
                const size_t before = out.count;
                workspace->encode(pieces[k].text, out);
                if (pieces[k].ends_document && end_id != kNone) out.push(end_id);
                pieces[k].num_ids = out.count - before;
            }
            unit.num_ids = out.count - unit.first_id;
        }
    });
    offsets.assign(1, 0);
    offsets.reserve(documents.size() + 1);
    int64_t total = 0;
    for (const Piece& piece : pieces) {
        total += static_cast<int64_t>(piece.num_ids);
        if (piece.ends_document) offsets.push_back(total);
    }
    if (outputs[0].count == static_cast<size_t>(total)) {
        ids = std::move(outputs[0]);
        return;
    }
    ids.reserve(ids.count = static_cast<size_t>(total));
    run_threads(num_threads, [&](size_t thread) {
        size_t position = 0;
        for (const Unit& unit : units) {
            if (unit.thread == thread) ids.copy(outputs[unit.thread], unit.first_id, unit.num_ids, position);
            position += unit.num_ids;
        }
    });
}

}  // namespace groundup
