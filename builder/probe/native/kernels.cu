#include <cuda_runtime.h>

#include <type_traits>

#include "kernels.hpp"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#error "mma.sync.m16n8k8 needs compute capability 7.5"
#endif

namespace kvreg::kernels {
namespace {

constexpr int kTile = 16;
constexpr int kFillThreads = 256;
constexpr int kFillBlocks = 1024;

// The mixing step of splitmix, for 32 bits.
__device__ __forceinline__ std::uint32_t word_at(std::size_t position, std::uint32_t seed) {
  std::uint32_t word = static_cast<std::uint32_t>(position) * 0x9E3779B9u + seed;
  word = (word ^ (word >> 16)) * 0x85EBCA6Bu;
  word = (word ^ (word >> 13)) * 0xC2B2AE35u;
  return word ^ (word >> 16);
}

__device__ __forceinline__ std::uint32_t accumulate(std::uint32_t a, std::uint32_t b,
                                                    std::uint32_t sum) {
  return a * b + sum;
}

__device__ __forceinline__ float accumulate(float a, float b, float sum) { return fmaf(a, b, sum); }

template <class T>
__device__ __forceinline__ void tiled_product(Shape shape, const T* a, const T* b, T* c) {
  __shared__ T a_tile[kTile][kTile];
  __shared__ T b_tile[kTile][kTile];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int row = blockIdx.y * kTile + y;
  const int column = blockIdx.x * kTile + x;
  T sum{};
  for (int start = 0; start < shape.depth; start += kTile) {
    const bool a_inside = row < shape.rows && start + x < shape.depth;
    const bool b_inside = start + y < shape.depth && column < shape.columns;
    a_tile[y][x] = a_inside ? a[row * shape.depth + start + x] : T{};
    b_tile[y][x] = b_inside ? b[(start + y) * shape.columns + column] : T{};
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum = accumulate(a_tile[y][k], b_tile[k][x], sum);
    __syncthreads();
  }
  if (row < shape.rows && column < shape.columns) c[row * shape.columns + column] = sum;
}

// Two halves in one register, the one with the lower index in the lower bits.
__device__ __forceinline__ std::uint32_t pack(std::uint16_t low, std::uint16_t high) {
  return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
}

// common_type keeps the arguments out of the deduction, so that they convert to the kernel's own
// types: cudaLaunchKernel takes addresses and would not notice another type.
template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                   std::common_type_t<Parameters>... arguments) {
  void* pointers[] = {&arguments...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, 0, stream);
}

dim3 tile_grid(Shape shape) {
  return dim3((shape.columns + kTile - 1) / kTile, (shape.rows + kTile - 1) / kTile);
}

}  // namespace

__global__ void integer_product(Shape shape, const std::uint32_t* a, const std::uint32_t* b,
                                std::uint32_t* c) {
  tiled_product(shape, a, b, c);
}

__global__ void float_product(Shape shape, const float* a, const float* b, float* c) {
  tiled_product(shape, a, b, c);
}

// One warp computes a tile of 16 x 8. The positions are those of the PTX manual's fragments for
// m16n8k8 with .f16: lane l holds rows l/4 and l/4+8 and the columns from (l%4)*2 on.
__global__ void tensor_product(Shape shape, const std::uint16_t* a, const std::uint16_t* b,
                               float* c) {
  const int group = threadIdx.x / 4;
  const int pair = threadIdx.x % 4 * 2;
  const int row = blockIdx.y * 16 + group;
  const int column = blockIdx.x * 8;
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  for (int start = 0; start < shape.depth; start += 8) {
    const std::uint16_t* upper = a + row * shape.depth + start + pair;
    const std::uint16_t* lower = upper + 8 * shape.depth;
    const std::uint16_t* right = b + (start + pair) * shape.columns + column + group;
    const std::uint32_t a0 = pack(upper[0], upper[1]);
    const std::uint32_t a1 = pack(lower[0], lower[1]);
    const std::uint32_t b0 = pack(right[0], right[shape.columns]);
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a0), "r"(a1), "r"(b0));
  }
  float* out = c + row * shape.columns + column + pair;
  out[0] = d0;
  out[1] = d1;
  out[8 * shape.columns] = d2;
  out[8 * shape.columns + 1] = d3;
}

__global__ void fill(std::uint32_t* words, std::size_t count, std::uint32_t seed) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    words[i] = word_at(i, seed);
  }
}

__global__ void compare(const std::uint32_t* words, std::size_t count, std::uint32_t seed,
                        unsigned long long* differences) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  unsigned long long found = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    found += words[i] != word_at(i, seed);
  }
  if (found != 0) atomicAdd(differences, found);
}

cudaError_t launch_integer_product(Shape shape, const std::uint32_t* a, const std::uint32_t* b,
                                   std::uint32_t* c, cudaStream_t stream) {
  return launch(integer_product, tile_grid(shape), dim3(kTile, kTile), stream, shape, a, b, c);
}

cudaError_t launch_float_product(Shape shape, const float* a, const float* b, float* c,
                                 cudaStream_t stream) {
  return launch(float_product, tile_grid(shape), dim3(kTile, kTile), stream, shape, a, b, c);
}

cudaError_t launch_tensor_product(Shape shape, const std::uint16_t* a, const std::uint16_t* b,
                                  float* c, cudaStream_t stream) {
  if (shape.rows % 16 != 0 || shape.depth % 8 != 0 || shape.columns % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid(shape.columns / 8, shape.rows / 16);
  return launch(tensor_product, grid, dim3(32), stream, shape, a, b, c);
}

cudaError_t launch_fill(std::uint32_t* words, std::size_t count, std::uint32_t seed,
                        cudaStream_t stream) {
  return launch(fill, dim3(kFillBlocks), dim3(kFillThreads), stream, words, count, seed);
}

cudaError_t launch_compare(const std::uint32_t* words, std::size_t count, std::uint32_t seed,
                           unsigned long long* differences, cudaStream_t stream) {
  return launch(compare, dim3(kFillBlocks), dim3(kFillThreads), stream, words, count, seed,
                differences);
}

cudaError_t attributes(cudaFuncAttributes* result) {
  return cudaFuncGetAttributes(result, reinterpret_cast<const void*>(tensor_product));
}

}  // namespace kvreg::kernels
