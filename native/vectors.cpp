#include "vectors.h"

#include <cstdlib>

#include "types.h"

namespace groundup {

namespace {

std::vector<Vectors> find_available() {
    std::vector<Vectors> found = {Vectors::kPlain};
#if defined(__aarch64__)
    found.push_back(Vectors::kNeon);
#elif defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt")) {
        found.push_back(Vectors::kAvx2);
        if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi2"))
            found.push_back(Vectors::kAvx512);
    }
#endif
    return found;
}

}  // namespace

const char* name_of(Vectors vectors) {
    constexpr const char* kNames[] = {"plain", "neon", "avx2", "avx512"};
    return kNames[static_cast<size_t>(vectors)];
}

const std::vector<Vectors>& available_vectors() {
    static const std::vector<Vectors> available = find_available();
    return available;
}

Vectors vectors_from_name(const std::string& name) {
    std::string names;
    for (const Vectors vectors : available_vectors()) {
        if (name == name_of(vectors)) return vectors;
        names += std::string(names.empty() ? "" : ", ") + name_of(vectors);
    }
    throw InputError("this CPU does not support the vector instructions '" + name + "'; set GROUNDUP_VECTORS to one of " + names);
}

Vectors vectors_in_use() {
    static const char* const asked = std::getenv("GROUNDUP_VECTORS");
    static const Vectors chosen = asked && *asked ? vectors_from_name(asked) : available_vectors().back();
    return chosen;
}

}  // namespace groundup
