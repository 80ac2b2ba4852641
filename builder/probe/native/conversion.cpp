#include "conversion.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace kvreg {
namespace {

Owned value(const char* text) {
  // Names come from the driver: bytes that are not UTF-8 must not make a report impossible.
  return Owned(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace"));
}
Owned value(const std::string& text) { return value(text.c_str()); }
Owned value(long long number) { return Owned(PyLong_FromLongLong(number)); }
Owned value(int number) { return Owned(PyLong_FromLong(number)); }
Owned value(double number) { return Owned(PyFloat_FromDouble(number)); }
Owned value(bool truth) { return Owned(PyBool_FromLong(truth)); }
Owned value(Owned object) { return object; }

bool set(PyObject*) { return true; }

template <class Item, class... Rest>
bool set(PyObject* dict, const char* key, Item&& item, Rest&&... rest) {
  const Owned object = value(std::forward<Item>(item));
  return object && PyDict_SetItemString(dict, key, object.get()) == 0 &&
         set(dict, std::forward<Rest>(rest)...);
}

// dict_of("key", item, "key", item, ...)
template <class... Items>
Owned dict_of(Items&&... items) {
  Owned dict(PyDict_New());
  if (!dict || !set(dict.get(), std::forward<Items>(items)...)) return nullptr;
  return dict;
}

template <class Items, class Convert>
Owned list_of(const Items& items, Convert convert) {
  Owned list(PyList_New(0));
  if (!list) return nullptr;
  for (const auto& item : items) {
    const Owned object = convert(item);
    if (!object || PyList_Append(list.get(), object.get()) != 0) return nullptr;
  }
  return list;
}

Owned check_to_python(const Check& check) {
  return dict_of("name", check.name, "elements", check.elements, "mismatches", check.mismatches,
                 "worst_error", check.worst_error, "worst_ratio", check.worst_ratio, "tolerance",
                 check.tolerance);
}

}  // namespace

Owned to_python(const Build&) {
  return dict_of("version", KVREG_PROBE_VERSION, "compute_capabilities",
                 KVREG_PROBE_COMPUTE_CAPABILITIES, "cuda_compiler", KVREG_PROBE_CUDA_COMPILER,
                 "host_compiler", KVREG_PROBE_HOST_COMPILER, "runtime_api", CUDART_VERSION);
}

Owned to_python(const Failure& failure) {
  return dict_of("call", failure.call, "code", failure.code, "name", failure.name, "text",
                 failure.text);
}

Owned failure_to_python(const Failure& failure) { return dict_of("failure", to_python(failure)); }

Owned to_python(const Versions& versions) {
  return dict_of("driver_api", versions.driver_api, "runtime_api", versions.runtime_api);
}

Owned to_python(const Count& count) { return dict_of("devices", count.devices); }

Owned to_python(const Device& device) {
  return dict_of("name", device.name, "uuid", device.uuid, "pci_bus_id", device.pci_bus_id, "major",
                 device.major, "minor", device.minor, "multiprocessors", device.multiprocessors,
                 "memory_bytes", device.memory_bytes, "peak_gb_per_s", device.peak_gb_per_s);
}

Owned to_python(const FreeBytes& memory) { return dict_of("free_bytes", memory.bytes); }

Owned to_python(const Image& image) { return dict_of("binary_version", image.binary_version); }

Owned to_python(const std::vector<Check>& checks) {
  return dict_of("checks", list_of(checks, check_to_python));
}

Owned to_python(const Link& link) {
  return dict_of("peer_access", link.peer_access, "already_enabled", link.already_enabled,
                 "native_atomics", link.native_atomics, "performance_rank", link.performance_rank);
}

Owned to_python(const Copies& copies) {
  const auto number = [](double item) { return value(item); };
  return dict_of("milliseconds", list_of(copies.milliseconds, number), "differing_words",
                 copies.differing_words);
}

}  // namespace kvreg
