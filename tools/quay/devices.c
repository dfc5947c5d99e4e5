/* quay devices: what can be opened on this machine, and why the rest can't. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "json_output.h"
#include "program.h"
#include "table.h"
#include "text.h"

static const char *type_name(quay_device_type_id type) {
  switch (type) {
  case QUAY_DEVICE_CPU:
    return "cpu";
  case QUAY_DEVICE_CUDA:
    return "cuda";
  case QUAY_DEVICE_VULKAN:
    return "vulkan";
  case QUAY_DEVICE_EXTERNAL:
    return "external";
  }
  return "unknown";
}

/* The lines of one backend stand together. */
static size_t backend_end(const quay_device_list *list, size_t begin) {
  size_t end = begin + 1;
  while (end < list->count &&
         strcmp(list->devices[end].backend, list->devices[begin].backend) == 0) {
    ++end;
  }
  return end;
}

static json_t *device_json(const quay_device_info *device) {
  return json_pack("{s:o, s:o, s:s, s:i, s:o, s:o}", "spec", json_text(device->spec), "name",
                   json_text(device->name), "type", type_name(device->type), "index", device->index,
                   "total_bytes", json_unsigned(device->memory.total_bytes), "free_bytes",
                   json_unsigned(device->memory.free_bytes));
}

/* NULL if there is no memory. */
static json_t *backend_json(const quay_device_list *list, size_t begin, size_t end) {
  json_t *devices = json_array();
  const char *reason = "";
  for (size_t i = begin; i < end; ++i) {
    const quay_device_info *device = &list->devices[i];
    if (!device->available) {
      reason = device->reason;
    } else if (json_array_append_new(devices, device_json(device)) != 0) {
      json_decref(devices);
      return NULL;
    }
  }
  return json_pack("{s:o, s:b, s:o, s:o}", "name", json_text(list->devices[begin].backend),
                   "available", json_array_size(devices) != 0, "reason", json_text(reason),
                   "devices", devices);
}

static exit_status print_as_json(const quay_device_list *list) {
  json_t *backends = json_array();
  for (size_t begin = 0; begin < list->count; begin = backend_end(list, begin)) {
    json_t *backend = backend_json(list, begin, backend_end(list, begin));
    if (json_array_append_new(backends, backend) != 0) {
      json_decref(backends);
      return fail_memory();
    }
  }
  return print_json(json_pack("{s:o}", "backends", backends));
}

static void add_row(text_table *table, const quay_device_info *device) {
  char total[TEXT_SIZE_MAX] = "-", free_now[TEXT_SIZE_MAX] = "-";
  if (device->memory.total_bytes != 0) {
    text_of_size(device->memory.total_bytes, total);
    /* Some devices tell it only once they are open. */
    if (device->memory.free_bytes != 0)
      text_of_size(device->memory.free_bytes, free_now);
  }
  table_add(table, device->backend);
  table_add(table, device->available ? device->spec : "-");
  table_add(table, device->available ? total : "-");
  table_add(table, device->available ? free_now : "-");
  if (device->available) {
    table_add(table, device->name);
    return;
  }
  char text[512];
  snprintf(text, sizeof text, "not available: %s", device->reason);
  table_add(table, text);
}

static exit_status print_as_table(const quay_device_list *list) {
  static const table_column columns[] = {
      {.title = "BACKEND"},
      {.title = "DEVICE"},
      {.title = "MEMORY", .right = true},
      {.title = "FREE", .right = true},
      {.title = "NAME"},
  };
  text_table table;
  table_init(&table, columns, sizeof columns / sizeof columns[0]);
  for (size_t i = 0; i < list->count; ++i)
    add_row(&table, &list->devices[i]);
  if (!table_print(&table))
    return fail_memory();
  return finish_output();
}

static exit_status run(int argc, char **argv) {
  static const struct option options[] = {
      {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, OPTION_HELP}, {0}};
  bool json = false;
  int option;
  while ((option = next_option(&command_devices, argc, argv, options)) != OPTION_END) {
    if (option == OPTION_BAD)
      return EXIT_USAGE;
    if (option == OPTION_HELP)
      return print_help(&command_devices);
    json = true;
  }
  if (optind < argc) {
    return fail_usage(&command_devices, "devices: unexpected argument '%s'", argv[optind]);
  }
  quay_device_list list;
  if (quay_devices(&list) != QUAY_OK)
    return fail_quay();
  const exit_status status = json ? print_as_json(&list) : print_as_table(&list);
  quay_device_list_free(&list);
  return status;
}

const subcommand command_devices = {
    .name = "devices",
    .summary = "List every backend: its devices and their memory, or why it is not available.",
    .usage = "quay devices [--json]",
    .details = "  --json      print JSON instead of a table\n"
               "  -h, --help  print this help\n",
    .run = run,
};
