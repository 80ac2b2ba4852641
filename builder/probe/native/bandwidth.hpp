// Copies timed by events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "resources.hpp"
#include "result.hpp"

namespace kvreg {

struct Copies {
  std::vector<double> milliseconds;  // one for each repetition
  long long differing_words = 0;     // 32-bit words at the target that are not the source's
};

// Times `copy(stream)` for each repetition with a pair of events, after two runs that are not
// timed. The stream must belong to the current device.
template <class Copy>
Status time_copies(Copy copy, cudaStream_t stream, int repetitions,
                   std::vector<double>& milliseconds) {
  constexpr int kWarmUps = 2;
  Event start;
  Event stop;
  if (auto failure = create(start)) return failure;
  if (auto failure = create(stop)) return failure;
  for (int i = 0; i < kWarmUps; ++i) {
    if (auto failure = copy(stream)) return failure;
  }
  for (int i = 0; i < repetitions; ++i) {
    float elapsed = 0;
    if (auto failure = attempt("cudaEventRecord", cudaEventRecord(start.get(), stream))) {
      return failure;
    }
    if (auto failure = copy(stream)) return failure;
    if (auto failure = attempt("cudaEventRecord", cudaEventRecord(stop.get(), stream))) {
      return failure;
    }
    if (auto failure = attempt("cudaEventSynchronize", cudaEventSynchronize(stop.get()))) {
      return failure;
    }
    if (auto failure = attempt("cudaEventElapsedTime",
                               cudaEventElapsedTime(&elapsed, start.get(), stop.get()))) {
      return failure;
    }
    milliseconds.push_back(elapsed);
  }
  return std::nullopt;
}

// Counts the words on the current device that launch_fill with this seed did not write.
Status count_differences(const std::uint32_t* words, std::size_t count, std::uint32_t seed,
                         cudaStream_t stream, long long& differences);

// Copies `bytes` (a multiple of 4) within a device.
Status copy_within(int device, std::size_t bytes, int repetitions, Copies& copies);

}  // namespace kvreg
