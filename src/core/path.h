/* How functions on the way of calls that take a few dozen nanoseconds in all are compiled. */
#ifndef QUAY_CORE_PATH_H
#define QUAY_CORE_PATH_H

/* Off the way, which then needs no room on the stack for it: seldom at all, and for some calls. And
 * on it. */
#define QUAY__SELDOM __attribute__((noinline, cold))
#define QUAY__APART  __attribute__((noinline))
#define QUAY__ALWAYS __attribute__((always_inline))

#endif
