// What the runtime says about itself, the driver and each device.
#pragma once

#include <string>

#include "result.hpp"

namespace kvreg {

struct Versions {
  int driver_api = 0;   // the CUDA version that the driver supports, as 12040; 0 without a driver
  int runtime_api = 0;  // that of the runtime linked into this module
};

struct Count {
  int devices = 0;
};

struct FreeBytes {
  long long bytes = 0;
};

struct Device {
  std::string name;
  std::string uuid;  // as nvidia-smi writes it
  std::string pci_bus_id;
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  long long memory_bytes = 0;  // total, as CUDA sees it: less than nvidia-smi's by what is reserved
  double peak_gb_per_s = 0;    // from memory clock and bus width, 10^9 bytes; 0 when not told
};

// The device code's image for one device.
struct Image {
  int binary_version = 0;  // the SASS that was chosen, as 75
};

Status read_versions(Versions& versions);
Status count_devices(Count& count);
Status read_device(int index, Device& device);
Status read_free_memory(int index, FreeBytes& memory);
Status load_image(int index, Image& image);

}  // namespace kvreg
