#include "result.hpp"

namespace kvreg {

Status attempt(const char* call, cudaError_t status) {
  if (status == cudaSuccess) return std::nullopt;
  (void)cudaGetLastError();
  return Failure{call, static_cast<int>(status), cudaGetErrorName(status),
                 cudaGetErrorString(status)};
}

}  // namespace kvreg
