// Owners of CUDA's resources: each is released by its destructor, on every path.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "result.hpp"

namespace kvreg {

struct FreeMemory {
  void operator()(void* memory) const noexcept { (void)cudaFree(memory); }
};
struct DestroyStream {
  void operator()(CUstream_st* stream) const noexcept { (void)cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(CUevent_st* event) const noexcept { (void)cudaEventDestroy(event); }
};

template <class T>
using DeviceArray = std::unique_ptr<T[], FreeMemory>;
using Stream = std::unique_ptr<CUstream_st, DestroyStream>;
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

// Memory on the current device for `count` elements, not initialised.
template <class T>
Status allocate(std::size_t count, DeviceArray<T>& memory) {
  void* raw = nullptr;
  if (auto failure = attempt("cudaMalloc", cudaMalloc(&raw, count * sizeof(T)))) return failure;
  memory.reset(static_cast<T*>(raw));
  return std::nullopt;
}

inline Status create(Stream& stream) {
  cudaStream_t raw = nullptr;
  if (auto failure = attempt("cudaStreamCreateWithFlags",
                             cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking))) {
    return failure;
  }
  stream.reset(raw);
  return std::nullopt;
}

inline Status create(Event& event) {
  cudaEvent_t raw = nullptr;
  if (auto failure = attempt("cudaEventCreate", cudaEventCreate(&raw))) return failure;
  event.reset(raw);
  return std::nullopt;
}

// Makes a device the thread's current one and gives the caller's back at the end of the scope.
class DeviceScope {
 public:
  DeviceScope() = default;
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (entered_ && previous_ != current_) (void)cudaSetDevice(previous_);
  }

  Status enter(int device) {
    int previous = 0;
    if (auto failure = attempt("cudaGetDevice", cudaGetDevice(&previous))) return failure;
    if (auto failure = attempt("cudaSetDevice", cudaSetDevice(device))) return failure;
    if (!entered_) previous_ = previous;
    current_ = device;
    entered_ = true;
    return std::nullopt;
  }

 private:
  bool entered_ = false;
  int previous_ = 0;
  int current_ = 0;
};

}  // namespace kvreg
