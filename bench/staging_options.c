/* The command line of bench_staging:
 *
 *   bench_staging [--device SPEC] [--size MIB] [--runs N] [--file PATH] [--beside SPEC]
 *                 [--load N] [--limits] [--sweep [--seconds N]] [--turns TURNS [--back]] [WAY ...]
 *
 * A way to set the engine up, in which MIB may be a fraction:
 *
 *   --threads N, --slots N, --slot-size MIB, --shared, --streams N, --batch N or --single,
 *   --least MIB, --in-flight MIB, --stores ahead|plain|streaming, --pin register|alloc,
 * --pin-threads,
 *   --leases again|at-once|never, --by-mapping, --written
 *
 * --by-mapping makes the file through a mapping, --written keeps it open for writing: then it can't
 * be leased. TURNS are "NAME: WAY; NAME: WAY; ...", or a line each: what one does not say is as the
 * way of the command line. One with --anew copies as if its file had just been mapped. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "staging.h"

enum {
  WORDS_MAX = 64,
  SIZE_MAX_MIB = 1 << 20,
  SECONDS_MAX = 1000000
};

/* Those of a way come last, and first of them the one that --turns alone takes. */
static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                        {"size", required_argument, NULL, 's'},
                                        {"beside", required_argument, NULL, 'e'},
                                        {"runs", required_argument, NULL, 'r'},
                                        {"file", required_argument, NULL, 'f'},
                                        {"sweep", no_argument, NULL, 'w'},
                                        {"seconds", required_argument, NULL, 'x'},
                                        {"load", required_argument, NULL, 'O'},
                                        {"limits", no_argument, NULL, 'l'},
                                        {"turns", required_argument, NULL, 'u'},
                                        {"back", no_argument, NULL, 'v'},
                                        {"anew", no_argument, NULL, 'A'},
                                        {"threads", required_argument, NULL, 't'},
                                        {"slots", required_argument, NULL, 'n'},
                                        {"slot-size", required_argument, NULL, 'c'},
                                        {"streams", required_argument, NULL, 'm'},
                                        {"shared", no_argument, NULL, 'o'},
                                        {"pin-threads", no_argument, NULL, 'b'},
                                        {"stores", required_argument, NULL, 'g'},
                                        {"pin", required_argument, NULL, 'p'},
                                        {"leases", required_argument, NULL, 'L'},
                                        {"written", no_argument, NULL, 'y'},
                                        {"batch", required_argument, NULL, 'a'},
                                        {"by-mapping", no_argument, NULL, 'k'},
                                        {"least", required_argument, NULL, 'i'},
                                        {"single", no_argument, NULL, 'q'},
                                        {"in-flight", required_argument, NULL, 'j'},
                                        {0}};

static const struct option *options_of_ways(void) {
  const struct option *first = options;
  while (first->val != 'A')
    first++;
  return first;
}

static bool is_second(const char *first, const char *second, const char *option) {
  if (strcmp(optarg, first) != 0 && strcmp(optarg, second) != 0) {
    fprintf(stderr, "bench_staging: %s is %s or %s, and not %s\n", option, first, second, optarg);
    exit(2);
  }
  return strcmp(optarg, second) == 0;
}

/* Which of the three names it is. */
static int third_of(const char *const names[3], const char *option) {
  for (int i = 0; i < 3; i++) {
    if (strcmp(optarg, names[i]) == 0)
      return i;
  }
  fprintf(stderr, "bench_staging: %s is %s, %s or %s, and not %s\n", option, names[0], names[1],
          names[2], optarg);
  exit(2);
}

static void refuse(const char *option, const char *wanted) {
  fprintf(stderr, "bench_staging: %s takes %s, and not %s\n", option, wanted, optarg);
  exit(2);
}

static uint64_t number_of(const char *option, uint64_t least, uint64_t most) {
  char *end = NULL, wanted[80];
  errno = 0;
  const uint64_t number = strtoull(optarg, &end, 10);
  if (!isdigit((unsigned char)optarg[0]) || *end != '\0' || errno != 0 || number < least ||
      number > most) {
    snprintf(wanted, sizeof wanted, "a whole number from %llu to %llu", (unsigned long long)least,
             (unsigned long long)most);
    refuse(option, wanted);
  }
  return number;
}

/* Of MiB. */
static uint64_t bytes_of(const char *option) {
  char *end = NULL;
  const double number = strtod(optarg, &end);
  if (end == optarg || *end != '\0' || !(number * (double)MIB >= 4096) || number > 4096)
    refuse(option, "MiB, from 4096 bytes, 0.00390625, to 4096");
  return (uint64_t)(number * (double)MIB);
}

static void parse_switch(int option, variant *out) {
  if (option == 'q')
    out->single = true;
  if (option == 'o')
    out->shared = true;
  if (option == 'b')
    out->bound = true;
  if (option == 'y')
    out->written = true;
  if (option == 'k')
    out->by_mapping = true;
}

static void parse_variant(int option, variant *out) {
  static const char *const leases[] = {
      [QUAY__LEASES_AGAIN] = "again",
      [QUAY__LEASES_AT_ONCE] = "at-once",
      [QUAY__LEASES_NEVER] = "never",
  };
  static const char *const stores[] = {
      [QUAY__STORES_AHEAD] = "ahead",
      [QUAY__STORES_PLAIN] = "plain",
      [QUAY__STORES_STREAMING] = "streaming",
  };
  parse_switch(option, out);
  if (option == 't')
    out->threads = (uint32_t)number_of("--threads", 1, 1024);
  if (option == 'n')
    out->slots = (uint32_t)number_of("--slots", 1, 64);
  if (option == 'c')
    out->slot = bytes_of("--slot-size");
  if (option == 'm')
    out->streams = (uint32_t)number_of("--streams", 1, 100);
  if (option == 'a')
    out->batch = (uint32_t)number_of("--batch", 1, 64);
  if (option == 'i')
    out->least = bytes_of("--least");
  if (option == 'j')
    out->in_flight = bytes_of("--in-flight");
  if (option == 'g')
    out->stores = third_of(stores, "--stores");
  if (option == 'p')
    out->driver = is_second("register", "alloc", "--pin");
  if (option == 'L')
    out->leases = third_of(leases, "--leases");
}

static void refuse_turns(const char *why, const char *text) {
  fprintf(
      stderr,
      "bench_staging: --turns takes \"NAME: OPTIONS; NAME: OPTIONS; ...\" of at most %d ways; %s"
      " \"%s\"\n",
      TURNS_MAX, why, text);
  exit(2);
}

/* Cuts the text into words, which stay in it. */
static void parse_turn(char *text, const variant *usual, turn *out) {
  static char program[] = "bench_staging"; /* for messages */
  char *words[WORDS_MAX + 2] = {program};
  int count = 1;
  char *colon = strchr(text, ':');
  if (colon == NULL)
    refuse_turns("there is no name and colon in", text);
  *colon = '\0';
  *out = (turn){.name = text + strspn(text, " \t"), .variant = *usual};
  if (out->name[0] == '\0')
    refuse_turns("there is no name before", colon + 1);
  char *rest = NULL;
  for (char *word = strtok_r(colon + 1, " \t", &rest); word != NULL;
       word = strtok_r(NULL, " \t", &rest)) {
    if (count > WORDS_MAX)
      refuse_turns("there are too many options from", word);
    words[count++] = word;
  }
  optind = 0; /* begins anew */
  for (int option; (option = getopt_long(count, words, "", options_of_ways(), NULL)) != -1;) {
    if (option == '?')
      exit(2);
    out->anew = out->anew || option == 'A';
    parse_variant(option, &out->variant);
  }
  if (optind != count)
    refuse_turns("there is no option", words[optind]);
}

static void parse_turns(char *text, settings *inout) {
  char *rest = NULL;
  for (char *one = strtok_r(text, ";\n", &rest); one != NULL; one = strtok_r(NULL, ";\n", &rest)) {
    if (one[strspn(one, " \t")] == '\0')
      continue;
    if (inout->turn_count == TURNS_MAX)
      refuse_turns("one too many is", one);
    parse_turn(one, &inout->variant, &inout->turns[inout->turn_count++]);
  }
  if (inout->turn_count == 0)
    refuse_turns("there is none in", text);
}

static void parse_setting(int option, settings *out) {
  if (option == 'd')
    out->device = optarg;
  if (option == 'e')
    out->beside = optarg;
  if (option == 's')
    out->size = number_of("--size", 1, SIZE_MAX_MIB) * MIB;
  if (option == 'r')
    out->runs = (int)number_of("--runs", 1, RUNS_MAX);
  if (option == 'f')
    out->path = optarg;
  if (option == 'w')
    out->sweep = true;
  if (option == 'l')
    out->limits = true;
  if (option == 'v')
    out->back = true;
  if (option == 'O')
    out->load = (uint32_t)number_of("--load", 0, LOADS_MAX);
  if (option == 'x')
    out->seconds = (int)number_of("--seconds", 1, SECONDS_MAX);
}

settings bench_parse(int argc, char **argv) {
  settings set = {.device = "cuda:0", .size = 2048 * MIB, .runs = 5, .seconds = 240};
  char *turns = NULL;
  if (getenv("QUAY_BENCH_SMOKE") != NULL) {
    set.size = 3 * MIB;
    set.runs = 1;
    set.seconds = 2;
  }
  for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    if (option == '?' || option == 'A') {
      fprintf(stderr, "bench_staging: bench/README.md lists the options; --anew is one of turns\n");
      exit(2);
    }
    if (option == 'u')
      turns = optarg;
    parse_setting(option, &set);
    parse_variant(option, &set.variant);
  }
  if (optind != argc) {
    fprintf(stderr, "bench_staging: there is no option %s\n", argv[optind]);
    exit(2);
  }
  if (turns != NULL && (set.sweep || set.limits || set.beside != NULL)) {
    fprintf(stderr, "bench_staging: with --turns there is no --sweep, --limits or --beside\n");
    exit(2);
  }
  if (turns == NULL && set.back) {
    fprintf(stderr, "bench_staging: --back is one of --turns\n");
    exit(2);
  }
  if (turns != NULL)
    parse_turns(turns, &set);
  return set;
}
