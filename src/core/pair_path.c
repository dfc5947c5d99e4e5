/* The paths for pairs of backends that this build has. */
#include "core/pair_path.h"

#include <string.h>

#include "core/allocator_impl.h"

static const quay__pair_path *const paths[] = {
#if QUAY_WITH_CUDA && QUAY_WITH_VULKAN
    &quay__pair_cuda_vulkan,
#endif
    NULL,
};

const quay__pair_path *quay__pair_path_find(const quay_raw_buffer *destination,
                                            const quay_raw_buffer *source) {
  return quay__pair_path_between(destination->owner->backend->name, source->owner->backend->name);
}

const quay__pair_path *quay__pair_path_between(const char *one, const char *other) {
  for (size_t i = 0; paths[i] != NULL; i++) {
    const char *const *const names = paths[i]->backends;
    if ((strcmp(names[0], one) == 0 && strcmp(names[1], other) == 0) ||
        (strcmp(names[1], one) == 0 && strcmp(names[0], other) == 0))
      return paths[i];
  }
  return NULL;
}

bool quay__pair_can_stand_in(const quay_allocator *allocator, const quay_raw_buffer *raw) {
  for (size_t i = 0; paths[i] != NULL; i++) {
    if (paths[i]->can_stand_in(allocator, raw))
      return true;
  }
  return false;
}

bool quay__pair_stand_in(const quay_allocator *allocator, const quay_raw_buffer *raw,
                         quay__stand_in *out_stand_in) {
  for (size_t i = 0; paths[i] != NULL; i++) {
    if (paths[i]->can_stand_in(allocator, raw) && paths[i]->stand_in(allocator, raw, out_stand_in))
      return true;
  }
  return false;
}
