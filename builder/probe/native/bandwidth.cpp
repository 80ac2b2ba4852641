#include "bandwidth.hpp"

#include "kernels.hpp"

namespace kvreg {

Status count_differences(const std::uint32_t* words, std::size_t count, std::uint32_t seed,
                         cudaStream_t stream, long long& differences) {
  DeviceArray<unsigned long long> counter;
  unsigned long long found = 0;
  if (auto failure = allocate(1, counter)) return failure;
  if (auto failure = attempt("cudaMemsetAsync",
                             cudaMemsetAsync(counter.get(), 0, sizeof found, stream))) {
    return failure;
  }
  if (auto failure = attempt(
          "compare", kernels::launch_compare(words, count, seed, counter.get(), stream))) {
    return failure;
  }
  if (auto failure =
          attempt("cudaMemcpyAsync", cudaMemcpyAsync(&found, counter.get(), sizeof found,
                                                     cudaMemcpyDeviceToHost, stream))) {
    return failure;
  }
  if (auto failure = attempt("compare", cudaStreamSynchronize(stream))) return failure;
  differences = static_cast<long long>(found);
  return std::nullopt;
}

Status copy_within(int device, std::size_t bytes, int repetitions, Copies& copies) {
  const std::size_t words = bytes / sizeof(std::uint32_t);
  const std::uint32_t seed = 0x5EED0000u + static_cast<std::uint32_t>(device);
  DeviceScope scope;
  if (auto failure = scope.enter(device)) return failure;
  Stream stream;
  DeviceArray<std::uint32_t> from;
  DeviceArray<std::uint32_t> to;
  if (auto failure = create(stream)) return failure;
  if (auto failure = allocate(words, from)) return failure;
  if (auto failure = allocate(words, to)) return failure;
  if (auto failure = attempt("fill", kernels::launch_fill(from.get(), words, seed, stream.get()))) {
    return failure;
  }
  if (auto failure = attempt("cudaMemsetAsync",
                             cudaMemsetAsync(to.get(), 0, bytes, stream.get()))) {
    return failure;
  }
  const auto copy = [&](cudaStream_t on) {
    return attempt("cudaMemcpyAsync", cudaMemcpyAsync(to.get(), from.get(), bytes,
                                                      cudaMemcpyDeviceToDevice, on));
  };
  if (auto failure = time_copies(copy, stream.get(), repetitions, copies.milliseconds)) {
    return failure;
  }
  return count_differences(to.get(), words, seed, stream.get(), copies.differing_words);
}

}  // namespace kvreg
