// The CPU engine as a program of another processor, for `other_processor.py`: reads requests from its input, and writes answers to its
// output. A request is a name and numbers: a function of the library, or put, get, set and drop, which are about this process' memory.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "penstock_cpu.h"

namespace {

struct Request {
    char name[24];
    int64_t numbers[12];
};

template <typename Result, typename... Arguments, size_t... places>
int64_t call(Result (*function)(Arguments...), const int64_t *numbers, std::index_sequence<places...>) {
    (void)numbers;
    if constexpr (std::is_void_v<Result>) {
        function((Arguments)numbers[places]...);
        return 0;
    } else {
        return (int64_t)function((Arguments)numbers[places]...);
    }
}

template <auto function>
struct Called;

template <typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Called<function> {
    static int64_t run(const int64_t *numbers) {
        return call(function, numbers, std::index_sequence_for<Arguments...>{});
    }
};

constexpr struct {
    const char *name;
    int64_t (*run)(const int64_t *);
} kFunctions[] = {
    {"strlen", Called<static_cast<size_t (*)(const char *)>(std::strlen)>::run},
    {"abi", Called<penstock_cpu_abi>::run},
    {"error", Called<penstock_cpu_error>::run},
    {"instruction_sets", Called<penstock_cpu_instruction_sets>::run},
    {"pack", Called<penstock_cpu_pack>::run},
    {"quantize", Called<penstock_cpu_quantize>::run},
    {"create", Called<penstock_cpu_create>::run},
    {"destroy", Called<penstock_cpu_destroy>::run},
    {"workspace", Called<penstock_cpu_workspace>::run},
    {"reserve", Called<penstock_cpu_reserve>::run},
    {"set_cache", Called<penstock_cpu_set_cache>::run},
    {"set_state", Called<penstock_cpu_set_state>::run},
    {"set_threads", Called<penstock_cpu_set_threads>::run},
    {"step", Called<penstock_cpu_step>::run},
    {"read", Called<penstock_cpu_read>::run},
    {"move", Called<penstock_cpu_move>::run},
    {"head", Called<penstock_cpu_head>::run},
    {"summarize", Called<penstock_cpu_summarize>::run},
    {"draw", Called<penstock_cpu_draw>::run},
    {"buffer", Called<penstock_cpu_buffer>::run},
};

void read_all(void *to, size_t bytes) {
    if (std::fread(to, 1, bytes, stdin) != bytes) std::exit(0);
}

void answer(const void *from, size_t bytes) {
    std::fwrite(from, 1, bytes, stdout);
    std::fflush(stdout);
}

void answer_number(int64_t number) {
    answer(&number, sizeof number);
}

bool serve(const Request &request) {
    const int64_t *numbers = request.numbers;
    const auto is = [&](const char *name) { return std::strcmp(request.name, name) == 0; };
    if (is("put")) {  // bytes of new memory
        const auto bytes = static_cast<size_t>(numbers[0]);
        void *memory = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
        read_all(memory, bytes);
        answer_number(reinterpret_cast<int64_t>(memory));
        return true;
    }
    void *memory = reinterpret_cast<void *>(numbers[0]);
    if (is("set")) return read_all(memory, static_cast<size_t>(numbers[1])), true;
    if (is("get")) return answer(memory, static_cast<size_t>(numbers[1])), true;
    if (is("drop")) return std::free(memory), true;
    for (const auto &function : kFunctions)
        if (is(function.name)) return answer_number(function.run(numbers)), true;
    return false;
}

}  // namespace

int main() {
    for (;;) {
        Request request;
        read_all(&request, sizeof request);
        if (!serve(request)) {
            std::fprintf(stderr, "a request of an unknown name: %s\n", request.name);
            return 1;
        }
    }
}
