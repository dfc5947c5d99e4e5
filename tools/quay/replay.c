/* quay replay: what a program's log of allocations costs on an allocator, in time and memory. */
#include <inttypes.h>
#include <stdio.h>

#include "json_output.h"
#include "program.h"
#include "text.h"
#include "trace_replay.h"

typedef struct replay_options {
  const char *trace;
  const char *on;
  bool touch, json;
} replay_options;

/* 0 where nothing was live. */
static double ratio_of(const replay_result *result) {
  if (result->peak_live_bytes == 0)
    return 0;
  return (double)result->peak_reserved_bytes / (double)result->peak_live_bytes;
}

static exit_status print_as_json(size_t events, const replay_result *result) {
  return print_json(
      json_pack("{s:o, s:o, s:o, s:f, s:f, s:f, s:o, s:f, s:o}", "events", json_unsigned(events),
                "peak_live_bytes", json_unsigned(result->peak_live_bytes), "peak_reserved_bytes",
                json_unsigned(result->peak_reserved_bytes), "ratio", ratio_of(result),
                "ns_per_event", result->ns_per_event, "ns_per_event_warm",
                result->ns_per_event_warm, "driver_calls", json_unsigned(result->driver_calls),
                "driver_seconds", result->driver_seconds, "failed", json_unsigned(result->failed)));
}

static exit_status print_as_text(size_t events, const char *spec, const replay_result *result) {
  char live[TEXT_SIZE_MAX], reserved[TEXT_SIZE_MAX], name[512];
  text_of_size(result->peak_live_bytes, live);
  text_of_size(result->peak_reserved_bytes, reserved);
  text_print(spec, name, sizeof name);
  printf("%zu events on %s, %" PRIu64 " allocations failed\n", events, name, result->failed);
  if (result->failed != 0)
    printf("first:   %s\n", result->first_failure);
  printf("peak:    %s live, %s reserved, ratio %.4f\n", live, reserved, ratio_of(result));
  printf("time:    %.1f ns an event, %.1f ns when warm\n", result->ns_per_event,
         result->ns_per_event_warm);
  printf("backend: %" PRIu64 " calls, %.6f s in them\n", result->driver_calls,
         result->driver_seconds);
  return finish_output();
}

static exit_status replay(const replay_options *options) {
  replay_trace trace;
  char error[TRACE_ERROR_SIZE];
  if (!replay_trace_read(options->trace, &trace, error))
    return fail("%s", error);
  replay_result result;
  const replay_status status = replay_run(&trace, options->on, options->touch, &result);
  const size_t events = trace.count;
  replay_trace_free(&trace);
  switch (status) {
  case REPLAY_FAILED:
    return fail_quay();
  case REPLAY_NO_MEMORY:
    return fail_memory();
  case REPLAY_DONE:
    break;
  }
  return options->json ? print_as_json(events, &result)
                       : print_as_text(events, options->on, &result);
}

/* EXIT_DONE with a trace of NULL: the help was asked for. */
static exit_status parse(int argc, char **argv, replay_options *out) {
  enum {
    ON = 'o',
    TOUCH = 't',
    JSON = 'j'
  };
  static const struct option options[] = {{"on", required_argument, NULL, ON},
                                          {"touch", no_argument, NULL, TOUCH},
                                          {"json", no_argument, NULL, JSON},
                                          {"help", no_argument, NULL, OPTION_HELP},
                                          {0}};
  int option;
  while ((option = next_option(&command_replay, argc, argv, options)) != OPTION_END) {
    if (option == OPTION_BAD)
      return EXIT_USAGE;
    if (option == OPTION_HELP)
      return EXIT_DONE;
    if (option == ON)
      out->on = optarg;
    if (option == TOUCH)
      out->touch = true;
    if (option == JSON)
      out->json = true;
  }
  if (optind == argc)
    return fail_usage(&command_replay, "replay: no trace is named");
  if (optind + 1 < argc)
    return fail_usage(&command_replay, "replay: unexpected argument '%s'", argv[optind + 1]);
  out->trace = argv[optind];
  return EXIT_DONE;
}

static exit_status run(int argc, char **argv) {
  replay_options options = {.on = "pool+cpu"};
  const exit_status parsed = parse(argc, argv, &options);
  if (parsed != EXIT_DONE)
    return parsed;
  return options.trace != NULL ? replay(&options) : print_help(&command_replay);
}

const subcommand command_replay = {
    .name = "replay",
    .summary = "Replay a log of allocations: the time and memory that it takes.",
    .usage = "quay replay TRACE [--on SPEC] [--touch] [--json]",
    .details =
        "  --on SPEC   on what, such as pool+cuda:0 (default: pool+cpu)\n"
        "  --touch     write to the memory, so that the system really gives it\n"
        "  --json      print JSON\n"
        "  -h, --help  print this help\n\n"
        "TRACE is a log in the format of RMM, such as the layer trace writes, plain or\n"
        "compressed with gzip. It is replayed twice, on a new allocator and then on the same one\n"
        "again; peaks and calls of the backend are those of the first time.\n",
    .run = run,
};
