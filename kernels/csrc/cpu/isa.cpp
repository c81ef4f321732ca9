#include "isa.h"

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
constexpr unsigned kNeedsAvx512 = kNeedsAvx2 | kAvx512 | kAvx512Bf16 | kAvx512Vnni;
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
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 27)) return 0;  // OSXSAVE
    const bool fma = has(c, 12);
    const unsigned long long states = saved_states();
    constexpr unsigned long long kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    unsigned a1 = 0, b1, c1, d1;
    if (a >= 1) __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1);
    if ((states & kYmm) == kYmm) {
        if (has(b, 5)) features |= kAvx2;
        if (fma) features |= kFma;
    }
    if ((states & kZmm) == kZmm) {
        if (has(b, 16) && has(b, 17) && has(b, 30) && has(b, 31)) features |= kAvx512;
        if (has(c, 11)) features |= kAvx512Vnni;
        if (has(a1, 5)) features |= kAvx512Bf16;
    }
    if ((states & kTiles) == kTiles && has(d, 24) && has(d, 22) && may_use_tiles()) {
        features |= kAmxBf16;
        if (has(d, 25)) features |= kAmxInt8;
    }
#elif defined(__aarch64__)
    features = arm_features(getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#endif
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
    found[count] = {nullptr, nullptr};
    return found;
}

}  // namespace penstock
