#include "isa.h"

#include <string_view>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace penstock {

// Each of these is in an object of its own, compiled for its instruction set (kernels.cpp).
const Kernels *kernels_generic();
#ifdef PENSTOCK_HAS_AVX2
const Kernels *kernels_avx2();
#endif
#ifdef PENSTOCK_HAS_AVXVNNI
const Kernels *kernels_avxvnni();
#endif
#ifdef PENSTOCK_HAS_AVX512BW
const Kernels *kernels_avx512bw();
#endif
#ifdef PENSTOCK_HAS_AVX512VNNI
const Kernels *kernels_avx512vnni();
#endif
#ifdef PENSTOCK_HAS_AVX512
const Kernels *kernels_avx512();
#endif
#ifdef PENSTOCK_HAS_AMX
const Kernels *kernels_amx();
#endif
#ifdef PENSTOCK_HAS_NEON
const Kernels *kernels_neon();
#endif
#ifdef PENSTOCK_HAS_I8MM
const Kernels *kernels_i8mm();
#endif

namespace {

constexpr unsigned kNeedsAvx2 = kAvx2 | kFma;
constexpr unsigned kNeedsAvxVnni = kNeedsAvx2 | kAvxVnni;
constexpr unsigned kNeedsAvx512Bw = kNeedsAvx2 | kAvx512;
constexpr unsigned kNeedsAvx512Vnni = kNeedsAvx512Bw | kAvx512Vnni;
constexpr unsigned kNeedsAvx512 = kNeedsAvx512Vnni | kAvx512Bf16;
constexpr unsigned kNeedsAmx = kNeedsAvx512 | kAmxBf16 | kAmxInt8;
constexpr unsigned kNeedsNeon = kAtomics | kDotProduct;
constexpr unsigned kNeedsI8mm = kNeedsNeon | kArmBf16 | kInt8Matrix;

struct Built {
    unsigned needs;
    InstructionSet set;
};

const Built kBuilt[] = {
#ifdef PENSTOCK_HAS_AMX
    {kNeedsAmx, {"amx", kernels_amx}},
#endif
#ifdef PENSTOCK_HAS_AVX512
    {kNeedsAvx512, {"avx512", kernels_avx512}},
#endif
#ifdef PENSTOCK_HAS_AVX512VNNI
    {kNeedsAvx512Vnni, {"avx512vnni", kernels_avx512vnni}},
#endif
#ifdef PENSTOCK_HAS_AVX512BW
    {kNeedsAvx512Bw, {"avx512bw", kernels_avx512bw}},
#endif
#ifdef PENSTOCK_HAS_AVXVNNI
    {kNeedsAvxVnni, {"avxvnni", kernels_avxvnni}},
#endif
#ifdef PENSTOCK_HAS_AVX2
    {kNeedsAvx2, {"avx2", kernels_avx2}},
#endif
#ifdef PENSTOCK_HAS_I8MM
    {kNeedsI8mm, {"i8mm", kernels_i8mm}},
#endif
#ifdef PENSTOCK_HAS_NEON
    {kNeedsNeon, {"neon", kernels_neon}},
#endif
    {0, {"generic", kernels_generic}},
};

constexpr int kOsXsave = 27;

bool has(unsigned long word, int bit) {
    return word >> bit & 1;
}

#if defined(__x86_64__)
// Which register states the system saves: XCR0 (Intel SDM, volume 1, 13.3).
unsigned long long saved_states() {
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<unsigned long long>(high) << 32) | low;
}

// Tile registers are 8 KB a thread: a process has to ask for them once (Documentation/arch/x86/xstate.rst of Linux).
bool may_use_tiles() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

unsigned detect_features() {
    unsigned features = 0;
#if defined(__x86_64__)
    CpuidAnswers answers = {};
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &answers.vendor, &c, &d)) return 0;
    if (!__get_cpuid(1, &a, &b, &answers.leaf1_c, &d)) return 0;
    // XGETBV is there where the system has switched it on.
    if (has(answers.leaf1_c, kOsXsave)) answers.xcr0 = saved_states();
    const bool knows_seven = __get_cpuid_count(7, 0, &a, &answers.leaf7_b, &answers.leaf7_c, &answers.leaf7_d);
    if (knows_seven && a >= 1) __get_cpuid_count(7, 1, &answers.leaf7_1_a, &b, &c, &d);
    features = x86_features(answers);
    if (features & kAmxBf16 && !may_use_tiles()) features &= ~(kAmxBf16 | kAmxInt8);
#elif defined(__aarch64__)
    features = arm_features(getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#endif
    return features;
}

unsigned x86_features(const CpuidAnswers &answers) {
    const unsigned b = answers.leaf7_b, c = answers.leaf7_c, d = answers.leaf7_d;
    constexpr unsigned long long kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
    if (!has(answers.leaf1_c, kOsXsave)) return 0;
    const auto saves = [&](unsigned long long states) { return (answers.xcr0 & states) == states; };
    unsigned features = 0;
    if (saves(kYmm)) {
        if (has(b, 5)) features |= kAvx2;
        if (has(answers.leaf1_c, 12)) features |= kFma;
        if (has(answers.leaf7_1_a, 4)) features |= kAvxVnni;
    }
    if (saves(kZmm)) {
        if (has(b, 16) && has(b, 17) && has(b, 30) && has(b, 31)) features |= kAvx512;
        if (has(c, 11)) features |= kAvx512Vnni;
        if (has(answers.leaf7_1_a, 5)) features |= kAvx512Bf16;
    }
    if (saves(kTiles) && has(d, 24) && has(d, 22)) {
        features |= kAmxBf16;
        if (has(d, 25)) features |= kAmxInt8;
    }
    constexpr unsigned kGenu = 0x756e6547;
    if (answers.vendor == kGenu) features |= kIntel;
    return features;
}

unsigned arm_features(unsigned long hwcap, unsigned long hwcap2) {
    unsigned features = 0;
    if (has(hwcap, 8)) features |= kAtomics;
    if (has(hwcap, 20)) features |= kDotProduct;  // ASIMDDP
    if (has(hwcap2, 13)) features |= kInt8Matrix;
    if (has(hwcap2, 14)) features |= kArmBf16;
    return features;
}

const InstructionSet *instruction_sets(unsigned features) {
    static InstructionSet found[sizeof kBuilt / sizeof kBuilt[0] + 1];
    int count = 0;
    for (const Built &built : kBuilt)
        if ((built.needs & ~features) == 0) found[count++] = built.set;
    // Of Intel's processors VDPBF16PS, which is two products, has a quarter of the rate of one in fp32 (Sapphire Rapids; `products.py` compares
    // both sets): without tiles the one that goes without it is better. The vendor decides that, and no measurement at the start, which may end
    // one way now and another way later: sets round in different places, and a machine has to go on with the same text after a crash, and to
    // write the same as a replica on another machine of its kind.
    for (int i = 0; (features & kIntel) && i + 1 < count; i++)
        if (std::string_view(found[i].name) == "avx512" && std::string_view(found[i + 1].name) == "avx512vnni")
            std::swap(found[i], found[i + 1]);
    found[count] = {nullptr, nullptr};
    return found;
}

}  // namespace penstock
