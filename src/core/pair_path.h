/* Direct copies between memory of two backends that know nothing of each other: a path for the
 * pair, which one of the two asks for when it is asked for a copy across. */
#ifndef QUAY_CORE_PAIR_PATH_H
#define QUAY_CORE_PAIR_PATH_H

#include <quay/backend.h>

typedef struct quay__pair_path {
  const char *backends[2]; /* names, in any order */
  /* As the functions of an allocator's table: can_copy_across, copy_across. */
  bool (*can)(const quay_raw_buffer *destination, const quay_raw_buffer *source, uint64_t size,
              quay_across_info *out_info);
  quay_status (*copy)(quay_raw_buffer *destination, uint64_t destination_offset,
                      const quay_raw_buffer *source, uint64_t source_offset, uint64_t size);
} quay__pair_path;

/* The path for the backends of the two owners; NULL: there is none in this build. */
const quay__pair_path *quay__pair_path_find(const quay_raw_buffer *destination,
                                            const quay_raw_buffer *source);

/* src/interop/cuda_vulkan.c */
extern const quay__pair_path quay__pair_cuda_vulkan;

#endif
