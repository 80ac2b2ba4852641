#include "devices.hpp"

#include <cstdio>

#include "kernels.hpp"
#include "resources.hpp"

namespace kvreg {
namespace {

std::string format_uuid(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += byte;
  }
  return text;
}

}  // namespace

Status read_versions(Versions& versions) {
  if (auto failure =
          attempt("cudaDriverGetVersion", cudaDriverGetVersion(&versions.driver_api))) {
    return failure;
  }
  return attempt("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&versions.runtime_api));
}

Status count_devices(Count& count) {
  return attempt("cudaGetDeviceCount", cudaGetDeviceCount(&count.devices));
}

Status read_device(int index, Device& device) {
  cudaDeviceProp properties{};
  if (auto failure =
          attempt("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, index))) {
    return failure;
  }
  char bus_id[32] = {};
  if (auto failure = attempt("cudaDeviceGetPCIBusId",
                             cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index))) {
    return failure;
  }
  // The properties' own clock field is gone from newer toolkits; the attribute is in all of them.
  int clock_khz = 0;
  int bus_bits = 0;
  if (auto failure =
          attempt("cudaDeviceGetAttribute",
                  cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, index))) {
    return failure;
  }
  if (auto failure =
          attempt("cudaDeviceGetAttribute",
                  cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, index))) {
    return failure;
  }
  device.name = properties.name;
  device.uuid = format_uuid(properties.uuid);
  device.pci_bus_id = bus_id;
  device.major = properties.major;
  device.minor = properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  device.memory_bytes = static_cast<long long>(properties.totalGlobalMem);
  device.peak_gb_per_s = 2.0 * clock_khz * 1e3 * bus_bits / 8 / 1e9;  // two transfers a clock
  return std::nullopt;
}

Status read_free_memory(int index, FreeBytes& memory) {
  DeviceScope scope;
  if (auto failure = scope.enter(index)) return failure;
  std::size_t free = 0;
  std::size_t total = 0;
  if (auto failure = attempt("cudaMemGetInfo", cudaMemGetInfo(&free, &total))) return failure;
  memory.bytes = static_cast<long long>(free);
  return std::nullopt;
}

Status load_image(int index, Image& image) {
  DeviceScope scope;
  if (auto failure = scope.enter(index)) return failure;
  cudaFuncAttributes attributes{};
  if (auto failure = attempt("cudaFuncGetAttributes", kernels::attributes(&attributes))) {
    return failure;
  }
  image.binary_version = attributes.binaryVersion;
  return std::nullopt;
}

}  // namespace kvreg
