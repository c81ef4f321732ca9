// Which instruction sets the library was built with and the processor runs. The only place that asks cpuid, and on
// ARM the system.
#pragma once

namespace penstock {

struct Kernels;

struct InstructionSet {
    const char *name;
    const Kernels *(*kernels)();
};

// What cpuid and the system say, as bits; apart from `detect_features` so that the choice can be tested with made-up answers.
enum Features : unsigned {
    kAvx2 = 1,
    kFma = 2,
    kAvx512 = 4,  // F, BW, DQ, VL
    kAvx512Bf16 = 8,
    kAmxBf16 = 16,
    kAvx512Vnni = 32,
    kAmxInt8 = 64,
    kAtomics = 128,  // LSE: from ARMv8.1 on
    kDotProduct = 256,
    kArmBf16 = 512,
    kInt8Matrix = 1024,
};

unsigned detect_features();

// Those of an ARM processor by AT_HWCAP and AT_HWCAP2 (Documentation/arch/arm64/elf_hwcaps.rst of Linux).
unsigned arm_features(unsigned long hwcap, unsigned long hwcap2);

// All that were built and that `features` allow, best first; ends with one without a name.
const InstructionSet *instruction_sets(unsigned features);

}  // namespace penstock
