/* The names that specs know; opening allocators by spec; the list of devices. */
#include "core/registry.h"

#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/spec.h"

static const quay__layer *const layers[] = {&quay__layer_track, &quay__layer_fault,
                                            &quay__layer_limit, &quay__layer_trace,
                                            &quay__layer_guard, &quay__layer_pool};
static const quay_backend *const built_in[] = {&quay__backend_cpu, &quay__backend_mmap,
                                               &quay__backend_cuda, &quay__backend_vulkan};
enum {
  LAYER_COUNT = sizeof layers / sizeof layers[0],
  BUILT_IN_COUNT = sizeof built_in / sizeof built_in[0],
  NAME_MAX_LENGTH = 31,
};

/* A third party's. Counted, so that it can be taken out while it is being opened. */
typedef struct registration {
  struct registration *next; /* in the order of registration; guarded by QUAY__LOCK_REGISTRY */
  unsigned references;       /* guarded by QUAY__LOCK_REGISTRY */
  quay_backend backend;
  char name[NAME_MAX_LENGTH + 1];
} registration;

static registration *registered;

static const quay__layer *find_layer(const char *name) {
  for (size_t i = 0; i < LAYER_COUNT; i++) {
    if (strcmp(layers[i]->name, name) == 0)
      return layers[i];
  }
  return NULL;
}

static const quay_backend *find_built_in(const char *name) {
  for (size_t i = 0; i < BUILT_IN_COUNT; i++) {
    if (strcmp(built_in[i]->name, name) == 0)
      return built_in[i];
  }
  return NULL;
}

/* The place in the list that points to the registration of `name`, or to the list's end. */
static registration **find_link(const char *name) {
  registration **link = &registered;
  while (*link != NULL && strcmp((*link)->name, name) != 0)
    link = &(*link)->next;
  return link;
}

static registration *acquire_registration(const char *name) {
  quay__global_acquire(QUAY__LOCK_REGISTRY);
  registration *const found = *find_link(name);
  if (found != NULL)
    found->references++;
  quay__global_release(QUAY__LOCK_REGISTRY);
  return found;
}

static void release_registration(registration *entry) {
  if (entry == NULL)
    return;
  quay__global_acquire(QUAY__LOCK_REGISTRY);
  const bool last = --entry->references == 0;
  quay__global_release(QUAY__LOCK_REGISTRY);
  if (last)
    quay__os_free(entry);
}

/* Specs. */

static quay__spec_name_kind classify(void *user, const char *name) {
  (void)user;
  if (find_layer(name) != NULL)
    return QUAY__SPEC_LAYER;
  if (find_built_in(name) != NULL)
    return QUAY__SPEC_BACKEND;
  registration *const entry = acquire_registration(name);
  release_registration(entry);
  return entry != NULL ? QUAY__SPEC_BACKEND : QUAY__SPEC_UNKNOWN;
}

static void append(char *text, size_t size, const char *separator, const char *name) {
  const size_t used = strlen(text);
  snprintf(text + used, size - used, "%s%s", separator, name);
}

static void describe(void *user, char *out_text, size_t size) {
  (void)user;
  out_text[0] = '\0';
  for (size_t i = 0; i < LAYER_COUNT; i++) {
    append(out_text, size, i == 0 ? "the layers " : ", ", layers[i]->name);
  }
  for (size_t i = 0; i < BUILT_IN_COUNT; i++) {
    append(out_text, size, i == 0 ? " and the backends " : ", ", built_in[i]->name);
  }
  quay__global_acquire(QUAY__LOCK_REGISTRY);
  for (const registration *entry = registered; entry != NULL; entry = entry->next) {
    append(out_text, size, ", ", entry->name);
  }
  quay__global_release(QUAY__LOCK_REGISTRY);
}

/* Adds to an error of "not on this machine" what is on it. */
static quay_status append_available(void) {
  quay__error_state saved;
  quay__error_save(&saved);
  quay_device_list list;
  const quay_status listed = quay_devices(&list);
  quay__error_restore(&saved);
  if (listed != QUAY_OK)
    return saved.status;
  char text[256] = "";
  for (size_t i = 0; i < list.count; i++) {
    if (!list.devices[i].available)
      continue;
    append(text, sizeof text, text[0] == '\0' ? "; possible here are " : ", ",
           list.devices[i].spec);
  }
  quay_device_list_free(&list);
  return quay__error_append("%s", text);
}

static quay_status open_backend(const quay_spec_args *args, quay_allocator **out_allocator) {
  registration *entry = NULL;
  const quay_backend *backend = find_built_in(args->name);
  if (backend == NULL) {
    entry = acquire_registration(args->name);
    if (entry == NULL) {
      return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                        "allocator spec \"%s\": the backend \"%s\" was unregistered meanwhile",
                        args->spec, args->name);
    }
    backend = &entry->backend;
  }
  quay_status status = backend->open(backend->user, args, out_allocator);
  release_registration(entry);
  if (status == QUAY_OK && *out_allocator == NULL) {
    status =
        quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                   "backend \"%s\": its open function succeeded without an allocator", args->name);
  }
  if (status != QUAY_OK)
    *out_allocator = NULL;
  return status == QUAY_STATUS_UNAVAILABLE ? append_available() : status;
}

static quay_status open_layer(const quay_spec_args *args, quay_allocator *inner,
                              quay_allocator **out_allocator) {
  const quay__layer *const layer = find_layer(args->name);
  if (layer == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "\"%s\" in the allocator spec \"%s\" is no layer", args->name, args->spec);
  }
  return layer->open(args, inner, out_allocator);
}

/* Opens the last part, puts `wrapper` (NULL: none) around it, then the layers from the inside out.
 */
static quay_status open_parts(const quay__spec *spec, const quay__wrapper *wrapper,
                              quay_allocator **out_allocator) {
  quay_allocator *allocator = NULL;
  QUAY_TRY(open_backend(&spec->parts[spec->count - 1], &allocator));
  if (wrapper != NULL) {
    quay_allocator *wrapped = NULL;
    const quay_status status = wrapper->open(wrapper->user, allocator, &wrapped);
    quay_allocator_release(allocator);
    if (status != QUAY_OK)
      return status;
    allocator = wrapped;
  }
  for (size_t i = spec->count - 1; i-- > 0;) {
    const quay_spec_args *const args = &spec->parts[i];
    quay_allocator *outer = NULL;
    const quay_status status = open_layer(args, allocator, &outer);
    quay_allocator_release(allocator); /* the layer has a reference of its own */
    if (status != QUAY_OK)
      return status;
    allocator = outer;
  }
  *out_allocator = allocator;
  return QUAY_OK;
}

quay_status quay__allocator_open_wrapped(const char *spec, const quay__wrapper *wrapper,
                                         quay_allocator **out_allocator) {
  *out_allocator = NULL;
  QUAY_TRY(quay__environment_check());
  quay__spec *parsed;
  QUAY_TRY(quay__spec_parse(spec, classify, describe, NULL, &parsed));
  const quay_status status = open_parts(parsed, wrapper, out_allocator);
  quay__spec_free(parsed);
  return status;
}

quay_status quay_allocator_open(const char *text, quay_allocator **out_allocator) {
  if (out_allocator == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_allocator_open: out_allocator is NULL");
  }
  *out_allocator = NULL;
  if (text == NULL)
    return quay_default_allocator_get(out_allocator);
  return quay__allocator_open_wrapped(text, NULL, out_allocator);
}

/* Registration. */

static bool is_name(const char *name) {
  const size_t length = strlen(name);
  if (length == 0 || length > NAME_MAX_LENGTH || name[0] < 'a' || name[0] > 'z')
    return false;
  return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == length;
}

quay_status quay_backend_register(const quay_backend *backend) {
  if (backend == NULL || backend->name == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_backend_register: %s is NULL",
                      backend == NULL ? "backend" : "the name");
  }
  const char *const name = backend->name;
  if (backend->version != QUAY_BACKEND_VERSION || backend->struct_size != sizeof *backend) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "backend \"%s\": version %u with %u bytes is not this library's version %u "
                      "with %zu bytes",
                      name, backend->version, backend->struct_size, QUAY_BACKEND_VERSION,
                      sizeof *backend);
  }
  if (!is_name(name)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "\"%s\" can't be a backend's name: it must have 1 to %d lower-case letters, "
                      "digits, '_' or '-' and begin with a letter",
                      name, NAME_MAX_LENGTH);
  }
  if (backend->open == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "backend \"%s\": open is mandatory", name);
  }
  registration *const entry = quay__os_calloc(1, sizeof *entry);
  if (entry == NULL)
    return quay__fail_out_of_memory(sizeof *entry, "a backend's registration");
  entry->references = 1;
  entry->backend = *backend;
  memcpy(entry->name, name, strlen(name) + 1);
  entry->backend.name = entry->name;

  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_REGISTRY);
  registration **const link = find_link(name);
  const bool known = *link != NULL || find_layer(name) != NULL || find_built_in(name) != NULL;
  if (!known)
    *link = entry;
  quay__global_release(QUAY__LOCK_REGISTRY);
  if (!known)
    return QUAY_OK;
  quay__os_free(entry);
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "there is a layer or backend named \"%s\" already", name);
}

quay_status quay_backend_unregister(const char *name) {
  if (name == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_backend_unregister: name is NULL");
  }
  quay__global_acquire(QUAY__LOCK_REGISTRY);
  registration **const link = find_link(name);
  registration *const entry = *link;
  if (entry != NULL)
    *link = entry->next;
  quay__global_release(QUAY__LOCK_REGISTRY);
  if (entry == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "\"%s\" is %s", name,
                      find_built_in(name) != NULL ? "built in and can't be unregistered"
                                                  : "no registered backend");
  }
  release_registration(entry);
  return QUAY_OK;
}

/* Devices. The list, its lines and their strings are separate allocations, freed together. */

static void free_info(quay_device_info *info) {
  quay__os_free((void *)(uintptr_t)info->backend);
  quay__os_free((void *)(uintptr_t)info->spec);
  quay__os_free((void *)(uintptr_t)info->name);
  quay__os_free((void *)(uintptr_t)info->reason);
}

void quay_device_list_free(quay_device_list *list) {
  if (list == NULL)
    return;
  for (size_t i = 0; i < list->count; i++)
    free_info(&list->devices[i]);
  quay__os_free(list->devices);
  *list = (quay_device_list){.devices = NULL, .count = 0};
}

static const char *copy_of(const char *text, const char *otherwise) {
  return quay__os_strdup(text != NULL ? text : otherwise);
}

static quay_status add_line(quay_device_list *list, const char *backend,
                            const quay_device_info *info) {
  const size_t size = (list->count + 1) * sizeof *list->devices;
  quay_device_info *const grown = quay__os_realloc(list->devices, size);
  if (grown == NULL)
    return quay__fail_out_of_memory(size, "the list of devices");
  list->devices = grown;
  quay_device_info line = *info;
  line.backend = copy_of(backend, "");
  line.spec = copy_of(info->spec, backend);
  line.name = copy_of(info->name, "");
  line.reason = copy_of(info->reason, "");
  if (line.backend == NULL || line.spec == NULL || line.name == NULL || line.reason == NULL) {
    free_info(&line);
    return quay__fail_out_of_memory(size, "the list of devices");
  }
  list->devices[list->count++] = line;
  return QUAY_OK;
}

static quay_status add_backend(quay_device_list *list, const quay_backend *backend) {
  if (backend->device_info == NULL) {
    const quay_device_info line = {.available = true, .type = QUAY_DEVICE_EXTERNAL};
    return add_line(list, backend->name, &line);
  }
  for (size_t index = 0;; index++) {
    quay_device_info line = {.available = false};
    bool more = false;
    quay_status status = backend->device_info(backend->user, index, &line, &more);
    if (status != QUAY_OK) {
      /* A backend that can't even say what it has is listed with that as the reason. */
      line = (quay_device_info){.available = false, .reason = quay_last_error()->message};
      return add_line(list, backend->name, &line);
    }
    if (!more)
      return QUAY_OK;
    QUAY_TRY(add_line(list, backend->name, &line));
  }
}

static quay_status add_registered(quay_device_list *list) {
  /* By index, since the list may change while a backend is asked. */
  for (size_t index = 0;; index++) {
    quay__global_acquire(QUAY__LOCK_REGISTRY);
    registration *entry = registered;
    for (size_t i = 0; i < index && entry != NULL; i++)
      entry = entry->next;
    if (entry != NULL)
      entry->references++;
    quay__global_release(QUAY__LOCK_REGISTRY);
    if (entry == NULL)
      return QUAY_OK;
    const quay_status status = add_backend(list, &entry->backend);
    release_registration(entry);
    QUAY_TRY(status);
  }
}

quay_status quay_devices(quay_device_list *out_list) {
  if (out_list == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_devices: out_list is NULL");
  }
  *out_list = (quay_device_list){.devices = NULL, .count = 0};
  quay__error_state saved;
  quay__error_save(&saved);
  quay_status status = QUAY_OK;
  for (size_t i = 0; i < BUILT_IN_COUNT && status == QUAY_OK; i++) {
    status = add_backend(out_list, built_in[i]);
  }
  if (status == QUAY_OK)
    status = add_registered(out_list);
  if (status == QUAY_OK)
    quay__error_restore(&saved);
  if (status != QUAY_OK)
    quay_device_list_free(out_list);
  return status;
}
