/* The machine's NUMA nodes, and threads that keep to the processors of one for a while. On a
 * machine with one node, or where the nodes can't be told, nothing here does anything. */
#ifndef QUAY_CORE_TOPOLOGY_H
#define QUAY_CORE_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/os.h"

/* What quay__topology_leave() undoes. */
typedef struct quay__binding {
  bool bound;
  quay__processors before; /* that the thread might run on */
} quay__binding;

/* Has the calling thread run on those of its processors that belong to node `number`; below 0:
 * unknown. Does nothing, and asks the system for nothing, where there is one node; does nothing
 * where the thread may use none of the node's processors, or nothing else, or is bound already.
 * What is between the two calls must not run code of the program's, which could start threads: they
 * would inherit the binding. */
void quay__topology_enter(int32_t number, quay__binding *out_binding);
/* The thread's processors are exactly what they were. Keeps errno. */
void quay__topology_leave(const quay__binding *binding);

/* The processors that the calling thread has but for the binding; NULL: it is not bound. For
 * threads that it starts meanwhile. */
const quay__processors *quay__topology_unbound(void);

/* Whether there are several nodes. Reads them at first need. */
bool quay__topology_has_nodes(void);

#endif
