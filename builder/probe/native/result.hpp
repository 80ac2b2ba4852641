// What a CUDA call can answer: success, or a failure that names the call.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

namespace kvreg {

struct Failure {
  std::string call;  // the CUDA function, or the kernel that was launched or waited for
  int code = 0;
  std::string name;  // the error's symbol, such as cudaErrorNoDevice
  std::string text;  // the runtime's own description
};

// Nothing when the step went well. Results are written to the step's last parameter.
using Status = std::optional<Failure>;

// Makes a failure of an unsuccessful call and clears the thread's last error, which would otherwise
// be reported again by the next caller of cudaGetLastError in this process.
Status attempt(const char* call, cudaError_t status);

}  // namespace kvreg
