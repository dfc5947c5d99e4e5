/* What the two files of the path between CUDA and Vulkan share: links, which order a queue of
 * Vulkan and streams of CUDA on one GPU without the host. */
#ifndef QUAY_INTEROP_CUDA_VULKAN_H
#define QUAY_INTEROP_CUDA_VULKAN_H

#include "cuda/cuda_impl.h"
#include "vulkan/vulkan_impl.h"

/* Of a queue and the CUDA device of its GPU. */
typedef struct quay__cuda_link {
  quay__vulkan_link functions; /* first: what the queue knows of it */
  quay__vulkan_queue *queue;
  quay_device *cuda;   /* retained */
  uint64_t generation; /* of that device */
  /* What CUDA does in the queue's order; and one that nothing else is on. */
  quay__cu_stream stream, rescue;
  quay__cu_semaphore timeline; /* the queue's, imported */
  quay__cu_semaphore back;     /* which CUDA signals and the queue waits for, imported */
  VkSemaphore back_handle;
  atomic_bool abandoned;
  atomic_bool used;    /* by streams of CUDA, which may wait for it still */
  quay__lock lock;     /* guards the order of signals */
  uint64_t back_value; /* of the last one that was submitted */
} quay__cuda_link;

/* Whether the two are one GPU, by its UUID, which the two drivers tell alike. */
bool quay__cuda_link_one_gpu(const quay__cuda_device *cuda, const quay__vulkan_device *vulkan);
/* The link of the queue, made at first need; NULL: there is none, since one of the two has no
 * semaphores to share, or did not share them, which was logged. Keeps the thread's error. */
quay__cuda_link *quay__cuda_link_find(quay__vulkan_queue *queue, quay__cuda_device *cuda);

/* With the CUDA device's context current: makes a stream of it wait for a value of the queue's
 * timeline. */
quay_status quay__cuda_link_await(quay__cuda_link *link, uint64_t value, quay__cu_stream stream);
/* Signals `back` after all that is on the link's stream; `*out_signal` is what to wait for. */
quay_status quay__cuda_link_signal(quay__cuda_link *link, quay__vulkan_signal *out_signal);

/* Functions of the path: quay__pair_path. */
bool quay__cuda_link_can_wait(quay_device *device, uint64_t stream, quay_device *event_device,
                              uint64_t event);
quay_status quay__cuda_link_wait(quay_device *device, uint64_t stream, quay_device *event_device,
                                 uint64_t event);

#endif
