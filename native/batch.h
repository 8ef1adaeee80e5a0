// Encodes many documents on several threads.
#pragma once

#include "encoder.h"

namespace groundup {

// Writes the ids of all documents, `end_id` behind each unless it is kNone, and where each document begins and
// the last ends.
void encode_batch(const Encoder& encoder, const std::vector<Span>& documents, size_t num_threads, uint32_t end_id,
                  IdBuffer& ids, std::vector<int64_t>& offsets);

}  // namespace groundup
