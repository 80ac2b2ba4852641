// What one device can do with another's memory.
#pragma once

#include "bandwidth.hpp"
#include "result.hpp"

namespace kvreg {

struct Link {
  bool peer_access = false;       // each device can read and write the other's memory
  bool already_enabled = false;   // by other code of this process; then it is left as it is
  bool native_atomics = false;
  int performance_rank = 0;       // the runtime's own: 0 is the best link of the machine
};

Status read_link(int source, int target, Link& link);

// Copies `bytes` (a multiple of 4) from one device to another. With `peer`, access is enabled both
// ways during the copies, unless it already was; without, the driver stages the bytes through host
// memory.
Status copy_between(int source, int target, bool peer, std::size_t bytes, int repetitions,
                    Copies& copies);

}  // namespace kvreg
