/* A safetensors file loaded into one storage. */
#ifndef QUAY_TOOLS_MODEL_H
#define QUAY_TOOLS_MODEL_H

#include <quay/quay.h>
#include <quay/safetensors.h>

#include "progress.h"
#include "sha256.h"

typedef struct loaded_model {
  quay_safetensors *file;
  quay_buffer *storage;  /* all tensors, each at a multiple of MODEL_ALIGNMENT */
  quay_buffer **tensors; /* views of the storage, in the order of the file */
  size_t count;
  uint64_t bytes;           /* of all tensors, without what is between them */
  double seconds;           /* for allocation and copies */
  quay_copy_plan_info plan; /* of the largest copy */
} loaded_model;

/* Bytes. Enough for every dtype, for the vector loads of kernels, and what CUDA's own allocator
 * gives. */
#define MODEL_ALIGNMENT 256u

typedef enum model_result {
  MODEL_LOADED,
  MODEL_FAILED,    /* quay_last_error() says why */
  MODEL_NO_MEMORY, /* of the program's own */
} model_result;

typedef struct model_options {
  bool direct;        /* read with direct I/O where the file system can */
  bool show_progress; /* draw a bar where stderr is a terminal */
} model_options;

/* Loads all tensors of the file at `path` into memory of `allocator`. On error `*out_model` is all
 * zero. */
model_result model_load(const char *path, quay_allocator *allocator, const model_options *options,
                        loaded_model *out_model);

void model_release(loaded_model *model);

/* The SHA-256 of the bytes of tensor number `index`, read back from where they were loaded to.
 * `block` is memory of MODEL_BLOCK_SIZE bytes. */
#define MODEL_BLOCK_SIZE (1u << 20)
quay_status model_sha256(const loaded_model *model, size_t index, void *block,
                         char out_text[SHA256_TEXT_SIZE]);

#endif
