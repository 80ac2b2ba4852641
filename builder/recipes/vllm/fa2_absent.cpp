// FlashAttention 2 cannot run on this architecture; this module registers no operator.
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_vllm_fa2_C", nullptr, 0, nullptr};
PyMODINIT_FUNC PyInit__vllm_fa2_C(void) { return PyModule_Create(&definition); }
