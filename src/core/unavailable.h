/* What stands in for a backend that is not built in: its name is known, and the message says why it
 * can't be had. */
#ifndef QUAY_CORE_UNAVAILABLE_H
#define QUAY_CORE_UNAVAILABLE_H

#include <quay/backend.h>

/* The `user` of a quay_backend whose functions are the two below. */
typedef struct quay__unavailable {
  const char *name;
  const char *reason;
  quay_device_type_id type;
} quay__unavailable;

quay_status quay__unavailable_open(void *user, const quay_spec_args *args,
                                   quay_allocator **out_allocator);
quay_status quay__unavailable_info(void *user, size_t index, quay_device_info *out_info,
                                   bool *out_more);

#endif
