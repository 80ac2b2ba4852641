// The device code. Every launcher returns the launch's own status; the work is asynchronous.
//
// Kernels have external linkage and names of their own: for a file without such a name nvcc derives
// identifiers from its process id, and two builds would differ.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvreg {

// A row-major product c[rows][columns] = a[rows][depth] * b[depth][columns].
struct Shape {
  int rows;
  int depth;
  int columns;
};

namespace kernels {

// Modulo 2^32, tiles of 16 x 16 in shared memory; any shape.
cudaError_t launch_integer_product(Shape shape, const std::uint32_t* a, const std::uint32_t* b,
                                   std::uint32_t* c, cudaStream_t stream);

// FP32 with fused multiply-add, tiles of 16 x 16 in shared memory; any shape.
cudaError_t launch_float_product(Shape shape, const float* a, const float* b, float* c,
                                 cudaStream_t stream);

// Tensor cores, mma.sync.m16n8k8: FP16 factors (as bits), FP32 sums. The shape must be a multiple
// of 16 x 8 x 8 (rows x depth x columns).
cudaError_t launch_tensor_product(Shape shape, const std::uint16_t* a, const std::uint16_t* b,
                                  float* c, cudaStream_t stream);

// Writes a sequence that depends on the seed and the position.
cudaError_t launch_fill(std::uint32_t* words, std::size_t count, std::uint32_t seed,
                        cudaStream_t stream);

// Adds to *differences how many words are not what launch_fill wrote.
cudaError_t launch_compare(const std::uint32_t* words, std::size_t count, std::uint32_t seed,
                           unsigned long long* differences, cudaStream_t stream);

// Loads the device code on the current device and describes it; the driver's answer to whether it
// has an image that this device can run.
cudaError_t attributes(cudaFuncAttributes* result);

}  // namespace kernels
}  // namespace kvreg
