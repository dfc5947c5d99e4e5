/* The paths for pairs of backends that this build has. */
#include "core/pair_path.h"

#include <pthread.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/lifecycle.h"
#include "core/lock.h"

/* Guarded by QUAY__LOCK_STAGING. */
static uint32_t stand_ins, resets; /* under way */
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static _Thread_local uint32_t own_stand_ins, own_resets;

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

/* False while a device is being reset: the backend does without, then. */
static bool begin(void) {
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_STAGING);
  const bool may = resets == 0;
  stand_ins += may ? 1 : 0;
  own_stand_ins += may ? 1 : 0;
  quay__global_release(QUAY__LOCK_STAGING);
  return may;
}

static void end(void) {
  quay__global_acquire(QUAY__LOCK_STAGING);
  own_stand_ins--;
  if (--stand_ins == 0)
    pthread_cond_broadcast(&ended);
  quay__global_release(QUAY__LOCK_STAGING);
}

bool quay__pair_stand_in(const quay_allocator *allocator, const quay_raw_buffer *raw,
                         quay__stand_in *out_stand_in) {
  out_stand_in->allocator = NULL;
  for (size_t i = 0; paths[i] != NULL; i++) {
    if (!paths[i]->can_stand_in(allocator, raw) || !begin())
      continue;
    if (paths[i]->stand_in(allocator, raw, out_stand_in))
      return true;
    end();
  }
  return false;
}

void quay__pair_stand_in_end(const quay__stand_in *ended_one) {
  if (ended_one->allocator == NULL)
    return;
  quay_allocator_release(ended_one->allocator);
  end();
}

bool quay__pair_reset_begin(void) {
  if (own_stand_ins != 0)
    return false;
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_STAGING);
  resets++;
  own_resets++;
  while (stand_ins != 0)
    quay__global_wait(QUAY__LOCK_STAGING, &ended);
  quay__global_release(QUAY__LOCK_STAGING);
  return true;
}

void quay__pair_reset_end(void) {
  quay__global_acquire(QUAY__LOCK_STAGING);
  resets--;
  own_resets--;
  quay__global_release(QUAY__LOCK_STAGING);
}

void quay__pair_after_fork_in_child(void) {
  stand_ins = own_stand_ins;
  resets = own_resets;
  ended = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
