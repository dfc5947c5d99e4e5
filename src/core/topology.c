/* NUMA nodes as /sys/devices/system/node tells them (the kernel's
 * Documentation/ABI/stable/sysfs-devices-node), read once. Processors and nodes that come or go
 * later are not seen. Which node a device is at is its backend's to know. */
#include "core/topology.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define NODES "/sys/devices/system/node/"

enum {
  NODES_MAX = 64,
  NODE_NUMBER_MAX = 1023, /* CONFIG_NODES_SHIFT is at most 10 */
  TEXT_SIZE = 4097        /* a page of sysfs, and an end */
};

typedef struct node {
  uint32_t number;
  quay__processors processors; /* none: a node of memory alone */
} node;

static node nodes[NODES_MAX];
static uint32_t node_count; /* 0: not known */
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

/* Of the calling thread while it is bound. */
static _Thread_local const quay__binding *current;

/* A number without sign or blanks, at most `most`; NULL if there is none. */
static const char *parse_number(const char *text, uint32_t most, uint32_t *out_number) {
  uint32_t number = 0;
  const char *at = text;
  for (; *at >= '0' && *at <= '9'; at++) {
    number = number * 10 + (uint32_t)(*at - '0');
    if (number > most)
      return NULL;
  }
  *out_number = number;
  return at != text ? at : NULL;
}

/* A list in the kernel's form, "0-3,8,10-11\n", numbers ascending; may be empty. */
static bool parse_list(const char *text, uint32_t most, uint64_t *out_bits) {
  uint32_t next = 0;
  memset(out_bits, 0, ((size_t)most + 1) / 8);
  while (*text != '\n' && *text != '\0') {
    uint32_t first, last;
    text = parse_number(text, most, &first);
    if (text == NULL || first < next)
      return false;
    last = first;
    if (*text == '-')
      text = parse_number(text + 1, most, &last);
    if (text == NULL || last < first)
      return false;
    for (uint32_t i = first; i <= last; i++)
      out_bits[i / 64] |= UINT64_C(1) << (i % 64);
    next = last + 1;
    const bool more = *text == ',' && text[1] != '\n' && text[1] != '\0';
    if (!more && *text != '\n' && *text != '\0')
      return false;
    text += more ? 1 : 0;
  }
  return *text == '\0' || text[1] == '\0';
}

/* False if it can't be read, or may be longer than what was read. */
static bool read_list(const char *path, uint32_t most, uint64_t *out_bits) {
  char text[TEXT_SIZE];
  return quay__os_read_text(path, text, sizeof text) && strlen(text) < sizeof text - 1 &&
         parse_list(text, most, out_bits);
}

static bool read_node(uint32_t number, node *out_node) {
  char path[sizeof NODES + 32];
  (void)snprintf(path, sizeof path, NODES "node%u/cpulist", (unsigned)number);
  out_node->number = number;
  return read_list(path, QUAY__PROCESSORS_MAX - 1, out_node->processors.bits);
}

/* All or nothing: half of the truth would bind threads to the wrong half. */
static void read_nodes(void) {
  uint64_t online[(NODE_NUMBER_MAX + 1) / 64];
  if (!read_list(NODES "online", NODE_NUMBER_MAX, online))
    return;
  uint32_t count = 0;
  for (uint32_t number = 0; number <= NODE_NUMBER_MAX; number++) {
    if ((online[number / 64] >> (number % 64) & 1) == 0)
      continue;
    if (count == NODES_MAX || !read_node(number, &nodes[count]))
      return;
    count++;
  }
  node_count = count;
}

bool quay__topology_has_nodes(void) {
  (void)pthread_once(&read_once, read_nodes);
  return node_count > 1;
}

static const node *find_node(int32_t number) {
  for (uint32_t i = 0; i < node_count; i++) {
    if (nodes[i].number == (uint32_t)number)
      return &nodes[i];
  }
  return NULL;
}

/* What both have; false if that is nothing, or all of `a`. */
static bool part_of(const quay__processors *a, const quay__processors *b,
                    quay__processors *out_both) {
  uint64_t some = 0, missing = 0;
  for (size_t i = 0; i < sizeof a->bits / sizeof a->bits[0]; i++) {
    out_both->bits[i] = a->bits[i] & b->bits[i];
    some |= out_both->bits[i];
    missing |= a->bits[i] ^ out_both->bits[i];
  }
  return some != 0 && missing != 0;
}

void quay__topology_enter(int32_t number, quay__binding *out_binding) {
  out_binding->bound = false;
  if (number < 0 || current != NULL || !quay__topology_has_nodes())
    return;
  const int before = errno;
  const node *there = find_node(number);
  quay__processors wanted;
  if (there != NULL && quay__os_affinity(&out_binding->before) == 0 &&
      part_of(&out_binding->before, &there->processors, &wanted))
    out_binding->bound = quay__os_set_affinity(&wanted) == 0;
  if (out_binding->bound)
    current = out_binding;
  errno = before;
}

void quay__topology_leave(const quay__binding *binding) {
  if (!binding->bound)
    return;
  const int before = errno;
  current = NULL;
  /* Fails only where none of these is left to the process. */
  (void)quay__os_set_affinity(&binding->before);
  errno = before;
}

const quay__processors *quay__topology_unbound(void) {
  return current != NULL ? &current->before : NULL;
}
