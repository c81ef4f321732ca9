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
    kAvxVnni = 2048,  // of 32 bytes, encoded as AVX2's are
    kIntel = 4096,
};

// What an x86 processor answers (Intel SDM, volume 2, CPUID; leaf 7's subleaf 1), which register states the system saves, and the first
// four letters of the vendor (EBX of leaf 0).
struct CpuidAnswers {
    unsigned leaf1_c, leaf7_b, leaf7_c, leaf7_d, leaf7_1_a;
    unsigned long long xcr0;
    unsigned vendor = 0;
};

unsigned detect_features();

// Those of an x86 processor that answers so, where a process may have tile registers.
unsigned x86_features(const CpuidAnswers &answers);

// Those of an ARM processor by AT_HWCAP and AT_HWCAP2 (Documentation/arch/arm64/elf_hwcaps.rst of Linux).
unsigned arm_features(unsigned long hwcap, unsigned long hwcap2);

// All that were built and that `features` allow, best first; ends with one without a name.
const InstructionSet *instruction_sets(unsigned features);

}  // namespace penstock
