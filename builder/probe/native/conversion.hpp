// Results and failures as Python objects, in the limited API.
#pragma once

#include <Python.h>

#include <memory>
#include <vector>

#include "bandwidth.hpp"
#include "checks.hpp"
#include "devices.hpp"
#include "links.hpp"
#include "result.hpp"

namespace kvreg {

struct Release {
  void operator()(PyObject* object) const noexcept { Py_DECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;  // null: a Python exception is set

// How the module was compiled, from the build's definitions.
struct Build {};

Owned to_python(const Build& build);
Owned to_python(const Failure& failure);
Owned to_python(const Versions& versions);
Owned to_python(const Count& count);
Owned to_python(const Device& device);
Owned to_python(const FreeBytes& memory);
Owned to_python(const Image& image);
Owned to_python(const std::vector<Check>& checks);
Owned to_python(const Link& link);
Owned to_python(const Copies& copies);

// {"failure": ...}
Owned failure_to_python(const Failure& failure);

}  // namespace kvreg
