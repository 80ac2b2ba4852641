// Products computed by the device and compared with the host's.
#pragma once

#include <string>
#include <vector>

#include "result.hpp"

namespace kvreg {

struct Check {
  std::string name;
  long long elements = 0;
  long long mismatches = 0;
  double worst_error = 0;  // the largest |device - host|; for integers that of the unsigned values
  double worst_ratio = 0;  // the largest error as a fraction of its element's bound; 0 when exact
  std::string tolerance;   // the rule in words
};

// All checks on one device, in a fixed order.
Status run_checks(int device, std::vector<Check>& checks);

}  // namespace kvreg
