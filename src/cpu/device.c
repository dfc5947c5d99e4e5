/* The host as a device: its functions, its name and its memory. The device object itself is made in
 * core/device.c. */
#include <fcntl.h>
#include <string.h>

#include "core/os.h"
#include "cpu/cpu.h"

static void destroy_host(void *self) {
  (void)self; /* static, like the device */
}

static quay_status host_memory_info(quay_device *device, quay_memory_info *out_info) {
  (void)device;
  if (quay__os_memory_info(&out_info->total_bytes, &out_info->free_bytes) == 0)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_IO, "cpu", 0, NULL,
                        "the system does not tell how much memory the host has: /proc/meminfo "
                        "can't be read");
}

static const quay_device_vtable host_vtable = {
    .destroy = destroy_host,
    .version = QUAY_DEVICE_VTABLE_VERSION,
    .struct_size = sizeof(quay_device_vtable),
    .memory_info = host_memory_info,
};

void quay__cpu_device_desc(quay_device_desc *out_desc) {
  *out_desc = (quay_device_desc){
      .vtable = &host_vtable,
      .backend = "cpu",
      .name = "host",
      .type = QUAY_DEVICE_CPU,
  };
}

/* Reads the start of a small file as text. False if there is nothing to read. */
static bool read_text(const char *path, char *out_text, size_t size) {
  const int file = quay__os_open(path, O_RDONLY, 0);
  if (file < 0)
    return false;
  size_t filled = 0;
  while (filled < size - 1) {
    const ssize_t got = quay__os_pread(file, out_text + filled, size - 1 - filled, filled);
    if (got <= 0)
      break;
    filled += (size_t)got;
  }
  out_text[filled] = '\0';
  (void)quay__os_close(file); /* read only: nothing can be lost */
  return filled != 0;
}

/* The processor's name as Linux tells it ("model name : ..." in /proc/cpuinfo on x86); "" where it
 * does not, as on most aarch64 machines. */
static void processor_name(char *out_name, size_t size) {
  char text[4096];
  out_name[0] = '\0';
  if (!read_text("/proc/cpuinfo", text, sizeof text))
    return;
  const char *line = strstr(text, "model name");
  const char *colon = line != NULL ? strchr(line, ':') : NULL;
  if (colon == NULL)
    return;
  const char *name = colon + 1 + strspn(colon + 1, " \t");
  size_t length = strcspn(name, "\n");
  if (length >= size)
    length = size - 1;
  memcpy(out_name, name, length);
  out_name[length] = '\0';
}

quay_status quay__cpu_device_info(void *user, size_t index, quay_device_info *out_info,
                                  bool *out_more) {
  (void)user;
  static _Thread_local char name[128];
  *out_more = index == 0;
  if (index != 0)
    return QUAY_OK;
  processor_name(name, sizeof name);
  *out_info = (quay_device_info){
      .backend = "cpu",
      .spec = "cpu",
      .name = name,
      .available = true,
      .reason = "",
      .type = QUAY_DEVICE_CPU,
  };
  /* Zeros where the system does not tell. */
  if (quay__os_memory_info(&out_info->memory.total_bytes, &out_info->memory.free_bytes) != 0)
    out_info->memory = (quay_memory_info){.total_bytes = 0};
  return QUAY_OK;
}
