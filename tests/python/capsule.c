/* The destructor of the capsules that the tests hand out: deletes a tensor that nobody took over.
 * Not in Python, since an exception can be on its way while a capsule dies, and no Python code may
 * run then. Declares the few functions of the interpreter itself, so that building needs none. */
#include <quay/dlpack.h>

int PyCapsule_IsValid(void *capsule, const char *name);
void *PyCapsule_GetPointer(void *capsule, const char *name);
void PyErr_Fetch(void **out_type, void **out_value, void **out_traceback);
void PyErr_Restore(void *type, void *value, void *traceback);

__attribute__((visibility("default"))) void quay_test_delete_unused(void *capsule);

void quay_test_delete_unused(void *capsule) {
  void *type;
  void *value;
  void *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    quay_dl_managed_tensor_versioned *const tensor =
        PyCapsule_GetPointer(capsule, "dltensor_versioned");
    tensor->deleter(tensor);
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    quay_dl_managed_tensor *const tensor = PyCapsule_GetPointer(capsule, "dltensor");
    tensor->deleter(tensor);
  }
  PyErr_Restore(type, value, traceback);
}
