/* NUMA nodes out of made-up trees of /sys, and threads that keep to one node for a while: whose
 * processors they take, and that they have their own again afterwards. */
#include "core/topology.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/workers.h"
#include "support/skip.h"

#define NODES "/sys/devices/system/node/"

/* A tree: names below NODES, and texts. */
typedef struct entry {
  const char *name, *text;
} entry;

static const entry *tree;
static int reads; /* of texts */
static bool real; /* affinities are the system's */
static quay__processors affinity;
static int gets, sets, get_error, set_error;

bool __wrap_quay__os_read_text(const char *path, char *out_text, size_t size);
int __wrap_quay__os_affinity(quay__processors *out_processors);
int __wrap_quay__os_set_affinity(const quay__processors *processors);
int __real_quay__os_affinity(quay__processors *out_processors);
int __real_quay__os_set_affinity(const quay__processors *processors);

bool __wrap_quay__os_read_text(const char *path, char *out_text, size_t size) {
  reads++;
  if (strncmp(path, NODES, strlen(NODES)) != 0)
    return false;
  for (const entry *at = tree; at != NULL && at->name != NULL; at++) {
    if (strcmp(path + strlen(NODES), at->name) != 0)
      continue;
    (void)snprintf(out_text, size, "%s", at->text);
    return true;
  }
  return false;
}

int __wrap_quay__os_affinity(quay__processors *out_processors) {
  if (real)
    return __real_quay__os_affinity(out_processors);
  gets++;
  *out_processors = affinity;
  errno = get_error;
  return get_error != 0 ? -1 : 0;
}

int __wrap_quay__os_set_affinity(const quay__processors *processors) {
  if (real)
    return __real_quay__os_set_affinity(processors);
  sets++;
  errno = set_error;
  if (set_error != 0)
    return -1;
  affinity = *processors;
  return 0;
}

static quay__processors set_of(const int *numbers) {
  quay__processors set = {{0}};
  for (; *numbers >= 0; numbers++)
    set.bits[*numbers / 64] |= UINT64_C(1) << (*numbers % 64);
  return set;
}
#define SET(...) set_of((const int[]){__VA_ARGS__, -1})

static void expect_set(quay__processors wanted) {
  cr_assert(memcmp(&affinity, &wanted, sizeof wanted) == 0);
}

/* Enters, expects to run on `wanted`, and to have what it had after leaving. */
static void expect_bound(int32_t node, quay__processors wanted) {
  const quay__processors before = affinity;
  quay__binding binding;
  quay__topology_enter(node, &binding);
  cr_assert(binding.bound, "node %d", (int)node);
  expect_set(wanted);
  quay__topology_leave(&binding);
  expect_set(before);
}

static void expect_unbound(int32_t node) {
  const quay__processors before = affinity;
  quay__binding binding;
  quay__topology_enter(node, &binding);
  cr_assert_not(binding.bound, "node %d", (int)node);
  cr_assert_null(quay__topology_unbound());
  quay__topology_leave(&binding);
  expect_set(before);
  cr_assert_eq(sets, 0);
}

static const entry two[] = {{"online", "0-1\n"},
                            {"node0/cpulist", "0-1,4-5\n"},
                            {"node1/cpulist", "2-3,6-7\n"},
                            {NULL, NULL}};

Test(topology, each_of_two_nodes_has_its_processors) {
  tree = two;
  affinity = SET(0, 1, 2, 3, 4, 5, 6, 7);
  expect_bound(0, SET(0, 1, 4, 5));
  expect_bound(1, SET(2, 3, 6, 7));
}

Test(topology, numbers_of_nodes_may_have_holes) {
  tree = (const entry[]){{"online", "0,2,8-9\n"},     {"node0/cpulist", "0\n"},
                         {"node2/cpulist", "1,63\n"}, {"node8/cpulist", "64-66\n"},
                         {"node9/cpulist", "1023\n"}, {NULL, NULL}};
  affinity = SET(0, 1, 63, 64, 65, 66, 1023);
  expect_bound(0, SET(0));
  expect_bound(2, SET(1, 63));
  expect_bound(8, SET(64, 65, 66));
  expect_bound(9, SET(1023));
  sets = 0;
  expect_unbound(1);
  expect_unbound(3);
}

Test(topology, a_node_of_memory_alone_binds_nobody) {
  tree = (const entry[]){{"online", "0-2\n"},
                         {"node0/cpulist", "0-1\n"},
                         {"node1/cpulist", "2\n"},
                         {"node2/cpulist", "\n"},
                         {NULL, NULL}};
  affinity = SET(0, 1, 2);
  expect_unbound(2);
  expect_bound(1, SET(2));
}

Test(topology, with_one_node_the_system_is_not_asked_about_processors) {
  tree = (const entry[]){{"online", "0\n"}, {"node0/cpulist", "0-1\n"}, {NULL, NULL}};
  affinity = SET(0, 1, 2);
  expect_unbound(0);
  cr_assert_eq(gets, 0);
}

Test(topology, a_device_of_unknown_node_makes_nobody_read_the_nodes) {
  tree = two;
  affinity = SET(0, 1, 2);
  expect_unbound(-1);
  cr_assert_eq(reads, 0);
  cr_assert_eq(gets, 0);
}

Test(topology, nodes_are_read_once) {
  tree = two;
  affinity = SET(0, 1, 2);
  for (int i = 0; i < 3; i++)
    expect_bound(0, SET(0, 1));
  cr_assert_eq(reads, 3);
}

Test(topology, what_the_program_took_away_from_a_thread_stays_away) {
  tree = two;
  affinity = SET(1, 3, 5);
  expect_bound(0, SET(1, 5));
  expect_bound(1, SET(3));
}

Test(topology, a_thread_that_has_none_of_the_nodes_processors_stays_where_it_is) {
  tree = two;
  affinity = SET(0, 4);
  expect_unbound(1);
}

Test(topology, a_thread_that_is_at_the_node_already_is_left_alone) {
  tree = two;
  affinity = SET(0, 4);
  expect_unbound(0);
}

Test(topology, a_thread_whose_processors_cannot_be_told_is_left_alone) {
  tree = two;
  affinity = SET(0, 1, 2);
  get_error = EINVAL;
  expect_unbound(0);
}

Test(topology, a_refusal_leaves_the_thread_alone_and_keeps_errno) {
  tree = two;
  affinity = SET(0, 1, 2);
  set_error = EPERM;
  quay__binding binding;
  errno = ERANGE;
  quay__topology_enter(0, &binding);
  cr_assert_eq(errno, ERANGE);
  cr_assert_not(binding.bound);
  cr_assert_null(quay__topology_unbound());
  quay__topology_leave(&binding);
  cr_assert_eq(sets, 1);
}

Test(topology, an_inner_binding_does_nothing_and_the_outer_one_ends_as_it_began) {
  tree = two;
  affinity = SET(0, 1, 2);
  quay__binding outer, inner;
  quay__topology_enter(0, &outer);
  quay__topology_enter(1, &inner);
  cr_assert_not(inner.bound);
  cr_assert_eq(gets, 1);
  quay__topology_leave(&inner);
  expect_set(SET(0, 1));
  const quay__processors *own = quay__topology_unbound();
  cr_assert_not_null(own);
  const quay__processors all = SET(0, 1, 2);
  cr_assert(memcmp(own, &all, sizeof all) == 0);
  quay__topology_leave(&outer);
  expect_set(SET(0, 1, 2));
  cr_assert_null(quay__topology_unbound());
}

/* What is not as the kernel writes it. Each in a process of its own: nodes are read once. */

static void expect_nothing(const char *online, const char *first, const char *second) {
  const entry entries[] = {{"online", online},
                           {"node0/cpulist", first},
                           {second != NULL ? "node1/cpulist" : "other", second},
                           {NULL, NULL}};
  tree = entries;
  affinity = SET(0, 1, 2, 3);
  expect_unbound(0);
  expect_unbound(1);
  cr_assert_not(quay__topology_has_nodes());
}

#define REFUSED(name, online, first, second)     \
  Test(topology_text, name) {                    \
    expect_nothing((online), (first), (second)); \
  }

REFUSED(a_node_that_cannot_be_read_is_no_half_truth, "0-1\n", "0-1\n", NULL)
REFUSED(an_open_range_is_refused, "0-\n", "0-1\n", "2-3\n")
REFUSED(a_comma_at_the_end_is_refused, "0,1,\n", "0-1\n", "2-3\n")
REFUSED(a_range_backwards_is_refused, "0-1\n", "1-0\n", "2-3\n")
REFUSED(numbers_that_go_back_are_refused, "0-1\n", "1,0\n", "2-3\n")
REFUSED(a_number_twice_is_refused, "0-1\n", "0,0-1\n", "2-3\n")
REFUSED(letters_are_refused, "0-1\n", "0-1\n", "2-x\n")
REFUSED(a_sign_is_refused, "0-1\n", "+0\n", "2-3\n")
REFUSED(blanks_are_refused, "0 1\n", "0-1\n", "2-3\n")
REFUSED(a_second_line_is_refused, "0-1\n", "0-1\n2\n", "3\n")
REFUSED(a_processor_beyond_the_set_is_refused, "0-1\n", "0-1\n", "2-1024\n")
REFUSED(a_number_that_overflows_is_refused, "0-1\n", "0-1\n", "4294967298\n")
REFUSED(a_node_beyond_the_kernels_most_is_refused, "0,1024\n", "0-1\n", "2-3\n")
REFUSED(no_node_at_all_is_none, "\n", "0-1\n", "2-3\n")

Test(topology_text, a_text_that_may_be_cut_off_is_refused) {
  static char text[5000];
  size_t length = 0;
  for (int i = 2; i < 1023 && length + 6 < sizeof text; i += 1)
    length += (size_t)snprintf(text + length, sizeof text - length, "%d,", i);
  expect_nothing("0-1\n", "0-1\n", text);
}

Test(topology_text, a_list_without_a_line_break_is_good) {
  tree = (const entry[]){
      {"online", "0-1"}, {"node0/cpulist", "0"}, {"node1/cpulist", "1"}, {NULL, NULL}};
  affinity = SET(0, 1);
  expect_bound(1, SET(1));
}

Test(topology_text, more_nodes_than_are_looked_at_are_none) {
  static entry entries[68];
  static char names[66][32];
  for (int i = 0; i < 66; i++) {
    (void)snprintf(names[i], sizeof names[i], "node%d/cpulist", i);
    entries[i + 1] = (entry){names[i], i == 0 ? "0\n" : "1\n"};
  }
  entries[0] = (entry){"online", "0-65\n"};
  tree = entries;
  affinity = SET(0, 1);
  expect_unbound(0);
}

/* Workers. */

static quay__processors own_processors;
static atomic_int at_home, elsewhere;

static quay_status look(void *context, uint64_t index) {
  (void)context;
  quay__processors here;
  cr_assert_eq(__real_quay__os_affinity(&here), 0);
  const bool home = memcmp(&here, &own_processors, sizeof here) == 0;
  atomic_fetch_add(home ? &at_home : &elsewhere, 1);
  for (int i = 0; i < 300 && index < 2 && at_home + elsewhere < 2; i++)
    usleep(10000);
  return QUAY_OK;
}

Test(topology, a_worker_that_a_bound_thread_starts_is_not_bound) {
  real = true;
  cr_assert_eq(__real_quay__os_affinity(&own_processors), 0);
  int first = -1, count = 0;
  for (int i = 0; i < 1024; i++) {
    if ((own_processors.bits[i / 64] >> (i % 64) & 1) == 0)
      continue;
    first = first < 0 ? i : first;
    count++;
  }
  if (count < 2)
    quay_test_skip("processors", "this process may use one processor alone");
  static char text[16];
  (void)snprintf(text, sizeof text, "%d\n", first);
  tree = (const entry[]){
      {"online", "0-1\n"}, {"node0/cpulist", text}, {"node1/cpulist", "\n"}, {NULL, NULL}};
  quay__binding binding;
  quay__topology_enter(0, &binding);
  cr_assert(binding.bound);
  cr_assert_eq(quay__workers_run(2, 4, look, NULL), QUAY_OK);
  quay__topology_leave(&binding);
  cr_assert_geq(at_home, 1);   /* the worker */
  cr_assert_geq(elsewhere, 1); /* this thread */
  quay__processors after;
  cr_assert_eq(__real_quay__os_affinity(&after), 0);
  cr_assert(memcmp(&after, &own_processors, sizeof after) == 0);
  quay__workers_stop();
}
