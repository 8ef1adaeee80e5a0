// Runs one function on several threads and brings its exceptions home.
#pragma once

#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "types.h"

namespace groundup {

// Calls work(thread) for thread = 0 .. num_threads - 1, number 0 on the calling thread.
template <class Work>
void run_threads(size_t num_threads, Work work) {
    std::exception_ptr failure;
    std::mutex mutex;
    const auto guarded = [&](size_t thread) {
        try {
            work(thread);
        } catch (...) {
            std::lock_guard<std::mutex> lock(mutex);
            if (!failure) failure = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    try {
        for (size_t i = 1; i < num_threads; i++) threads.emplace_back(guarded, i);
    } catch (const std::system_error&) {
        // Fewer threads than hoped for: the work is shared out as it is taken, so nothing is lost.
    }
    guarded(0);
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace groundup
