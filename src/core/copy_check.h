/* What copy.c and copy_many.c share: the arguments of a copy between two windows. */
#ifndef QUAY_CORE_COPY_CHECK_H
#define QUAY_CORE_COPY_CHECK_H

#include "core/copy_route.h"
#include "core/storage.h"

/* What can be told of the options without a copy. */
quay_status quay__copy_check_options(const char *function, const quay_copy_options *options);

/* The options, the stream and both ranges, as quay_buffer_copy_region() says. */
quay_status quay__copy_check(const char *function, const quay_buffer *destination,
                             uint64_t destination_offset, const quay_buffer *source,
                             uint64_t source_offset, uint64_t size,
                             const quay_copy_options *options);

/* One side of a copy, `offset` bytes into the window; without a raw buffer while it is lazy. */
quay__side quay__copy_side(const quay_buffer *buffer, uint64_t offset);

#endif
