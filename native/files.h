// Files of others, which may shrink at any moment: ranges read at once, and mappings watched.
#pragma once

#include <string>

#include "types.h"

namespace groundup {

struct RangesRead {
    size_t count;  // how many ranges were there in full
    int error;     // errno of the first that was not, 0 where the file ended
};

// Reads ranges of `size` bytes that begin at `offsets`, one behind the other to `out`.
RangesRead read_ranges(int file, const int64_t* offsets, size_t count, size_t size, Byte* out);

// Looking at a mapped page behind the end of its file is a bus error. From now on one within
// `mapping` prints `message` and ends the process with the exit status of a user's error, as a kill
// would: there is nothing to go back to. Of very many mappings the oldest are forgotten.
void watch_mapping(Span mapping, const std::string& message);

}  // namespace groundup
