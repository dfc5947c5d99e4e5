/* Finding, loading and starting the CUDA driver; fork and exit. Calls nothing of it afterwards. */
#include "cuda/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/environment.h"
#include "core/error.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/workers.h"
#include "cuda/cuda_impl.h"
#include "cuda/error.h"

typedef enum driver_state {
  DRIVER_CALLABLE,
  DRIVER_FORKED,  /* this is a child, and the parent had started the driver */
  DRIVER_EXITING, /* the driver's own exit handlers run, or have run */
} driver_state;

static atomic_int state;
/* Written once, with QUAY__LOCK_CUDA held. */
static quay__cuda_api driver;
static _Atomic(const quay__cuda_api *) started;

/* The two versions of the function that finds the others. "Driver Entry Point Access". */
typedef quay__cu_result (*get_proc_address_v2)(const char *name, void **out_function, int version,
                                               uint64_t flags, int *out_found);
typedef quay__cu_result (*get_proc_address_v1)(const char *name, void **out_function, int version,
                                               uint64_t flags);

/* What is being loaded. */
typedef struct library {
  void *handle;
  const char *path;
  get_proc_address_v2 find_v2;
  get_proc_address_v1 find_v1;
} library;

typedef struct symbol {
  const char *name, *suffixed;
  uint64_t flags;
  size_t place; /* in quay__cuda_api */
  int version;
  bool mandatory;
} symbol;

enum {
  STREAMS_ANY = QUAY__CU_PROC_ADDRESS_DEFAULT,
  STREAMS_LEGACY = QUAY__CU_PROC_ADDRESS_LEGACY_STREAM,
  NEED_MUST = 1,
  NEED_MAY = 0,
};

static const symbol symbols[] = {
#define X(function, suffix, abi_version, streams, need, parameters) \
  {.name = #function,                                               \
   .suffixed = #function #suffix,                                   \
   .version = (abi_version),                                        \
   .flags = STREAMS_##streams,                                      \
   .mandatory = NEED_##need,                                        \
   .place = offsetof(quay__cuda_api, function)},
#include "cuda/symbols.h"
#undef X
};

static quay_status unavailable(quay__cu_result code, const char *name, const char *format, ...)
    QUAY_PRINTF(3, 4);

static quay_status unavailable(quay__cu_result code, const char *name, const char *format, ...) {
  char text[QUAY_ERROR_MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  quay__message_format(text, sizeof text, format, arguments);
  va_end(arguments);
  quay_error_set(QUAY_STATUS_UNAVAILABLE, "cuda", code, name, "%s", text);
  return QUAY_STATUS_UNAVAILABLE;
}

static quay_status fail_stub(const char *path) {
  return unavailable(QUAY__CU_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY",
                     "%s is the CUDA Toolkit's stub library, which is made for linking alone; let "
                     "the loader find the driver's own libcuda.so.1, or name it in "
                     "QUAY_CUDA_LIBRARY",
                     path);
}

/* Loading. */

static quay_status open_library(library *out_library) {
  const char *const chosen = quay__environment_cuda_library();
  if (chosen != NULL) {
    *out_library = (library){.handle = quay__os_library_open(chosen), .path = chosen};
    if (out_library->handle != NULL)
      return QUAY_OK;
    return unavailable(0, NULL,
                       "QUAY_CUDA_LIBRARY names \"%s\", which can't be loaded: %s; unset it to "
                       "take the system's driver",
                       chosen, quay__os_library_error());
  }
  static const char *const usual[] = {"libcuda.so.1", "libcuda.so"};
  char first_error[256] = "";
  for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
    *out_library = (library){.handle = quay__os_library_open(usual[i]), .path = usual[i]};
    if (out_library->handle != NULL)
      return QUAY_OK;
    if (i == 0)
      (void)snprintf(first_error, sizeof first_error, "%s", quay__os_library_error());
  }
  return unavailable(0, NULL,
                     "there is no CUDA driver: neither libcuda.so.1 nor libcuda.so can be "
                     "loaded (%s)",
                     first_error);
}

/* ISO C has no conversion from void * to a function pointer; POSIX gives both one representation.
 */
static void store(void *place, void *address) {
  memcpy(place, &address, sizeof address);
}

static void find_finder(library *from) {
  store(&from->find_v2, quay__os_library_symbol(from->handle, "cuGetProcAddress_v2"));
  store(&from->find_v1, quay__os_library_symbol(from->handle, "cuGetProcAddress"));
}

/* The function's address, or NULL. A driver may answer success with NULL: absent as well. */
static void *find(const library *from, const symbol *wanted, quay__cu_result *out_result) {
  void *address = NULL;
  int found = 0; /* CUdriverProcAddressQueryResult; the address says as much */
  *out_result = QUAY__CU_SUCCESS;
  if (from->find_v2 != NULL) {
    *out_result = from->find_v2(wanted->name, &address, wanted->version, wanted->flags, &found);
  } else if (from->find_v1 != NULL) {
    *out_result = from->find_v1(wanted->name, &address, wanted->version, wanted->flags);
  } else {
    address = quay__os_library_symbol(from->handle, wanted->suffixed);
  }
  return *out_result == QUAY__CU_SUCCESS ? address : NULL;
}

/* Before the table is read: a driver that is too old would else be told apart by what it lacks. */
static quay_status check_version(const library *from, int *out_version) {
  quay__cu_result (*get_version)(int *);
  store(&get_version, quay__os_library_symbol(from->handle, "cuDriverGetVersion"));
  if (get_version == NULL) {
    return unavailable(
        0, NULL,
        "%s has no function cuDriverGetVersion: it is no CUDA driver; name the right "
        "library in QUAY_CUDA_LIBRARY, or unset it",
        from->path);
  }
  *out_version = 0;
  const quay__cu_result result = get_version(out_version);
  if (result == QUAY__CU_STUB_LIBRARY)
    return fail_stub(from->path);
  if (result != QUAY__CU_SUCCESS) {
    return unavailable(result, quay__cuda_result_name(result),
                       "the CUDA driver %s does not tell its version: error %d", from->path,
                       result);
  }
  if (*out_version < QUAY__CUDA_VERSION_MIN) {
    return unavailable(
        0, NULL,
        "the CUDA driver %s is too old: it is made for CUDA %d.%d, and at least CUDA "
        "%d.%d is needed; update the driver",
        from->path, *out_version / 1000, *out_version % 1000 / 10, QUAY__CUDA_VERSION_MIN / 1000,
        QUAY__CUDA_VERSION_MIN % 1000 / 10);
  }
  return QUAY_OK;
}

static quay_status find_all(const library *from, quay__cuda_api *out_api) {
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    const symbol *const wanted = &symbols[i];
    quay__cu_result result;
    void *const address = find(from, wanted, &result);
    store((char *)out_api + wanted->place, address);
    if (result == QUAY__CU_STUB_LIBRARY)
      return fail_stub(from->path);
    if (address == NULL && wanted->mandatory) {
      return unavailable(result, result != 0 ? quay__cuda_result_name(result) : NULL,
                         "the CUDA driver %s has no function %s (as of CUDA %d.%d); it is too old, "
                         "or no CUDA driver",
                         from->path, wanted->name, wanted->version / 1000,
                         wanted->version % 1000 / 10);
    }
  }
  return QUAY_OK;
}

/* Starting. */

/* Whether the device files are there and this user may not open them, which the driver tells as "no
 * device". */
static bool device_files_refused(void) {
  const int file = quay__os_open("/dev/nvidiactl", O_RDWR, 0);
  if (file >= 0)
    (void)quay__os_close(file);
  return file < 0 && (errno == EACCES || errno == EPERM);
}

static quay_status fail_init(const library *from, quay__cu_result result) {
  const char *const name = quay__cuda_result_name(result);
  if (result == QUAY__CU_STUB_LIBRARY)
    return fail_stub(from->path);
  if (result == QUAY__CU_NOT_PERMITTED || device_files_refused()) {
    return unavailable(result, name,
                       "no permission to use the CUDA devices (%s); the user needs access to the "
                       "files /dev/nvidia*",
                       name);
  }
  if (result == QUAY__CU_NO_DEVICE) {
    return unavailable(result, name,
                       "the CUDA driver %s is there, but no device of it; look at nvidia-smi, and "
                       "at CUDA_VISIBLE_DEVICES if it is set",
                       from->path);
  }
  if (result == QUAY__CU_SYSTEM_DRIVER_MISMATCH) {
    return unavailable(result, name,
                       "the CUDA driver's library %s and its kernel module are of different "
                       "versions (%s); load the module anew, or restart the machine",
                       from->path, name);
  }
  return unavailable(result, name,
                     "the CUDA driver %s can't be started: error %d (%s); see whether nvidia-smi "
                     "works, and whether the kernel module nvidia-uvm is loaded",
                     from->path, result, name);
}

static void after_fork_in_child(void) {
  atomic_store(&state, DRIVER_FORKED);
  quay__cuda_devices_close(true);
}

/* Runs before the driver's own exit handlers, since it was registered after them. */
static void at_exit(void) {
  quay__workers_stop();
  if (atomic_load(&state) != DRIVER_CALLABLE)
    return;
  atomic_store(&state, DRIVER_EXITING);
  quay__cuda_devices_close(false);
}

static quay_status start(library *from, quay__cuda_api *out_api) {
  QUAY_TRY(check_version(from, &out_api->version));
  find_finder(from);
  QUAY_TRY(find_all(from, out_api));
  const quay__cu_result result = out_api->cuInit(0);
  if (result != QUAY__CU_SUCCESS)
    return fail_init(from, result);
  (void)snprintf(out_api->path, sizeof out_api->path, "%s", from->path);
  if (quay__os_at_fork_in_child(after_fork_in_child) != 0 || quay__os_at_exit(at_exit) != 0)
    return quay__fail_out_of_memory(sizeof(void *), "the handlers of fork and exit");
  return QUAY_OK;
}

/* With QUAY__LOCK_CUDA held. */
static quay_status load(void) {
  library from;
  QUAY_TRY(open_library(&from));
  const quay_status status = start(&from, &driver);
  if (status != QUAY_OK) {
    memset(&driver, 0, sizeof driver);
    quay__os_library_close(from.handle);
    return status;
  }
  atomic_store_explicit(&started, &driver, memory_order_release);
  return QUAY_OK;
}

quay_status quay__cuda_start(const quay__cuda_api **out_api) {
  *out_api = NULL;
  QUAY_TRY(quay__cuda_check_callable());
  const quay__cuda_api *ready = quay__cuda_started();
  if (ready == NULL) {
    quay__global_acquire(QUAY__LOCK_CUDA);
    const quay_status status = quay__cuda_started() != NULL ? QUAY_OK : load();
    quay__global_release(QUAY__LOCK_CUDA);
    if (status != QUAY_OK)
      return status;
    ready = quay__cuda_started();
  }
  *out_api = ready;
  return QUAY_OK;
}

const quay__cuda_api *quay__cuda_started(void) {
  return atomic_load_explicit(&started, memory_order_acquire);
}

bool quay__cuda_callable(void) {
  return atomic_load_explicit(&state, memory_order_relaxed) == DRIVER_CALLABLE;
}

quay_status quay__cuda_check_callable(void) {
  const int now = atomic_load_explicit(&state, memory_order_relaxed);
  if (__builtin_expect(now == DRIVER_CALLABLE, 1))
    return QUAY_OK;
  if (now == DRIVER_FORKED) {
    return unavailable(0, NULL,
                       "this process was forked from one that had started the CUDA driver, which "
                       "does not survive that; fork before the first use of CUDA, or start a new "
                       "program");
  }
  return unavailable(QUAY__CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED",
                     "the process is exiting: the CUDA driver is shut down already");
}
