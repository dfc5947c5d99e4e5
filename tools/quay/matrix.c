/* quay matrix: how fast every kind of memory is copied to every other one, beside what the machine
 * can do without the library. */
#include "matrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/spec.h"
#include "json_output.h"
#include "matrix_measure.h"
#include "table.h"
#include "text.h"

#define MAPPING        "mapping"
#define SIZE_DEFAULT   ((uint64_t)64 << 20)
#define SIZE_MAX_BYTES ((uint64_t)1 << 40)

typedef struct matrix_options {
  const char *between; /* NULL: what there is */
  const char *svg;     /* NULL: none */
  uint64_t size;
  bool json;
} matrix_options;

/* Places. */

static exit_status add_place(matrix_result *result, const char *spec, size_t length,
                             bool may_be_missing) {
  if (result->place_count == MATRIX_PLACES_MAX)
    return fail("more than %d kinds of memory; name fewer with --between", MATRIX_PLACES_MAX);
  char *name = strndup(spec, length);
  quay_allocator *allocator = NULL;
  if (name == NULL)
    return fail_memory();
  if (strcmp(name, MAPPING) != 0 && quay_allocator_open(name, &allocator) != QUAY_OK) {
    free(name);
    return may_be_missing ? EXIT_DONE : fail_quay();
  }
  const size_t index = result->place_count++;
  result->places[index].name = name;
  result->places[index].allocator = allocator;
  return EXIT_DONE;
}

/* Where the spec at `text` ends: at a comma, but not at one that an argument follows
 * ("memory=..."), or that is escaped. */
static size_t spec_length(const char *text) {
  size_t end = 0;
  for (;; ++end) {
    if (text[end] == '\\' && text[end + 1] != '\0') {
      ++end;
      continue;
    }
    if (text[end] == '\0')
      return end;
    if (text[end] != ',')
      continue;
    const char *next = text + end + 1;
    const size_t word = strspn(next, "abcdefghijklmnopqrstuvwxyz_");
    if (word == 0 || next[word] != '=')
      return end;
  }
}

static exit_status add_named(matrix_result *result, const char *between) {
  for (const char *text = between;;) {
    const size_t length = spec_length(text);
    const exit_status status = add_place(result, text, length, false);
    if (status != EXIT_DONE || text[length] == '\0')
      return status;
    text += length + 1;
  }
}

/* All devices, page-locked and managed memory where it is, and a mapping. */
static exit_status add_available(matrix_result *result) {
  quay_device_list list;
  if (quay_devices(&list) != QUAY_OK)
    return fail_quay();
  exit_status status = add_place(result, MAPPING, strlen(MAPPING), false);
  for (size_t i = 0; i < list.count && status == EXIT_DONE; ++i) {
    const quay_device_info *device = &list.devices[i];
    if (!device->available)
      continue;
    status = add_place(result, device->spec, strlen(device->spec), false);
    static const char *const kinds[] = {",memory=pinned", ",memory=managed"};
    for (size_t k = 0; k < 2 && status == EXIT_DONE && device->type == QUAY_DEVICE_CUDA; ++k) {
      char spec[160];
      snprintf(spec, sizeof spec, "%s%s", device->spec, kinds[k]);
      status = add_place(result, spec, strlen(spec), true);
    }
  }
  quay_device_list_free(&list);
  return status;
}

static void release(matrix_result *result) {
  for (size_t i = 0; i < result->place_count; ++i) {
    quay_allocator_release(result->places[i].allocator);
    free(result->places[i].name);
  }
  free(result->pairs);
}

/* Output. */

static json_t *pair_json(const matrix_result *result, size_t index) {
  const matrix_pair *pair = &result->pairs[index];
  const char *from = result->places[index / result->place_count].name;
  const char *to = result->places[index % result->place_count].name;
  const bool limited = pair->limit > 0;
  return json_pack("{s:o, s:o, s:s, s:f, s:o, s:o}", "from", json_text(from), "to", json_text(to),
                   "route", quay_route_name(pair->route), "gbps", pair->gbps, "limit",
                   limited ? json_real(pair->limit) : json_null(), "ratio",
                   limited ? json_real(pair->gbps / pair->limit) : json_null());
}

static exit_status print_as_json(const matrix_result *result) {
  json_t *limits = json_object(), *pairs = json_array();
  bool good = true;
  for (size_t i = 0; i < result->limit_count && good; ++i) {
    good =
        json_object_set_new(limits, result->limits[i].name, json_real(result->limits[i].gbps)) == 0;
  }
  for (size_t i = 0; i < result->place_count * result->place_count && good; ++i)
    good = json_array_append_new(pairs, pair_json(result, i)) == 0;
  if (!good) {
    json_decref(limits);
    json_decref(pairs);
    return fail_memory();
  }
  return print_json(json_pack("{s:o, s:o, s:o}", "size", json_unsigned(result->size), "limits",
                              limits, "pairs", pairs));
}

static void add_number(text_table *table, double value, bool known) {
  char text[32] = "-";
  if (known)
    snprintf(text, sizeof text, "%.2f", value);
  table_add(table, text);
}

static exit_status print_as_text(const matrix_result *result) {
  static const table_column columns[] = {
      {.title = "FROM"},
      {.title = "TO"},
      {.title = "ROUTE"},
      {.title = "GB/S", .right = true},
      {.title = "LIMIT", .right = true},
      {.title = "RATIO", .right = true},
  };
  text_table table;
  table_init(&table, columns, sizeof columns / sizeof columns[0]);
  const size_t pairs = result->pairs != NULL ? result->place_count * result->place_count : 0;
  for (size_t i = 0; i < pairs; ++i) {
    const matrix_pair *pair = &result->pairs[i];
    const bool limited = pair->limit > 0;
    table_add(&table, result->places[i / result->place_count].name);
    table_add(&table, result->places[i % result->place_count].name);
    table_add(&table, quay_route_name(pair->route));
    add_number(&table, pair->gbps, true);
    add_number(&table, pair->limit, limited);
    add_number(&table, limited ? pair->gbps / pair->limit : 0, limited);
  }
  if (!table_print(&table))
    return fail_memory();
  char size[TEXT_SIZE_MAX];
  text_of_size(result->size, size);
  printf("\ncopies of %s, every byte checked; without the library, GB/s:", size);
  for (size_t i = 0; i < result->limit_count; ++i)
    printf("%s %s %.2f", i == 0 ? "" : ",", result->limits[i].name, result->limits[i].gbps);
  printf("\n");
  return finish_output();
}

static exit_status matrix(const matrix_options *options) {
  matrix_result result = {.size = options->size};
  if (options->svg != NULL && matrix_can_draw(options->svg) != EXIT_DONE)
    return EXIT_FAILED;
  exit_status status =
      options->between != NULL ? add_named(&result, options->between) : add_available(&result);
  if (status == EXIT_DONE && result.place_count != 0) {
    result.pairs = calloc(result.place_count * result.place_count, sizeof result.pairs[0]);
    status = result.pairs != NULL ? matrix_measure(&result) : fail_memory();
  }
  if (status == EXIT_DONE)
    status = options->json ? print_as_json(&result) : print_as_text(&result);
  /* Last: what was measured is told, whatever becomes of the drawing. */
  if (status == EXIT_DONE && options->svg != NULL)
    status = matrix_draw(&result, options->svg);
  release(&result);
  return status;
}

/* Arguments. */

static bool parse_size(const char *text, uint64_t *out_size) {
  return quay__parse_bytes(text, out_size) && *out_size != 0 && *out_size <= SIZE_MAX_BYTES;
}

/* EXIT_DONE with a size of 0: the help was asked for. */
static exit_status parse(int argc, char **argv, matrix_options *out) {
  enum {
    BETWEEN = 'b',
    SIZE = 's',
    JSON = 'j',
    SVG = 'v'
  };
  static const struct option options[] = {{"between", required_argument, NULL, BETWEEN},
                                          {"size", required_argument, NULL, SIZE},
                                          {"json", no_argument, NULL, JSON},
                                          {"svg", required_argument, NULL, SVG},
                                          {"help", no_argument, NULL, OPTION_HELP},
                                          {0}};
  int option;
  while ((option = next_option(&command_matrix, argc, argv, options)) != OPTION_END) {
    if (option == OPTION_BAD)
      return EXIT_USAGE;
    if (option == OPTION_HELP) {
      out->size = 0;
      return EXIT_DONE;
    }
    if (option == BETWEEN)
      out->between = optarg;
    if (option == SVG)
      out->svg = optarg;
    if (option == JSON)
      out->json = true;
    if (option == SIZE && !parse_size(optarg, &out->size)) {
      return fail_usage(&command_matrix,
                        "matrix: '%s' is no size from 1 byte to 1TiB, such as 64MiB or 64MB",
                        optarg);
    }
  }
  if (out->svg != NULL && strcmp(out->svg, "-") == 0) {
    return fail_usage(&command_matrix,
                      "matrix: --svg writes a file, not standard output; one that is to be "
                      "called '-' is './-'");
  }
  if (optind < argc)
    return fail_usage(&command_matrix, "matrix: unexpected argument '%s'", argv[optind]);
  return EXIT_DONE;
}

static exit_status run(int argc, char **argv) {
  matrix_options options = {.size = SIZE_DEFAULT};
  const exit_status parsed = parse(argc, argv, &options);
  if (parsed != EXIT_DONE)
    return parsed;
  return options.size != 0 ? matrix(&options) : print_help(&command_matrix);
}

const subcommand command_matrix = {
    .name = "matrix",
    .summary = "Measure copies between all kinds of memory.",
    .usage = "quay matrix [--between SPEC,SPEC,...] [--size BYTES] [--json] [--svg FILE]",
    .details = "  --between SPECS  between these alone; \"mapping\" is a mapped file in $TMPDIR\n"
               "                   (default: a mapping and all that quay devices lists)\n"
               "  --size BYTES     of each copy, such as 2GiB (default: 64MiB)\n"
               "  --json           print JSON instead of a table\n"
               "  --svg FILE       draw a heat map\n"
               "  -h, --help       print this help\n\n"
               "Each figure is the median of 5 copies after one that does not count; every byte\n"
               "is checked. LIMIT is what the machine does without the library: memcpy by one\n"
               "thread, pread and pwrite on the page cache, the driver's copy of page-locked "
               "memory.\n",
    .run = run,
};
