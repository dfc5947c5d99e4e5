/* Mirrors: the pinned twins of device memory. Flush and invalidate are ordinary copies between the
 * buffer and the twin, so that they wait for what conflicts, and refuse what a copy refuses. */
#include <quay/copy.h>
#include <quay/cuda.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/arguments.h"
#include "core/error.h"
#include "core/host_copy.h"
#include "cuda/cuda_impl.h"

static quay_status find_twin(const quay_buffer *buffer, const char *function,
                             unsigned char **out_twin) {
  const quay_raw_buffer *raw;
  QUAY_TRY(quay_buffer_raw(buffer, &raw));
  if (quay__cuda_of(raw->owner) == NULL || (raw->flags & QUAY_RAW_MIRRORED) == 0) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "%s: the buffer of the allocator %s has no mirror; allocate device memory of "
                      "the cuda backend with the option mirror",
                      function, raw->owner->spec);
  }
  QUAY_TRY(quay__cuda_check_callable()); /* else nothing is mapped there */
  *out_twin = (unsigned char *)(uintptr_t)raw->as.cuda.host_pointer + quay_buffer_offset(buffer);
  return QUAY_OK;
}

static quay_status check_size(const quay_buffer *buffer, uint64_t size, const char *function) {
  if (size == quay_buffer_size(buffer))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_SIZE_MISMATCH,
                    "%s: %llu bytes of host memory for a window of %llu; they must be equal",
                    function, (unsigned long long)size,
                    (unsigned long long)quay_buffer_size(buffer));
}

quay_status quay_cuda_mirror_pointer(const quay_buffer *buffer, void **out_pointer) {
  QUAY__REQUIRE(out_pointer);
  *out_pointer = NULL;
  QUAY__REQUIRE(buffer);
  unsigned char *twin;
  QUAY_TRY(find_twin(buffer, "quay_cuda_mirror_pointer", &twin));
  *out_pointer = twin;
  return QUAY_OK;
}

quay_status quay_cuda_mirror_flush(quay_buffer *buffer) {
  QUAY__REQUIRE(buffer);
  unsigned char *twin;
  QUAY_TRY(find_twin(buffer, "quay_cuda_mirror_flush", &twin));
  return quay_buffer_copy_in(buffer, twin, quay_buffer_size(buffer));
}

quay_status quay_cuda_mirror_invalidate(const quay_buffer *buffer) {
  QUAY__REQUIRE(buffer);
  unsigned char *twin;
  QUAY_TRY(find_twin(buffer, "quay_cuda_mirror_invalidate", &twin));
  return quay_buffer_copy_out(buffer, twin, quay_buffer_size(buffer));
}

quay_status quay_cuda_mirror_upload(quay_buffer *buffer, const void *source, uint64_t size) {
  QUAY__REQUIRE(buffer);
  if (size != 0)
    QUAY__REQUIRE(source);
  unsigned char *twin;
  QUAY_TRY(find_twin(buffer, "quay_cuda_mirror_upload", &twin));
  QUAY_TRY(check_size(buffer, size, "quay_cuda_mirror_upload"));
  if (quay_buffer_is_sealed(buffer))
    return quay_cuda_mirror_flush(buffer); /* which refuses, before the twin is touched */
  if (size != 0)
    quay__host_move(twin, source, size, 0);
  return quay_cuda_mirror_flush(buffer);
}

quay_status quay_cuda_mirror_download(const quay_buffer *buffer, void *destination, uint64_t size) {
  QUAY__REQUIRE(buffer);
  if (size != 0)
    QUAY__REQUIRE(destination);
  unsigned char *twin;
  QUAY_TRY(find_twin(buffer, "quay_cuda_mirror_download", &twin));
  QUAY_TRY(check_size(buffer, size, "quay_cuda_mirror_download"));
  QUAY_TRY(quay_cuda_mirror_invalidate(buffer));
  if (size != 0)
    quay__host_move(destination, twin, size, 0);
  return QUAY_OK;
}
