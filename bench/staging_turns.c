/* Several ways to set the engine up, measured in turns, so that the load of a shared machine meets
 * all of them alike: a round has one copy of each way and one of page-locked memory by the driver,
 * and each round has them in another order. What is printed compares within rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "staging.h"

typedef struct results {
  double rates[TURNS_MAX + 1][RUNS_MAX]; /* GB/s, by round; after the ways the limit */
  quay__staging_report reports[TURNS_MAX];
} results;

static int common_divisor(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Rounds begin with one entry after the other, and go on by different steps, so that none always
 * follows the same one. */
static int entry_at(int round, int position, int count) {
  int steps[TURNS_MAX + 1], have = 0;
  for (int step = 1; step < count; step++) {
    if (common_divisor(count, step) == 1)
      steps[have++] = step;
  }
  return (round + position * steps[round % have]) % count;
}

static bool same_memory(const variant *a, const variant *b) {
  return a->slot == b->slot && a->slots == b->slots && a->threads == b->threads &&
         a->segment == b->segment && a->shared == b->shared && a->driver == b->driver;
}

/* The memory of slots that were cut otherwise goes first: it would count as room that is taken. */
static void change_to(const bench *all, const variant *chosen) {
  static variant before;
  if (!same_memory(&before, chosen))
    bench_check(quay_collect(NULL), "collecting");
  before = *chosen;
  bench_use(all, chosen);
}

/* After a copy that does not count. Of the first run every byte is checked, which the copy before
 * it can't have left. */
static void measure_turn(const bench *all, int which, int entry, int round, results *out) {
  const turn *chosen = &all->set.turns[entry];
  const direction one = bench_direction(all, &chosen->variant, which);
  change_to(all, &chosen->variant);
  (void)bench_copy(one.to, one.from);
  if (round == 0)
    bench_check(quay_buffer_fill(one.to, "\x5a", 1), "clearing");
  if (chosen->anew) /* the page cache keeps the file, and the mapping has no pages */
    bench_check(quay_buffer_advise(one.from, QUAY_ADVICE_DONT_NEED), "letting go of pages");
  const sample timed = bench_copy(one.to, one.from);
  if (round == 0)
    bench_check_bytes(all, one.to, all->set.size, chosen->name);
  out->rates[entry][round] = (double)all->set.size / timed.seconds * 1e-9;
  out->reports[entry] = timed.report;
}

static void measure_limit(const bench *all, bool into, int round, results *out) {
  quay_buffer *to = into ? all->there : all->pinned, *from = into ? all->pinned : all->there;
  (void)bench_copy(to, from);
  const sample timed = bench_copy(to, from);
  out->rates[all->set.turn_count][round] = (double)all->set.size / timed.seconds * 1e-9;
}

static int by_value(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* Quartiles of the rates, or of their quotients to others of the same rounds. */
static void quartiles(int runs, const double *rates, const double *others, double out[3]) {
  double values[RUNS_MAX];
  for (int i = 0; i < runs; i++)
    values[i] = others != NULL ? rates[i] / others[i] : rates[i];
  qsort(values, (size_t)runs, sizeof values[0], by_value);
  for (int i = 0; i < 3; i++) {
    const int quarters = (runs - 1) * (i + 1), at = quarters / 4;
    const double next = at + 1 < runs ? values[at + 1] : values[at];
    out[i] = values[at] + (next - values[at]) * (quarters % 4) / 4;
  }
}

static int rounds_won(int runs, const double *rates, const double *others) {
  int won = 0;
  for (int i = 0; i < runs; i++)
    won += rates[i] > others[i];
  return won;
}

static void print_results(const bench *all, const char *name, const results *found) {
  const int runs = all->set.runs, count = all->set.turn_count;
  const double *limits = found->rates[count], *first = found->rates[0];
  double rate[3], ratio[3], quotient[3];
  quartiles(runs, limits, NULL, rate);
  printf("\n%s, %d rounds; page-locked memory by the driver: %.2f GB/s (quartiles %.2f to %.2f)\n",
         name, runs, rate[1], rate[0], rate[2]);
  printf("  %-28s %7s %6s %6s %6s | %7s %7s | %7s %5s %5s %5s\n", "way", "GB/s", "ratio", "25%",
         "75%", "to 1st", "won", "threads", "slots", "KiB", "MiB/tr");
  for (int i = 0; i < count; i++) {
    const quay__staging_report *report = &found->reports[i];
    quartiles(runs, found->rates[i], NULL, rate);
    quartiles(runs, found->rates[i], limits, ratio);
    quartiles(runs, found->rates[i], first, quotient);
    printf("  %-28s %7.2f %6.3f %6.3f %6.3f | %7.4f %3d of %-3d | %5u %5u %5.0f %5.2f\n",
           all->set.turns[i].name, rate[1], ratio[1], ratio[0], ratio[2], quotient[1],
           rounds_won(runs, found->rates[i], first), runs, report->threads, report->slots,
           (double)all->set.size / (double)KIB / (double)quay__max(report->chunks, 1),
           (double)all->set.size / (double)MIB / (double)quay__max(report->transfers, 1));
  }
  fflush(stdout);
}

void bench_turns(const bench *all) {
  static const int order[DIRECTIONS] = {1, 0, 2, 3}; /* files first */
  static results found;
  const int entries = all->set.turn_count + 1;
  for (int i = 0; i < (all->set.back ? DIRECTIONS : 2); i++) {
    const direction one = bench_direction(all, &all->set.variant, order[i]);
    for (int round = 0; round < all->set.runs; round++) {
      for (int position = 0; position < entries; position++) {
        const int entry = entry_at(round, position, entries);
        if (entry == all->set.turn_count) {
          measure_limit(all, one.into, round, &found);
        } else {
          measure_turn(all, order[i], entry, round, &found);
        }
      }
    }
    print_results(all, one.name, &found);
  }
}
