/* Direct copies between memory of two backends that know nothing of each other: a path for the
 * pair, which one of the two asks for when it is asked for a copy across. */
#ifndef QUAY_CORE_PAIR_PATH_H
#define QUAY_CORE_PAIR_PATH_H

#include <quay/backend.h>

/* Memory of one backend as another one's. */
typedef struct quay__stand_in {
  quay_allocator *allocator; /* NULL: there is none */
  quay_raw_buffer raw;       /* whole; nobody's to free */
} quay__stand_in;

typedef struct quay__pair_path {
  const char *backends[2]; /* names, in any order */
  /* As the functions of an allocator's table: can_copy_across, copy_across. */
  bool (*can)(const quay_raw_buffer *destination, const quay_raw_buffer *source, uint64_t size,
              quay_across_info *out_info);
  quay_status (*copy)(quay_raw_buffer *destination, uint64_t destination_offset,
                      const quay_raw_buffer *source, uint64_t source_offset, uint64_t size);
  /* The same on a stream of one side's device, in its order: whether it can, with the reason in
   * either case, and the copy. */
  bool (*can_submit)(quay_device *on, uint64_t stream, const quay_raw_buffer *destination,
                     const quay_raw_buffer *source, const char **out_reason);
  quay_status (*submit)(quay_device *on, uint64_t stream, quay_raw_buffer *destination,
                        uint64_t destination_offset, const quay_raw_buffer *source,
                        uint64_t source_offset, uint64_t size);
  /* Whether a stream of one device can wait for an event of the other one without the host, and
   * the wait. */
  bool (*can_wait)(quay_device *device, uint64_t stream, quay_device *event_device, uint64_t event);
  quay_status (*wait)(quay_device *device, uint64_t stream, quay_device *event_device,
                      uint64_t event);
  /* Whether large copies between host memory and `raw` (NULL: any that the allocator makes) go
   * faster by the other backend, whose device is open; and what it knows the memory as. */
  bool (*can_stand_in)(const quay_allocator *allocator, const quay_raw_buffer *raw);
  bool (*stand_in)(const quay_allocator *allocator, const quay_raw_buffer *raw,
                   quay__stand_in *out_stand_in);
} quay__pair_path;

/* The path for two backends, by name; NULL: there is none in this build. */
const quay__pair_path *quay__pair_path_between(const char *one, const char *other);
/* The path for the backends of the two owners; NULL: there is none in this build. */
const quay__pair_path *quay__pair_path_find(const quay_raw_buffer *destination,
                                            const quay_raw_buffer *source);

/* By the first path that can. Keep the thread's error. */
bool quay__pair_can_stand_in(const quay_allocator *allocator, const quay_raw_buffer *raw);
bool quay__pair_stand_in(const quay_allocator *allocator, const quay_raw_buffer *raw,
                         quay__stand_in *out_stand_in);

/* Gives back what quay__pair_stand_in() has found, also where it found none. */
void quay__pair_stand_in_end(const quay__stand_in *ended_one);

/* Whoever copies memory of one backend need not know of the other's device, which may be reset
 * meanwhile: a reset waits for the copies that it stands in for, and lets none begin. False: the
 * calling thread is inside one. */
bool quay__pair_reset_begin(void);
void quay__pair_reset_end(void);

/* For lifecycle.c alone, with every lock held: copies of other threads are not in the child. */
void quay__pair_after_fork_in_child(void);

/* src/interop/cuda_vulkan.c */
extern const quay__pair_path quay__pair_cuda_vulkan;

#endif
