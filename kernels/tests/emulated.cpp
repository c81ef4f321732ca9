// Blocks of a CUDA kernel on a processor: every thread is a fiber, and what threads do together (a product of 16 x 8 x 16, a barrier, a
// copy that arrives later) is done as PTX's documentation says. KERNEL is the file that is included; test_gpu_quantized.py builds this.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

using std::min;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct Dimensions {
  int x, y;
};

namespace {

struct Copy {
  uint4* into;
  const void* from;
};

struct Barrier {
  int expected = 0, arrived = 0, round = 0;
};

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 << 10);
  Dimensions index;
  bool ended = false;
  std::vector<std::vector<Copy>> copies = {{}};  // groups; the last is open
};

// Of a warp's product: what each lane brings, of this one and of the one before, which a slow lane may still read.
struct Brought {
  unsigned a[2][32][4], b[2][32][2];
};

std::vector<std::unique_ptr<Thread>> threads;
std::vector<Barrier> warps;
std::vector<Brought> brought;
Barrier block;
ucontext_t scheduler;
Thread* current;

void wait(Barrier& barrier) {
  const int round = barrier.round;
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0, ++barrier.round;
    return;
  }
  while (barrier.round == round) swapcontext(&current->context, &scheduler);
}

void finish_copies(size_t left) {
  auto& groups = current->copies;  // the open one is behind those that count
  while (groups.size() > left + 1) {
    for (const Copy& copy : groups.front()) std::memcpy(copy.into, copy.from, sizeof(uint4));
    groups.erase(groups.begin());
  }
}

float as_float(unsigned bits) {
  float made;
  std::memcpy(&made, &bits, 4);
  return made;
}

unsigned as_bits(float number) {
  unsigned made;
  std::memcpy(&made, &number, 4);
  return made;
}

unsigned bf16(float number) {
  const unsigned bits = as_bits(number);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

float low(unsigned pair) { return as_float(pair << 16); }
float high(unsigned pair) { return as_float(pair & 0xFFFF0000u); }

}  // namespace

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __ldg(from) (*(from))
#define __ldcg(from) (*(from))
#define __threadfence()
#define __syncthreads() wait(block)
#define __uint_as_float as_float
#define __float_as_uint as_bits
#define threadIdx (current->index)

static Dimensions blockIdx, gridDim;
static uint4 shared[(256 << 10) / 16];

static unsigned atomicInc(unsigned* counter, unsigned last) {
  const unsigned old = *counter;
  *counter = old >= last ? 0 : old + 1;
  return old;
}

static unsigned permuted(unsigned a, unsigned b, unsigned which) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  unsigned made = 0;
  for (int i = 0; i < 4; ++i) made |= static_cast<unsigned>(bytes >> (8 * (which >> (4 * i) & 7)) & 255) << (8 * i);
  return made;
}

static unsigned multiplied_added(unsigned a, unsigned b, unsigned c) {
  return bf16(std::fma(low(a), low(b), low(c))) | bf16(std::fma(high(a), high(b), high(c))) << 16;
}

static unsigned rounded(float first, float second) { return bf16(first) | bf16(second) << 16; }
static void copied_later(uint4* into, const void* from) { current->copies.back().push_back({into, from}); }
static void group_copies() { current->copies.emplace_back(); }
static void await_older_copies() { finish_copies(1); }
static void await_copies() { finish_copies(0); }
static uint4 streamed(const uint4* from) { return *from; }

// mma.m16n8k16: lane (g, t) has of A rows g and g + 8, columns 2 t and 2 t + 1 and those 8 further; of B the same rows of column g; of C
// rows g and g + 8, columns 2 t and 2 t + 1.
static void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, which = warps[warp].round & 1;
  Brought& all = brought[warp];
  std::copy(a, a + 4, all.a[which][lane]);
  all.b[which][lane][0] = b0, all.b[which][lane][1] = b1;
  wait(warps[warp]);
  for (int i = 0; i < 4; ++i) {
    for (int t = 0; t < 4; ++t) {
      const unsigned* of_a = all.a[which][(lane & ~3) + t];
      const unsigned* of_b = all.b[which][4 * (2 * (lane & 3) + (i & 1)) + t];
      for (int half = 0; half < 2; ++half) {
        const unsigned pair = of_a[(i >> 1) + 2 * half];
        sums[i] += low(pair) * low(of_b[half]) + high(pair) * high(of_b[half]);
      }
    }
  }
}

#define EMULATED
#include KERNEL

namespace {

std::function<void()> body;

void begin() {
  body();
  current->ended = true;
}

void run_blocks(int across, int along, int size) {
  gridDim = {across, along};
  for (blockIdx.y = 0; blockIdx.y < along; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < across; ++blockIdx.x) {
      std::memset(shared, 0xFF, sizeof(shared));  // no numbers
      threads.clear();
      warps.assign(size / 32, Barrier{32});
      brought.assign(size / 32, Brought{});
      block = Barrier{size};
      for (int at = 0; at < size; ++at) {
        threads.push_back(std::make_unique<Thread>());
        Thread& thread = *threads.back();
        thread.index = {at, 0};
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = &scheduler;
        makecontext(&thread.context, begin, 0);
      }
      for (int left = size; left > 0;) {
        left = 0;
        for (auto& thread : threads) {
          if (thread->ended) continue;
          current = thread.get();
          swapcontext(&scheduler, &thread->context);
          left += !thread->ended;
        }
      }
    }
  }
}

}  // namespace

#if NT
extern "C" void run(int across, int along, int size, const uint4* words, const u32* scales, const u32* offsets, const u16* bias,
                    const u16* x, u16* out, float* partial, u32* arrived, int tokens, int outputs, int inputs, int tiles,
                    int split_chunks) {
  body = [=] {
    rows_product(words, scales, offsets, bias, x, out, partial, arrived, tokens, outputs, inputs, tiles, split_chunks);
  };
  run_blocks(across, along, size);
}
#else
extern "C" void run(int across, int along, int size, const uint4* words, const u32* scales, const u32* offsets, u16* out,
                    int outputs, int inputs, int tiles) {
  body = [=] { written_out(words, scales, offsets, out, outputs, inputs, tiles); };
  run_blocks(across, along, size);
}
#endif
