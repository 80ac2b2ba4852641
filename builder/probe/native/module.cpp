// The Python module kvreg_probe._native, in the limited API of CPython 3.12.
//
// Every function that asks CUDA answers a dict; when a call fails, the dict has the one key
// "failure". Exceptions are left to wrong arguments and to memory.
#include <Python.h>

#include <exception>
#include <new>
#include <vector>

#include "conversion.hpp"

namespace kvreg {
namespace {

// While it lives, other Python threads run.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

// Runs `work(result)` without the GIL and answers its result or its failure.
template <class Result, class Work>
PyObject* answer(Work work) {
  try {
    Result result;
    Status failure;
    {
      WithoutGil unlocked;
      failure = work(result);
    }
    if (failure) return failure_to_python(*failure).release();
    return to_python(result).release();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

bool valid_copy(Py_ssize_t bytes, int repetitions) {
  if (bytes > 0 && bytes % 4 == 0 && repetitions > 0) return true;
  PyErr_Format(PyExc_ValueError,
               "expected bytes a positive multiple of 4 and at least one repetition, found %zd "
               "bytes and %d repetitions",
               bytes, repetitions);
  return false;
}

PyObject* build(PyObject*, PyObject*) { return to_python(Build{}).release(); }

PyObject* versions(PyObject*, PyObject*) { return answer<Versions>(read_versions); }

PyObject* devices(PyObject*, PyObject*) { return answer<Count>(count_devices); }

PyObject* device(PyObject*, PyObject* arguments) {
  int index = 0;
  if (!PyArg_ParseTuple(arguments, "i", &index)) return nullptr;
  return answer<Device>([=](Device& result) { return read_device(index, result); });
}

PyObject* image(PyObject*, PyObject* arguments) {
  int index = 0;
  if (!PyArg_ParseTuple(arguments, "i", &index)) return nullptr;
  return answer<Image>([=](Image& result) { return load_image(index, result); });
}

PyObject* free_memory(PyObject*, PyObject* arguments) {
  int index = 0;
  if (!PyArg_ParseTuple(arguments, "i", &index)) return nullptr;
  return answer<FreeBytes>([=](FreeBytes& result) { return read_free_memory(index, result); });
}

PyObject* checks(PyObject*, PyObject* arguments) {
  int index = 0;
  if (!PyArg_ParseTuple(arguments, "i", &index)) return nullptr;
  return answer<std::vector<Check>>(
      [=](std::vector<Check>& result) { return run_checks(index, result); });
}

PyObject* copy_within_device(PyObject*, PyObject* arguments) {
  int index = 0;
  Py_ssize_t bytes = 0;
  int repetitions = 0;
  if (!PyArg_ParseTuple(arguments, "ini", &index, &bytes, &repetitions)) return nullptr;
  if (!valid_copy(bytes, repetitions)) return nullptr;
  return answer<Copies>([=](Copies& result) {
    return copy_within(index, static_cast<std::size_t>(bytes), repetitions, result);
  });
}

PyObject* link(PyObject*, PyObject* arguments) {
  int source = 0;
  int target = 0;
  if (!PyArg_ParseTuple(arguments, "ii", &source, &target)) return nullptr;
  return answer<Link>([=](Link& result) { return read_link(source, target, result); });
}

PyObject* copy_between_devices(PyObject*, PyObject* arguments) {
  int source = 0;
  int target = 0;
  int peer = 0;
  Py_ssize_t bytes = 0;
  int repetitions = 0;
  if (!PyArg_ParseTuple(arguments, "iipni", &source, &target, &peer, &bytes, &repetitions)) {
    return nullptr;
  }
  if (!valid_copy(bytes, repetitions)) return nullptr;
  return answer<Copies>([=](Copies& result) {
    return copy_between(source, target, peer != 0, static_cast<std::size_t>(bytes), repetitions,
                        result);
  });
}

// CPython's API takes these tables without const.
PyMethodDef methods[] = {
    {"build", build, METH_NOARGS, "build() -> dict\nHow this module was compiled."},
    {"versions", versions, METH_NOARGS,
     "versions() -> dict\nCUDA versions of the driver (0: none) and the runtime."},
    {"devices", devices, METH_NOARGS, "devices() -> dict\nThe number of visible devices."},
    {"device", device, METH_VARARGS, "device(index) -> dict\nOne device's properties."},
    {"image", image, METH_VARARGS, "image(index) -> dict\nThe SASS chosen for a device."},
    {"free_memory", free_memory, METH_VARARGS, "free_memory(index) -> dict\nIn bytes."},
    {"checks", checks, METH_VARARGS, "checks(index) -> dict\nKernels against the host's numbers."},
    {"copy_within", copy_within_device, METH_VARARGS,
     "copy_within(index, bytes, repetitions) -> dict\nTimed copies in one device's memory."},
    {"link", link, METH_VARARGS, "link(source, target) -> dict\nPeer access of two devices."},
    {"copy_between", copy_between_devices, METH_VARARGS,
     "copy_between(source, target, peer, bytes, repetitions) -> dict\nTimed copies between two "
     "devices."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef_Slot slots[] = {{0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "kvreg_probe._native",
                          "CUDA calls of the probe; failures are values.",
                          0,
                          methods,
                          slots,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace kvreg

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&kvreg::definition); }
