/* Loads a safetensors file into one storage, with as few copies as its layout allows. Prints
 * nothing but the progress. */
#include "model.h"

#include <stdlib.h>

#include "program.h"

/* Bytes of the file that are copied at a time. */
#define WINDOW_SIZE ((uint64_t)64 << 20)

/* Neighbouring tensors that keep their distance: one copy moves them all. */
typedef struct tensor_run {
  uint64_t from; /* in the file's data */
  uint64_t to;   /* in the storage */
  uint64_t size;
} tensor_run;

/* A file on disk has fewer than 2^63 bytes, and a header of at most 100 MB has too few tensors for
 * their padding to overflow the sum. */
static uint64_t align_up(uint64_t value) {
  return (value + MODEL_ALIGNMENT - 1) & ~(uint64_t)(MODEL_ALIGNMENT - 1);
}

static quay_status tensor_at(const loaded_model *model, size_t index,
                             quay_safetensors_tensor *out) {
  return quay_safetensors_get(model->file, index, out);
}

static quay_status allocate(loaded_model *model, quay_allocator *allocator) {
  uint64_t size = 0;
  for (size_t i = 0; i < model->count; ++i) {
    quay_safetensors_tensor tensor;
    QUAY_TRY(tensor_at(model, i, &tensor));
    size = align_up(size) + tensor.size;
    model->bytes += tensor.size;
  }
  const int64_t shape[] = {(int64_t)size};
  const quay_alloc_options options = {.alignment = MODEL_ALIGNMENT};
  return quay_buffer_create(allocator, QUAY_U8, 1, shape, &options, &model->storage);
}

static quay_status make_views(loaded_model *model) {
  uint64_t position = 0;
  for (size_t i = 0; i < model->count; ++i) {
    quay_safetensors_tensor tensor;
    QUAY_TRY(tensor_at(model, i, &tensor));
    position = align_up(position);
    QUAY_TRY(quay_buffer_view_typed(model->storage, position, tensor.dtype, tensor.rank,
                                    tensor.shape, &model->tensors[i]));
    position += tensor.size;
  }
  return QUAY_OK;
}

/* The longest run from tensor `*next` on; `*next` is then the first tensor behind it. */
static quay_status find_run(const loaded_model *model, size_t *next, tensor_run *out) {
  const uint64_t data = quay_buffer_offset(quay_safetensors_data(model->file));
  quay_safetensors_tensor tensor;
  QUAY_TRY(tensor_at(model, *next, &tensor));
  *out =
      (tensor_run){.from = tensor.offset - data, .to = quay_buffer_offset(model->tensors[*next])};
  while (*next < model->count) {
    QUAY_TRY(tensor_at(model, *next, &tensor));
    const uint64_t from = tensor.offset - data;
    if (from - out->from != quay_buffer_offset(model->tensors[*next]) - out->to)
      break;
    out->size = from - out->from + tensor.size;
    ++*next;
  }
  return QUAY_OK;
}

/* All runs of the file, with the plan of the largest one. `out_pairs` has room for all tensors. */
static quay_status find_runs(loaded_model *model, quay_copy_pair *out_pairs, size_t *out_count) {
  quay_buffer *data = quay_safetensors_data(model->file);
  for (size_t next = 0; next < model->count;) {
    tensor_run run;
    QUAY_TRY(find_run(model, &next, &run));
    out_pairs[(*out_count)++] = (quay_copy_pair){.destination = model->storage,
                                                 .destination_offset = run.to,
                                                 .source = data,
                                                 .source_offset = run.from,
                                                 .size = run.size};
    if (run.size > model->plan.size) {
      QUAY_TRY(
          quay_copy_plan(model->storage, run.to, data, run.from, run.size, NULL, &model->plan));
    }
  }
  return QUAY_OK;
}

/* The file's pages that the copy has kept in this process's memory leave it again. */
static quay_status forget_pages(const loaded_model *model, const quay_copy_pair *window) {
  quay_buffer *from = NULL;
  QUAY_TRY(quay_buffer_view(quay_safetensors_data(model->file), window->source_offset, window->size,
                            &from));
  const quay_status status = quay_buffer_advise(from, QUAY_ADVICE_DONT_NEED);
  quay_buffer_release(from);
  return status;
}

/* In windows, so that not all of the file's pages are in this process's memory at a time. */
static quay_status read_in_windows(const loaded_model *model, const quay_copy_pair *run,
                                   progress_bar *progress) {
  const quay_copy_options options = {.progress = progress_copy, .progress_user = progress};
  for (uint64_t done = 0; done < run->size;) {
    const uint64_t rest = run->size - done;
    quay_copy_pair window = *run;
    window.source_offset += done;
    window.destination_offset += done;
    window.size = rest < WINDOW_SIZE ? rest : WINDOW_SIZE;
    QUAY_TRY(quay_buffer_copy_region(window.destination, window.destination_offset, window.source,
                                     window.source_offset, window.size, &options));
    QUAY_TRY(forget_pages(model, &window));
    done += window.size;
    progress->before += window.size;
    progress_update(progress, progress->before);
  }
  return QUAY_OK;
}

static quay_status copy_runs(const loaded_model *model, const quay_copy_pair *runs, size_t count,
                             progress_bar *progress) {
  if (model->plan.route == QUAY_ROUTE_STAGED) {
    const quay_copy_options options = {.progress = progress_copy, .progress_user = progress};
    return quay_copy_many(runs, count, &options);
  }
  for (size_t i = 0; i < count; ++i)
    QUAY_TRY(read_in_windows(model, &runs[i], progress));
  return QUAY_OK;
}

static quay_status copy_all(loaded_model *model, quay_copy_pair *runs, bool show_progress) {
  size_t count = 0;
  QUAY_TRY(find_runs(model, runs, &count));
  progress_bar progress;
  progress_begin(&progress, show_progress, model->bytes);
  const quay_status status = copy_runs(model, runs, count, &progress);
  progress_end(&progress);
  return status;
}

static quay_status fill(loaded_model *model, quay_allocator *allocator, quay_copy_pair *runs,
                        bool show_progress) {
  const double begin = now_seconds();
  QUAY_TRY(allocate(model, allocator));
  QUAY_TRY(make_views(model));
  QUAY_TRY(copy_all(model, runs, show_progress));
  model->seconds = now_seconds() - begin;
  return QUAY_OK;
}

model_result model_load(const char *path, quay_allocator *allocator, const model_options *options,
                        loaded_model *out_model) {
  const quay_map_options mapping = {.direct = options->direct};
  *out_model = (loaded_model){.count = 0};
  if (quay_safetensors_open(path, &mapping, &out_model->file) != QUAY_OK)
    return MODEL_FAILED;
  out_model->count = quay_safetensors_count(out_model->file);
  out_model->tensors = calloc(out_model->count + 1, sizeof(quay_buffer *));
  model_result result = MODEL_LOADED;
  quay_copy_pair *runs = calloc(out_model->count + 1, sizeof *runs);
  if (out_model->tensors == NULL || runs == NULL) {
    result = MODEL_NO_MEMORY;
  } else if (fill(out_model, allocator, runs, options->show_progress) != QUAY_OK) {
    result = MODEL_FAILED;
  }
  free(runs);
  if (result != MODEL_LOADED)
    model_release(out_model);
  return result;
}

void model_release(loaded_model *model) {
  for (size_t i = 0; i < model->count && model->tensors != NULL; ++i) {
    quay_buffer_release(model->tensors[i]);
  }
  free(model->tensors);
  quay_buffer_release(model->storage);
  quay_safetensors_close(model->file);
  *model = (loaded_model){.count = 0};
}

static quay_status add_block(sha256 *hash, quay_buffer *tensor, uint64_t offset, uint64_t size,
                             void *block) {
  quay_buffer *window = NULL;
  QUAY_TRY(quay_buffer_view(tensor, offset, size, &window));
  const quay_status status = quay_buffer_copy_out(window, block, size);
  quay_buffer_release(window);
  if (status == QUAY_OK)
    sha256_add(hash, block, (size_t)size);
  return status;
}

quay_status model_sha256(const loaded_model *model, size_t index, void *block,
                         char out_text[SHA256_TEXT_SIZE]) {
  quay_buffer *tensor = model->tensors[index];
  const uint64_t size = quay_buffer_size(tensor);
  sha256 hash;
  sha256_begin(&hash);
  for (uint64_t offset = 0; offset < size; offset += MODEL_BLOCK_SIZE) {
    const uint64_t rest = size - offset;
    QUAY_TRY(
        add_block(&hash, tensor, offset, rest < MODEL_BLOCK_SIZE ? rest : MODEL_BLOCK_SIZE, block));
  }
  sha256_end(&hash, out_text);
  return QUAY_OK;
}
