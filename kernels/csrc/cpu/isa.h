// Which instruction sets the library was built with and the processor runs. The only place that asks cpuid.
#pragma once

namespace penstock {

struct Kernels;

struct InstructionSet {
    const char *name;
    const Kernels *(*kernels)();
};

// What cpuid and the system say, as bits; apart from `detect` so that the choice can be tested with made-up answers.
enum Features : unsigned {
    kAvx2 = 1,
    kFma = 2,
    kAvx512 = 4,  // F, BW, DQ, VL
    kAvx512Bf16 = 8,
    kAmxBf16 = 16,
    kAvx512Vnni = 32,
    kAmxInt8 = 64,
};

unsigned detect_features();

// All that were built and that `features` allow, best first; ends with one without a name.
const InstructionSet *instruction_sets(unsigned features);

}  // namespace penstock
