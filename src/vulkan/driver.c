/* Finding and loading the Vulkan loader, and the instance; fork and exit. */
#include "vulkan/driver.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/environment.h"
#include "core/error.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/workers.h"
#include "vulkan/error.h"
#include "vulkan/vulkan_impl.h"

typedef enum driver_state {
  DRIVER_CALLABLE,
  DRIVER_FORKED,  /* this is a child, and the parent had used Vulkan */
  DRIVER_EXITING, /* the drivers' own exit handlers run, or have run */
} driver_state;

static atomic_int state;
/* Written with QUAY__LOCK_VULKAN held. */
static quay__vulkan_instance driver;
static void *library;
static bool handlers_registered;
static _Atomic(const quay__vulkan_instance *) started;

typedef struct symbol {
  const char *name;
  size_t place; /* in the table */
  bool mandatory;
} symbol;

enum {
  NEED_MUST = 1,
  NEED_MAY = 0,
};

static const symbol instance_symbols[] = {
#define QUAY__VULKAN_INSTANCE_SYMBOLS
#define X(function, need) \
  {.name = #function, .place = offsetof(quay__vulkan_instance, function), .mandatory = NEED_##need},
#include "vulkan/symbols.h"
#undef X
#undef QUAY__VULKAN_INSTANCE_SYMBOLS
};

static const symbol device_symbols[] = {
#define QUAY__VULKAN_DEVICE_SYMBOLS
#define X(function, need) \
  {.name = #function, .place = offsetof(quay__vulkan_api, function), .mandatory = NEED_##need},
#include "vulkan/symbols.h"
#undef X
#undef QUAY__VULKAN_DEVICE_SYMBOLS
};

static quay_status unavailable(VkResult code, const char *format, ...) QUAY_PRINTF(2, 3);

static quay_status unavailable(VkResult code, const char *format, ...) {
  char text[QUAY_ERROR_MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  quay__message_format(text, sizeof text, format, arguments);
  va_end(arguments);
  quay_error_set(QUAY_STATUS_UNAVAILABLE, "vulkan", code,
                 code != VK_SUCCESS ? quay__vulkan_result_name(code) : NULL, "%s", text);
  return QUAY_STATUS_UNAVAILABLE;
}

/* Functions. */

/* ISO C has no conversion from void * to a function pointer; POSIX gives both one representation.
 */
static void store(void *place, PFN_vkVoidFunction function) {
  memcpy(place, &function, sizeof function);
}

static quay_status fail_symbol(const char *of, const char *name) {
  return unavailable(VK_SUCCESS,
                     "%s has no function %s; Vulkan 1.2 or newer is needed, update the driver", of,
                     name);
}

quay_status quay__vulkan_instance_find(PFN_vkGetInstanceProcAddr get, VkInstance handle,
                                       quay__vulkan_instance *out_instance) {
  *out_instance = (quay__vulkan_instance){.get = get, .handle = handle};
  for (size_t i = 0; i < sizeof instance_symbols / sizeof instance_symbols[0]; i++) {
    const PFN_vkVoidFunction function = get(handle, instance_symbols[i].name);
    if (function == NULL && instance_symbols[i].mandatory)
      return fail_symbol("the Vulkan instance", instance_symbols[i].name);
    store((char *)out_instance + instance_symbols[i].place, function);
  }
  return QUAY_OK;
}

quay_status quay__vulkan_api_find(const quay__vulkan_instance *instance, VkDevice device,
                                  quay__vulkan_api *out_api) {
  for (size_t i = 0; i < sizeof device_symbols / sizeof device_symbols[0]; i++) {
    const PFN_vkVoidFunction function =
        instance->vkGetDeviceProcAddr(device, device_symbols[i].name);
    if (function == NULL && device_symbols[i].mandatory)
      return fail_symbol("the Vulkan device", device_symbols[i].name);
    store((char *)out_api + device_symbols[i].place, function);
  }
  return QUAY_OK;
}

/* Loading. */

static quay_status open_library(void **out_library) {
  static const char usual[] = "libvulkan.so.1";
  const char *const chosen = quay__environment_vulkan_library();
  *out_library = quay__os_library_open(chosen != NULL ? chosen : usual);
  if (*out_library != NULL)
    return QUAY_OK;
  if (chosen != NULL) {
    return unavailable(VK_SUCCESS,
                       "QUAY_VULKAN_LIBRARY names \"%s\", which can't be loaded: %s; unset it to "
                       "take the system's Vulkan loader",
                       chosen, quay__os_library_error());
  }
  return unavailable(VK_SUCCESS,
                     "there is no Vulkan loader: %s can't be loaded (%s); install it (Debian: "
                     "libvulkan1) and a driver",
                     usual, quay__os_library_error());
}

static quay_status find_getter(void *from, PFN_vkGetInstanceProcAddr *out_get) {
  void *const address = quay__os_library_symbol(from, "vkGetInstanceProcAddr");
  memcpy(out_get, &address, sizeof address);
  if (address != NULL)
    return QUAY_OK;
  return unavailable(VK_SUCCESS,
                     "the library has no function vkGetInstanceProcAddr: it is no Vulkan loader; "
                     "name the right one in QUAY_VULKAN_LIBRARY, or unset it");
}

static quay_status check_version(PFN_vkGetInstanceProcAddr get) {
  PFN_vkEnumerateInstanceVersion get_version;
  store(&get_version, get(NULL, "vkEnumerateInstanceVersion"));
  uint32_t version = VK_API_VERSION_1_0;
  if (get_version != NULL)
    (void)get_version(&version); /* fails for want of memory alone; then it stays at 1.0 */
  if (version >= QUAY__VULKAN_VERSION)
    return QUAY_OK;
  return unavailable(VK_SUCCESS,
                     "the Vulkan loader is of version %u.%u, and at least 1.2 is needed; update it",
                     VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
}

static quay_status create_instance(PFN_vkGetInstanceProcAddr get, VkInstance *out_handle) {
  PFN_vkCreateInstance create;
  store(&create, get(NULL, "vkCreateInstance"));
  if (create == NULL)
    return fail_symbol("the Vulkan loader", "vkCreateInstance");
  const VkApplicationInfo application = {
      .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
      .pEngineName = "Quay",
      .apiVersion = QUAY__VULKAN_VERSION,
  };
  const VkInstanceCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
      .pApplicationInfo = &application,
  };
  const VkResult result = create(&info, NULL, out_handle);
  if (result == VK_SUCCESS)
    return QUAY_OK;
  if (result == VK_ERROR_INCOMPATIBLE_DRIVER) {
    return unavailable(result, "the Vulkan loader is there, but no driver of a device "
                               "(VK_ERROR_INCOMPATIBLE_DRIVER); install one");
  }
  return unavailable(result, "no Vulkan instance can be made (%s)",
                     quay__vulkan_result_name(result));
}

static void destroy_instance(PFN_vkGetInstanceProcAddr get, VkInstance handle) {
  PFN_vkDestroyInstance destroy;
  store(&destroy, get(handle, "vkDestroyInstance"));
  if (destroy != NULL)
    destroy(handle, NULL);
}

static void after_fork_in_child(void) {
  if (atomic_load_explicit(&started, memory_order_relaxed) == NULL)
    return;
  atomic_store(&state, DRIVER_FORKED);
  quay__vulkan_devices_close(true);
}

/* Runs before the drivers' own exit handlers, since it was registered after them. */
static void at_exit(void) {
  quay__workers_stop();
  if (atomic_load(&state) != DRIVER_CALLABLE)
    return;
  atomic_store(&state, DRIVER_EXITING);
  quay__vulkan_devices_close(false);
}

static quay_status register_handlers(void) {
  if (handlers_registered)
    return QUAY_OK;
  if (quay__os_at_fork_in_child(after_fork_in_child) != 0 || quay__os_at_exit(at_exit) != 0)
    return quay__fail_out_of_memory(sizeof(void *), "the handlers of fork and exit");
  handlers_registered = true;
  return QUAY_OK;
}

static quay_status start(void *from, quay__vulkan_instance *out_instance) {
  PFN_vkGetInstanceProcAddr get;
  QUAY_TRY(find_getter(from, &get));
  QUAY_TRY(check_version(get));
  VkInstance handle = NULL;
  QUAY_TRY(create_instance(get, &handle));
  quay_status status = quay__vulkan_instance_find(get, handle, out_instance);
  if (status == QUAY_OK)
    status = register_handlers();
  if (status != QUAY_OK)
    destroy_instance(get, handle);
  return status;
}

/* With QUAY__LOCK_VULKAN held. */
static quay_status load(void) {
  void *opened;
  QUAY_TRY(open_library(&opened));
  const quay_status status = start(opened, &driver);
  if (status != QUAY_OK) {
    memset(&driver, 0, sizeof driver);
    quay__os_library_close(opened);
    return status;
  }
  library = opened;
  atomic_store_explicit(&started, &driver, memory_order_release);
  return QUAY_OK;
}

quay_status quay__vulkan_start(const quay__vulkan_instance **out_instance) {
  *out_instance = NULL;
  QUAY_TRY(quay__vulkan_check_callable());
  quay__global_acquire(QUAY__LOCK_VULKAN);
  const quay_status status =
      atomic_load_explicit(&started, memory_order_acquire) != NULL ? QUAY_OK : load();
  quay__global_release(QUAY__LOCK_VULKAN);
  if (status == QUAY_OK)
    *out_instance = &driver;
  return status;
}

void quay__vulkan_stop(void) {
  if (atomic_load_explicit(&started, memory_order_relaxed) == NULL || !quay__vulkan_callable())
    return;
  atomic_store_explicit(&started, NULL, memory_order_relaxed);
  driver.vkDestroyInstance(driver.handle, NULL);
  quay__os_library_close(library);
  library = NULL;
}

bool quay__vulkan_callable(void) {
  return atomic_load_explicit(&state, memory_order_relaxed) == DRIVER_CALLABLE;
}

quay_status quay__vulkan_check_callable(void) {
  const int now = atomic_load_explicit(&state, memory_order_relaxed);
  if (__builtin_expect(now == DRIVER_CALLABLE, 1))
    return QUAY_OK;
  if (now == DRIVER_FORKED) {
    return unavailable(VK_SUCCESS,
                       "this process was forked from one that had used Vulkan, whose drivers do "
                       "not survive that; fork before the first use of Vulkan, or start a new "
                       "program");
  }
  return unavailable(VK_SUCCESS,
                     "the process is exiting: the Vulkan drivers are shut down already");
}
