// Which instruction sets a library that has all of them chooses, for made-up processors: compiled with csrc/cpu/isa.cpp by
// test_other_processors.py. Says what is not as the table has it.
#include <cstdio>
#include <string>

#include "isa.h"

namespace penstock {

#define NOTHING(name) \
    const Kernels *kernels_##name() { return nullptr; }
NOTHING(generic)
NOTHING(avx2)
NOTHING(avxvnni)
NOTHING(avx512bw)
NOTHING(avx512vnni)
NOTHING(avx512)
NOTHING(amx)
NOTHING(neon)
NOTHING(i8mm)

}  // namespace penstock

namespace {

using namespace penstock;

constexpr unsigned kHaswell = kAvx2 | kFma, kSkylake = kHaswell | kAvx512;
constexpr unsigned kCooperLake = kSkylake | kAvx512Vnni | kAvx512Bf16;

// AT_HWCAP and AT_HWCAP2 as Linux gives them: 1 << 1 is ASIMD, which all have.
constexpr unsigned long kSimd = 1 << 1, kLse = 1 << 8, kDot = 1 << 20, kSve = 1 << 22;
constexpr unsigned long kMatrix = 1 << 13, kBf = 1 << 14, kSve2 = 1 << 1;

// Answers of cpuid and XGETBV. AVX and OSXSAVE are in what every one of these has.
constexpr unsigned kXsave = 1u << 27 | 1u << 28, kHasFma = kXsave | 1u << 12;
constexpr unsigned kB2 = 1u << 5, kB512 = kB2 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
constexpr unsigned kCVnni = 1u << 11, kDTiles = 1u << 24, kDBf16 = 1u << 22, kDInt8 = 1u << 25, kABf16 = 1u << 5;
constexpr unsigned kAVnni = 1u << 4, kGenu = 0x756e6547, kAuth = 0x68747541;  // the first letters of GenuineIntel and AuthenticAMD
constexpr unsigned long long kOnlySse = 0x3, kYmmSaved = 0x7, kZmmSaved = 0xe7, kTilesSaved = 0x600e7;

unsigned sapphire_rapids(unsigned long long xcr0) {
    return x86_features({kHasFma, kB512, kCVnni, kDTiles | kDBf16 | kDInt8, kABf16 | kAVnni, xcr0, kGenu});
}

const struct {
    const char *processor;
    unsigned features;
    const char *sets;
} kTable[] = {
    {"any", 0, "generic"},
    {"AVX2 without FMA", kAvx2, "generic"},
    {"Haswell", kHaswell, "avx2 generic"},
    {"Skylake-SP, without VNNI and BF16", kSkylake, "avx512bw avx2 generic"},
    {"Cascade Lake, without BF16", kSkylake | kAvx512Vnni, "avx512vnni avx512bw avx2 generic"},
    {"VNNI of 32 bytes without AVX2", kAvxVnni, "generic"},
    {"Zen 4", kCooperLake, "avx512 avx512vnni avx512bw avx2 generic"},
    {"Zen 5", kCooperLake | kAvxVnni, "avx512 avx512vnni avx512bw avxvnni avx2 generic"},
    {"Cooper Lake", kCooperLake | kIntel, "avx512vnni avx512 avx512bw avx2 generic"},
    {"BF16 without VNNI", kSkylake | kAvx512Bf16 | kIntel, "avx512bw avx2 generic"},
    {"tiles of bf16 alone", kCooperLake | kAmxBf16, "avx512 avx512vnni avx512bw avx2 generic"},
    {"Sapphire Rapids", kCooperLake | kAvxVnni | kAmxBf16 | kAmxInt8 | kIntel, "amx avx512vnni avx512 avx512bw avxvnni avx2 generic"},
    {"answers of nothing", x86_features({}), "generic"},
    {"Nehalem", x86_features({1u << 27, 0, 0, 0, 0, kOnlySse}), "generic"},
    {"Ivy Bridge, AVX alone", x86_features({kXsave, 0, 0, 0, 0, kYmmSaved}), "generic"},
    {"Haswell's answers", x86_features({kHasFma, kB2, 0, 0, 0, kYmmSaved}), "avx2 generic"},
    {"Haswell whose system saves no YMM", x86_features({kHasFma, kB2, 0, 0, 0, kOnlySse}), "generic"},
    {"Haswell whose system has no XSAVE", x86_features({1u << 12, kB2, 0, 0, 0, kYmmSaved}), "generic"},
    {"AVX2 without FMA's answers", x86_features({kXsave, kB2, 0, 0, 0, kYmmSaved}), "generic"},
    {"Knights Landing, F without BW, DQ, VL", x86_features({kHasFma, kB2 | 1u << 16, 0, 0, 0, kZmmSaved}), "avx2 generic"},
    {"Skylake-SP's answers", x86_features({kHasFma, kB512, 0, 0, 0, kZmmSaved, kGenu}), "avx512bw avx2 generic"},
    {"Skylake-SP whose system saves no ZMM", x86_features({kHasFma, kB512, 0, 0, 0, kYmmSaved, kGenu}), "avx2 generic"},
    {"Ice Lake, VNNI without BF16", x86_features({kHasFma, kB512, kCVnni, 0, 0, kZmmSaved, kGenu}), "avx512vnni avx512bw avx2 generic"},
    {"Alder Lake, VNNI of 32 bytes", x86_features({kHasFma, kB2, 0, 0, kAVnni, kYmmSaved, kGenu}), "avxvnni avx2 generic"},
    {"Alder Lake whose system saves no YMM", x86_features({kHasFma, kB2, 0, 0, kAVnni, kOnlySse, kGenu}), "generic"},
    {"Zen 4's and 5's answers", x86_features({kHasFma, kB512, kCVnni, 0, kABf16, kZmmSaved, kAuth}), "avx512 avx512vnni avx512bw avx2 generic"},
    {"Zen 4 whose system saves no ZMM", x86_features({kHasFma, kB512, kCVnni, 0, kABf16, kYmmSaved, kAuth}), "avx2 generic"},
    {"Sapphire Rapids' answers", sapphire_rapids(kTilesSaved), "amx avx512vnni avx512 avx512bw avxvnni avx2 generic"},
    {"Sapphire Rapids under a system before 5.16", sapphire_rapids(kZmmSaved), "avx512vnni avx512 avx512bw avxvnni avx2 generic"},
    {"Sapphire Rapids whose system saves no YMM", sapphire_rapids(kOnlySse), "generic"},
    {"Cortex-A72", arm_features(kSimd, 0), "generic"},
    {"ARMv8.1 without dot products", arm_features(kSimd | kLse, 0), "generic"},
    {"Neoverse N1, Cortex-A76, Apple M1", arm_features(kSimd | kLse | kDot, 0), "neon generic"},
    {"I8MM without BF16", arm_features(kSimd | kLse | kDot, kMatrix), "neon generic"},
    {"BF16 without I8MM", arm_features(kSimd | kLse | kDot, kBf), "neon generic"},
    {"Neoverse V1 and N2", arm_features(kSimd | kLse | kDot | kSve, kMatrix | kBf | kSve2), "i8mm neon generic"},
    {"I8MM and BF16 without dot products", arm_features(kSimd | kLse, kMatrix | kBf), "generic"},
};

}  // namespace

int main() {
    bool is_right = true;
    for (const auto &row : kTable) {
        std::string names;
        for (const InstructionSet *set = instruction_sets(row.features); set->name; set++)
            names += (names.empty() ? "" : " ") + std::string(set->name);
        if (names == row.sets) continue;
        std::printf("%s: %s, not %s\n", row.processor, names.c_str(), row.sets);
        is_right = false;
    }
    return is_right ? 0 : 1;
}
