/* quay load: a safetensors file to any memory, and what is in it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "json_output.h"
#include "model.h"
#include "program.h"
#include "table.h"
#include "text.h"

typedef struct load_options {
  const char *path;
  const char *to; /* NULL: the default allocator */
  bool json, sha256, direct, no_progress;
} load_options;

/* A loaded file and what is said about it. */
typedef struct load_report {
  const load_options *options;
  const char *backend; /* spec of the allocator */
  loaded_model model;
  char (*digests)[SHA256_TEXT_SIZE]; /* one a tensor; NULL without --sha256 */
} load_report;

static double gigabytes_a_second(const loaded_model *model) {
  return model->seconds > 0 ? (double)model->bytes / model->seconds * 1e-9 : 0;
}

/* NULL if there is no memory. */
static json_t *tensor_json(const load_report *report, size_t index,
                           const quay_safetensors_tensor *tensor) {
  json_t *shape = json_array();
  for (int32_t i = 0; i < tensor->rank; ++i) {
    if (json_array_append_new(shape, json_integer(tensor->shape[i])) != 0) {
      json_decref(shape);
      return NULL;
    }
  }
  return json_pack("{s:s, s:s, s:o, s:o, s:s?}", "name", tensor->name, "dtype", tensor->dtype_name,
                   "shape", shape, "bytes", json_unsigned(tensor->size), "sha256",
                   report->digests != NULL ? report->digests[index] : NULL);
}

static exit_status print_as_json(const load_report *report) {
  const loaded_model *model = &report->model;
  json_t *tensors = json_array();
  for (size_t i = 0; i < model->count; ++i) {
    quay_safetensors_tensor tensor;
    if (quay_safetensors_get(model->file, i, &tensor) != QUAY_OK) {
      json_decref(tensors);
      return fail_quay();
    }
    if (json_array_append_new(tensors, tensor_json(report, i, &tensor)) != 0) {
      json_decref(tensors);
      return fail_memory();
    }
  }
  return print_json(
      json_pack("{s:o, s:o, s:s, s:o, s:f, s:f, s:o}", "file", json_text(report->options->path),
                "backend", json_text(report->backend), "route", quay_route_name(model->plan.route),
                "bytes", json_unsigned(model->bytes), "seconds", model->seconds, "gbps",
                gigabytes_a_second(model), "tensors", tensors));
}

static exit_status print_table(const load_report *report) {
  static const table_column columns[] = {
      {.title = "NAME"},    {.title = "DTYPE"},
      {.title = "SHAPE"},   {.title = "BYTES", .right = true},
      {.title = "SHA-256"},
  };
  const loaded_model *model = &report->model;
  const bool digests = report->digests != NULL;
  text_table table;
  table_init(&table, columns, digests ? 5 : 4);
  for (size_t i = 0; i < model->count; ++i) {
    quay_safetensors_tensor tensor;
    if (quay_safetensors_get(model->file, i, &tensor) != QUAY_OK)
      break;
    char *shape = text_of_shape(tensor.rank, tensor.shape);
    char size[TEXT_SIZE_MAX];
    snprintf(size, sizeof size, "%" PRIu64, tensor.size);
    table_add(&table, tensor.name);
    table_add(&table, tensor.dtype_name);
    table_add(&table, shape);
    table_add(&table, size);
    if (digests)
      table_add(&table, report->digests[i]);
    free(shape);
  }
  return table_print(&table) ? EXIT_DONE : fail_memory();
}

static exit_status print_as_text(const load_report *report) {
  if (print_table(report) != EXIT_DONE)
    return EXIT_FAILED;
  const loaded_model *model = &report->model;
  const quay_copy_plan_info *plan = &model->plan;
  char bytes[TEXT_SIZE_MAX], chunk[TEXT_SIZE_MAX];
  text_of_size(model->bytes, bytes);
  text_of_size(plan->chunk, chunk);
  char *backend = text_printable(report->backend);
  if (backend == NULL)
    return fail_memory();
  printf("\n%zu tensors, %s, loaded to %s\n", model->count, bytes, backend);
  free(backend);
  printf("route: %s, %s to %s, %" PRIu32 " %s, chunks of %s: %s\n", quay_route_name(plan->route),
         quay_memory_kind_name(plan->from), quay_memory_kind_name(plan->to), plan->threads,
         plan->threads == 1 ? "thread" : "threads", chunk, plan->reason);
  printf("time: %.6f s, %.3f GB/s\n", model->seconds, gigabytes_a_second(model));
  return finish_output();
}

static exit_status compute_digests(load_report *report) {
  const loaded_model *model = &report->model;
  report->digests = calloc(model->count + 1, sizeof *report->digests);
  void *block = malloc(MODEL_BLOCK_SIZE);
  exit_status status = EXIT_DONE;
  if (report->digests == NULL || block == NULL)
    status = fail_memory();
  for (size_t i = 0; i < model->count && status == EXIT_DONE; ++i) {
    if (model_sha256(model, i, block, report->digests[i]) != QUAY_OK)
      status = fail_quay();
  }
  free(block);
  return status;
}

static exit_status load(const load_options *options, quay_allocator *allocator) {
  load_report report = {.options = options, .backend = quay_allocator_spec(allocator)};
  const model_options how = {.direct = options->direct, .show_progress = !options->no_progress};
  switch (model_load(options->path, allocator, &how, &report.model)) {
  case MODEL_LOADED:
    break;
  case MODEL_FAILED:
    return fail_quay();
  case MODEL_NO_MEMORY:
    return fail_memory();
  }
  exit_status status = options->sha256 ? compute_digests(&report) : EXIT_DONE;
  if (status == EXIT_DONE)
    status = options->json ? print_as_json(&report) : print_as_text(&report);
  free(report.digests);
  model_release(&report.model);
  return status;
}

/* EXIT_DONE with a path of NULL: the help was asked for. */
static exit_status parse(int argc, char **argv, load_options *out) {
  enum {
    TO = 't',
    JSON = 'j',
    SHA256 = 's',
    DIRECT = 'd',
    NO_PROGRESS = 'n'
  };
  static const struct option options[] = {{"to", required_argument, NULL, TO},
                                          {"json", no_argument, NULL, JSON},
                                          {"sha256", no_argument, NULL, SHA256},
                                          {"direct", no_argument, NULL, DIRECT},
                                          {"no-progress", no_argument, NULL, NO_PROGRESS},
                                          {"help", no_argument, NULL, OPTION_HELP},
                                          {0}};
  int option;
  while ((option = next_option(&command_load, argc, argv, options)) != OPTION_END) {
    if (option == OPTION_BAD)
      return EXIT_USAGE;
    if (option == OPTION_HELP)
      return EXIT_DONE;
    if (option == TO)
      out->to = optarg;
    if (option == JSON)
      out->json = true;
    if (option == SHA256)
      out->sha256 = true;
    if (option == DIRECT)
      out->direct = true;
    if (option == NO_PROGRESS)
      out->no_progress = true;
  }
  if (optind == argc)
    return fail_usage(&command_load, "load: no file is named");
  if (optind + 1 < argc) {
    return fail_usage(&command_load, "load: unexpected argument '%s'", argv[optind + 1]);
  }
  out->path = argv[optind];
  return EXIT_DONE;
}

static exit_status run(int argc, char **argv) {
  load_options options = {.path = NULL};
  const exit_status parsed = parse(argc, argv, &options);
  if (parsed != EXIT_DONE)
    return parsed;
  if (options.path == NULL)
    return print_help(&command_load);
  quay_allocator *allocator = NULL;
  if (quay_allocator_open(options.to, &allocator) != QUAY_OK)
    return fail_quay();
  const exit_status status = load(&options, allocator);
  quay_allocator_release(allocator);
  return status;
}

const subcommand command_load = {
    .name = "load",
    .summary = "Load all tensors of a safetensors file and list them.",
    .usage = "quay load FILE [--to SPEC] [--json] [--sha256] [--direct] [--no-progress]",
    .details =
        "  --to SPEC      where to, such as cpu or cuda:0 (default: $QUAY_BACKEND, else cpu)\n"
        "  --json         print JSON instead of a table\n"
        "  --sha256       add the SHA-256 of each tensor's bytes, read back from there\n"
        "  --direct       read with direct I/O where the file system can: for a file that is read\n"
        "                 once and not in the page cache, which is not filled then\n"
        "  --no-progress  draw no progress bar on the terminal\n"
        "  -h, --help     print this help\n",
    .run = run,
};
