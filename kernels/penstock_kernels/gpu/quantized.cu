// Rows times a matrix whose numbers are whole ones of 8 or 4 bits: gpu/quantized.py compiles this and knows its arguments.
//
// Tensor cores multiply, in the one shape that every GPU since the A100 has (16 outputs x 16 inputs x 8 rows of x, bf16, summed in
// fp32), and the matrix lies as they want it: a lane's 16 bytes are its share of 16 outputs times CHUNK inputs, so that weights go
// from memory into registers and are nowhere else. A tile is 16 outputs; its chunks of inputs follow each other, 512 bytes each.
// Of a chunk a lane (g = lane / 4, t = lane % 4) has rows g and g + 8, and of every 32 inputs the 8 from 8 t on: four for each of two
// products. The order of inputs is the same on both sides of a product and otherwise free, which lets x be read 16 bytes at a time.
//
//   4 bits   a word is one product's share. Bits 4 s to 4 s + 3 have the first number of register s, those 16 above the second; codes
//            are 0 to 15. Scales (bf16) are of GROUP inputs each, [tile][group][g] pairs of rows g and g + 8; so are offsets, which
//            are -(128 + zero point), or -136 everywhere. A code is or-ed into the bits of 128 in bf16, whose steps are 1.
//   8 bits   two words are one product's share, bytes in the order of registers, codes are 128 more than numbers. Scales (fp32) are of
//            outputs, and are applied to sums.
//
// WR x WK warps: WR of them have MT tiles each, and WK share the inputs among them; so do blocks along y, whose sums the last one to
// arrive adds up, always in the same order: the same rows give the same numbers each time. NT x 8 rows of x at most. Up to 8 are read where
// they lie, and a warp asks for AHEAD chunks of the matrix at once; more come through shared memory, AHEAD chunks for each warp at a time,
// and as many of the matrix are on their way to registers meanwhile.

typedef unsigned int u32;
typedef unsigned short u16;

#if BITS != 4 && BITS != 8
#error BITS is 4 or 8
#endif
#define CHUNK (256 / BITS)  // inputs
#define HALVES (CHUNK / 32)
#define OFFSET 0xC308C308u  // -136 twice

#ifndef EMULATED  // tests/emulated.cpp has these for processors

__device__ __forceinline__ u32 permuted(u32 a, u32 b, u32 which) {
  u32 made;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "r"(which));
  return made;
}

__device__ __forceinline__ u32 multiplied_added(u32 a, u32 b, u32 c) {  // two of bf16
  u32 made;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "r"(c));
  return made;
}

__device__ __forceinline__ u32 rounded(float low, float high) {
  u32 made;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
  return made;
}

__device__ __forceinline__ void copied_later(uint4* into, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<u32>(__cvta_generic_to_shared(into))), "l"(from));
}

// Copies asked for since the last time are a group; all but the latest are waited for, or all.
__device__ __forceinline__ void group_copies() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void await_older_copies() { asm volatile("cp.async.wait_group 1;"); }
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group 0;"); }

// Read once in a step: not kept in the first cache.
__device__ __forceinline__ uint4 streamed(const uint4* from) {
  uint4 made;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(made.x), "=r"(made.y), "=r"(made.z), "=r"(made.w)
      : "l"(from));
  return made;
}

__device__ __forceinline__ void multiply(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif

__device__ __forceinline__ float widened(u16 number) { return __uint_as_float(static_cast<u32>(number) << 16); }

// Scales and offsets of rows g and g + 8, each twice.
struct Group {
  u32 scales[2], offsets[2];
};

__device__ __forceinline__ Group group_of(u32 scales, u32 offsets) {
  return {{permuted(scales, scales, 0x1010), permuted(scales, scales, 0x3232)},
          {permuted(offsets, offsets, 0x1010), permuted(offsets, offsets, 0x3232)}};
}

// One product's share of a tile: `low` and, of 8 bits, `high`.
__device__ __forceinline__ void numbers(u32 (&a)[4], u32 low, u32 high, const Group& group) {
#if BITS == 4
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const u32 coded = ((low >> (4 * s)) & 0x000F000Fu) | 0x43004300u;
    const u32 whole = multiplied_added(coded, 0x3F803F80u, group.offsets[s & 1]);
    a[s] = multiplied_added(whole, group.scales[s & 1], 0x80008000u);
  }
#else
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const u32 word = s < 2 ? low : high;
    const u32 first = permuted(word, 0x4B000000u, 0x7440u + 2 * (s & 1));
    const u32 second = permuted(word, 0x4B000000u, 0x7441u + 2 * (s & 1));
    const float one = __uint_as_float(first) - 8388736.0f, other = __uint_as_float(second) - 8388736.0f;
    a[s] = permuted(__float_as_uint(one), __float_as_uint(other), 0x7632);
  }
#endif
}

__device__ __forceinline__ u32 word_of(const uint4& words, int at) {
  return at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w;
}

#if NT  // of products

#define SLAB (WK * AHEAD)          // chunks that a block has of x at a time
#define PIECES (SLAB * CHUNK / 8)  // of 16 bytes, in a row of that
#define SLABS 3                    // one that is used, and two on their way
#define THREADS (32 * WR * WK)
#define SUMS (MT * NT * 4)         // a lane's

#if NT > 1
// What a warp reads of the matrix before it is needed.
struct Ahead {
  uint4 words[AHEAD][MT];
#if BITS == 4
  u32 scales[AHEAD][MT][64 / GROUP > 1 ? 2 : 1];
#if ZEROS
  u32 offsets[AHEAD][MT][64 / GROUP > 1 ? 2 : 1];
#endif
#endif
};
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    rows_product(const uint4* words, const u32* scales, const u32* offsets, const u16* bias, const u16* x, u16* out,
                 float* partial, u32* arrived, int tokens, int outputs, int inputs, int tiles, int split_chunks) {
  // Slabs of x; then, of warps that share inputs, sums.
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int wr = warp % WR, wk = warp / WR;
  const int first_tile = (blockIdx.x * WR + wr) * MT;
  const int chunks = inputs / CHUNK;
  const int begin = blockIdx.y * split_chunks, end = min(begin + split_chunks, chunks);

  int tile[MT];
#pragma unroll
  for (int m = 0; m < MT; ++m) tile[m] = min(first_tile + m, tiles - 1);

  float sums[MT][NT][4];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sums[i / (4 * NT)][i / 4 % NT][i % 4] = 0.0f;

#if NT == 1
  const u16* row = x + static_cast<size_t>(min(g, tokens - 1)) * inputs + 8 * t;
  for (int first = begin + wk; first < end; first += WK * AHEAD) {
    uint4 read[AHEAD][MT];
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int chunk = min(first + u * WK, end - 1);
#pragma unroll
      for (int m = 0; m < MT; ++m)
        read[u][m] = streamed(words + (static_cast<size_t>(tile[m]) * chunks + chunk) * 32 + lane);
    }
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int chunk = first + u * WK;
      if (chunk < end) {
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
          const int input = chunk * CHUNK + 32 * half;
          const uint4 given = __ldg(reinterpret_cast<const uint4*>(row + input));
#pragma unroll
          for (int m = 0; m < MT; ++m) {
            u32 a[2][4];
#if BITS == 4
            const int at = (tile[m] * (inputs / GROUP) + input / GROUP) * 8 + g;
            const Group group = group_of(__ldg(scales + at), ZEROS ? __ldg(offsets + at) : OFFSET);
            numbers(a[0], word_of(read[u][m], 2 * half), 0, group);
            numbers(a[1], word_of(read[u][m], 2 * half + 1), 0, group);
#else
            numbers(a[0], read[u][m].x, read[u][m].y, Group{});
            numbers(a[1], read[u][m].z, read[u][m].w, Group{});
#endif
            multiply(sums[m][0], a[0], given.x, given.y);
            multiply(sums[m][0], a[1], given.z, given.w);
          }
        }
      }
    }
  }
#else
  const int slabs = (end - begin + SLAB - 1) / SLAB;
  auto read = [&](Ahead& into, int slab) {
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int chunk = begin + (slab * WK + wk) * AHEAD + u;
      if (chunk < end) {
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          into.words[u][m] = streamed(words + (static_cast<size_t>(tile[m]) * chunks + chunk) * 32 + lane);
#if BITS == 4
#pragma unroll
          for (int half = 0; half < (64 / GROUP > 1 ? 2 : 1); ++half) {
            const int at = (tile[m] * (inputs / GROUP) + (chunk * CHUNK + 32 * half) / GROUP) * 8 + g;
            into.scales[u][m][half] = __ldg(scales + at);
#if ZEROS
            into.offsets[u][m][half] = __ldg(offsets + at);
#endif
          }
#endif
        }
      }
    }
  };
  // Pieces of odd rows change places by fours, so that eight lanes never ask for the same banks.
  auto copy = [&](int slab) {
    if (slab < slabs) {
      const int chunk = begin + slab * SLAB, there = min(SLAB, end - chunk) * (CHUNK / 8);
      uint4* into = shared + (slab % SLABS) * (8 * NT * PIECES);
      for (int at = threadIdx.x; at < tokens * PIECES; at += THREADS) {
        const int row = at / PIECES, piece = at % PIECES;
        if (piece < there)
          copied_later(into + row * PIECES + (piece ^ ((row & 1) << 2)),
                       x + static_cast<size_t>(row) * inputs + chunk * CHUNK + 8 * piece);
      }
    }
    group_copies();
  };

  Ahead now, next;
  read(now, 0);
  copy(0), copy(1);
  for (int slab = 0; slab < slabs; ++slab) {
    await_older_copies();
    __syncthreads();
    copy(slab + 2);
    read(next, slab + 1);
    const uint4* rows = shared + (slab % SLABS) * (8 * NT * PIECES) + g * PIECES;
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      if (begin + (slab * WK + wk) * AHEAD + u < end) {
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
          u32 a[MT][2][4];
#pragma unroll
          for (int m = 0; m < MT; ++m) {
            const uint4 read_words = now.words[u][m];
#if BITS == 4
            const int of = 64 / GROUP > 1 ? half : 0;
#if ZEROS
            const Group group = group_of(now.scales[u][m][of], now.offsets[u][m][of]);
#else
            const Group group = group_of(now.scales[u][m][of], OFFSET);
#endif
#pragma unroll
            for (int j = 0; j < 2; ++j) numbers(a[m][j], word_of(read_words, 2 * half + j), 0, group);
#else
#pragma unroll
            for (int j = 0; j < 2; ++j) numbers(a[m][j], word_of(read_words, 2 * j), word_of(read_words, 2 * j + 1), Group{});
#endif
          }
          const int piece = ((wk * AHEAD + u) * (CHUNK / 8) + 4 * half + t) ^ ((g & 1) << 2);
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            const uint4 given = rows[8 * n * PIECES + piece];
#pragma unroll
            for (int m = 0; m < MT; ++m) {
              multiply(sums[m][n], a[m][0], given.x, given.y);
              multiply(sums[m][n], a[m][1], given.z, given.w);
            }
          }
        }
      }
    }
    now = next;
  }
#endif

#if WK > 1
#if NT > 1
  await_copies();
  __syncthreads();
#endif
  float* others = reinterpret_cast<float*>(shared) + wr * SUMS * 32 + lane;
  if (wk > 0) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) others[((wk - 1) * WR * SUMS + i) * 32] = sums[i / (4 * NT)][i / 4 % NT][i % 4];
  }
  __syncthreads();
  if (wk == 0) {
    for (int k = 0; k < WK - 1; ++k)
#pragma unroll
      for (int i = 0; i < SUMS; ++i) sums[i / (4 * NT)][i / 4 % NT][i % 4] += others[(k * WR * SUMS + i) * 32];
  }
#endif

  if (gridDim.y > 1) {
    const size_t size = WR * SUMS * 32;
    float* here = partial + blockIdx.x * gridDim.y * size + wr * SUMS * 32 + lane;
    if (wk == 0) {
#pragma unroll
      for (int i = 0; i < SUMS; ++i) here[blockIdx.y * size + 32 * i] = sums[i / (4 * NT)][i / 4 % NT][i % 4];
    }
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc(arrived + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (wk == 0) {
#pragma unroll
      for (int i = 0; i < SUMS; ++i) sums[i / (4 * NT)][i / 4 % NT][i % 4] = 0.0f;
      for (int y = 0; y < gridDim.y; ++y)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i / (4 * NT)][i / 4 % NT][i % 4] += __ldcg(here + y * size + 32 * i);
    }
  }
  if (wk > 0) return;

#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = (first_tile + m) * 16 + g + 8 * (i >> 1);
      if (row < outputs) {
#if BITS == 8
        const float factor = __uint_as_float(__ldg(scales + row));
#else
        const float factor = 1.0f;
#endif
        const float added = bias == nullptr ? 0.0f : widened(__ldg(bias + row));
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          const int token = 8 * n + 2 * t + (i & 1);
          if (token < tokens)
            out[static_cast<size_t>(token) * outputs + row] = static_cast<u16>(rounded(sums[m][n][i] * factor + added, 0.0f));
        }
      }
    }
  }
}

#else  // the matrix itself, (outputs, inputs) in bf16: a warp has a chunk of a tile

extern "C" __global__ void __launch_bounds__(128)
    written_out(const uint4* words, const u32* scales, const u32* offsets, u16* out, int outputs, int inputs, int tiles) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, chunks = inputs / CHUNK;
  const long long at = static_cast<long long>(blockIdx.x) * 4 + (threadIdx.x >> 5);
  if (at >= static_cast<long long>(tiles) * chunks) return;
  const int tile = static_cast<int>(at / chunks), chunk = static_cast<int>(at % chunks);
  const uint4 read = streamed(words + at * 32 + lane);
#pragma unroll
  for (int half = 0; half < HALVES; ++half) {
    const int input = chunk * CHUNK + 32 * half;
    u32 a[2][4];
#if BITS == 4
    const int group_at = (tile * (inputs / GROUP) + input / GROUP) * 8 + g;
    const Group group = group_of(__ldg(scales + group_at), ZEROS ? __ldg(offsets + group_at) : OFFSET);
    numbers(a[0], word_of(read, 2 * half), 0, group);
    numbers(a[1], word_of(read, 2 * half + 1), 0, group);
#else
    const Group group = {};
    numbers(a[0], read.x, read.y, group);
    numbers(a[1], read.z, read.w, group);
#endif
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * tile + g + 8 * r;
      if (row < outputs) {
        uint4 made = {a[0][r], a[0][r + 2], a[1][r], a[1][r + 2]};
#if BITS == 8
        const float factor = __uint_as_float(__ldg(scales + row));
        u32* each[4] = {&made.x, &made.y, &made.z, &made.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          *each[i] = rounded(__uint_as_float(*each[i] << 16) * factor, __uint_as_float(*each[i] & 0xFFFF0000u) * factor);
#endif
        *reinterpret_cast<uint4*>(out + static_cast<size_t>(row) * inputs + input + 8 * t) = made;
      }
    }
  }
}

#endif
