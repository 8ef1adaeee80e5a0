// Runs a function on several threads and rethrows the first exception on the calling thread.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "types.h"

namespace groundup {

// Wraps the work of several threads and keeps their first exception.
template <class Work>
class Guarded {
public:
    explicit Guarded(Work& work) : work_(work) {}

    void operator()(size_t thread) {
        try {
            work_(thread);
        } catch (...) {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!failure_) failure_ = std::current_exception();
        }
    }

    // Call after all threads have ended.
    void rethrow() const {
        if (failure_) std::rethrow_exception(failure_);
    }

private:
    Work& work_;
    std::exception_ptr failure_;
    std::mutex mutex_;
};

// Calls work(thread) for thread = 0 .. num_threads - 1; thread 0 is the calling thread.
template <class Work>
void run_threads(size_t num_threads, Work work) {
    Guarded<Work> guarded(work);
    std::vector<std::thread> threads;
    try {
        while (threads.size() + 1 < num_threads) threads.emplace_back(std::ref(guarded), threads.size() + 1);
    } catch (...) {  // The calling thread does the work of those that could not start.
    }
    guarded(0);
    for (size_t i = threads.size() + 1; i < num_threads; i++) guarded(i);
    for (std::thread& thread : threads) thread.join();
    guarded.rethrow();
}

}  // namespace groundup
