/* Writes a safetensors file and reads it back, as a scenario for sweep.sh:
 *   save FILE
 * What jansson allocates is among the calls that fail. Ends like the program quay: status 1 and one
 * line on stderr, or the digest of what was read on stdout. */
#include <inttypes.h>
#include <jansson.h>
#include <quay/quay.h>
#include <quay/safetensors.h>
#include <stdio.h>
#include <stdlib.h>

#define TENSORS 3

static quay_status make_tensors(quay_safetensors_entry *entries) {
  static const char *const names[TENSORS] = {"bytes", "floats", "mapped"};
  static const quay_dtype dtypes[TENSORS] = {QUAY_U8, QUAY_F32, QUAY_I64};
  static const char *const specs[TENSORS] = {"cpu", "track+cpu", "mmap:/tmp"};
  static const int64_t shape[] = {5, 7};
  unsigned char bytes[5 * 7 * 8];
  for (size_t i = 0; i < sizeof bytes; ++i)
    bytes[i] = (unsigned char)(i * 37 + 1);
  for (size_t i = 0; i < TENSORS; ++i) {
    quay_allocator *allocator = NULL;
    quay_buffer *buffer = NULL;
    QUAY_TRY(quay_allocator_open(specs[i], &allocator));
    const quay_status status =
        quay_buffer_create_from_host(allocator, dtypes[i], 2, shape, bytes, NULL, &buffer);
    quay_allocator_release(allocator);
    if (status != QUAY_OK)
      return status;
    entries[i] = (quay_safetensors_entry){.name = names[i], .buffer = buffer};
  }
  return QUAY_OK;
}

static quay_status write_file(const char *path) {
  static const quay_safetensors_metadata metadata[] = {{"format", "pt"}, {"made by", "a test"}};
  /* Synchronising is what the scenario copy sweeps. */
  static const quay_save_options options = {.no_sync = true};
  quay_safetensors_entry entries[TENSORS] = {{NULL, NULL}};
  quay_status status = make_tensors(entries);
  if (status == QUAY_OK)
    status = quay_safetensors_save(path, entries, TENSORS, metadata, 2, &options);
  for (size_t i = 0; i < TENSORS; ++i)
    quay_buffer_release((quay_buffer *)entries[i].buffer);
  return status;
}

/* A sum that depends on every byte and its place. */
static quay_status add_tensor(const quay_safetensors *file, size_t index, uint64_t *sum) {
  quay_buffer *buffer = NULL;
  unsigned char bytes[5 * 7 * 8];
  QUAY_TRY(quay_safetensors_buffer(file, index, &buffer));
  const uint64_t size = quay_buffer_size(buffer);
  const quay_status status = quay_buffer_copy_out(buffer, bytes, size);
  for (uint64_t i = 0; i < size && status == QUAY_OK; ++i)
    *sum = *sum * 31 + bytes[i];
  quay_buffer_release(buffer);
  return status;
}

static quay_status read_file(const char *path) {
  quay_safetensors *file = NULL;
  uint64_t sum = 0;
  QUAY_TRY(quay_safetensors_open(path, NULL, &file));
  quay_status status = QUAY_OK;
  for (size_t i = 0; i < quay_safetensors_count(file) && status == QUAY_OK; ++i) {
    status = add_tensor(file, i, &sum);
  }
  if (status == QUAY_OK)
    printf("%zu tensors, sum %" PRIu64 "\n", quay_safetensors_count(file), sum);
  quay_safetensors_close(file);
  return status;
}

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  json_set_alloc_funcs(malloc, free);
  quay_status status = write_file(argv[1]);
  if (status == QUAY_OK) {
    status = read_file(argv[1]);
    /* The sweep takes a file that is left after a failure for one that was half written. */
    if (status != QUAY_OK)
      remove(argv[1]);
  }
  if (status == QUAY_OK)
    return 0;
  fprintf(stderr, "quay: %s\n", quay_last_error()->message);
  return 1;
}
