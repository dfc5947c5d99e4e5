/* Fills, submitted to a stream: by the driver's memset where it has one for the pattern, else by
 * writing the pattern once and copying it, doubling each time. */
#include <string.h>

#include "core/checked.h"
#include "cuda/cuda_impl.h"

static bool one_byte(const unsigned char *pattern, size_t size) {
  for (size_t i = 1; i < size; i++) {
    if (pattern[i] != pattern[0])
      return false;
  }
  return true;
}

static bool aligned(quay__cu_pointer pointer, uint64_t alignment) {
  return (pointer & (alignment - 1)) == 0;
}

/* Writes the pattern once: in words where it lies on words, so that it takes few calls. */
static quay__cu_result write_once(const quay__cuda_api *api, quay__cu_stream stream,
                                  quay__cu_pointer pointer, const unsigned char *pattern,
                                  size_t size) {
  quay__cu_result result = QUAY__CU_SUCCESS;
  const size_t step =
      size % sizeof(uint32_t) == 0 && aligned(pointer, sizeof(uint32_t)) ? sizeof(uint32_t) : 1;
  for (size_t i = 0; i < size && result == QUAY__CU_SUCCESS; i += step) {
    if (step == 1) {
      result = api->cuMemsetD8Async(pointer + i, pattern[i], 1, stream);
    } else {
      uint32_t word;
      memcpy(&word, pattern + i, sizeof word);
      result = api->cuMemsetD32Async(pointer + i, word, 1, stream);
    }
  }
  return result;
}

static quay__cu_result fill_by_doubling(const quay__cuda_api *api, quay__cu_stream stream,
                                        quay__cu_pointer pointer, uint64_t size,
                                        const unsigned char *pattern, size_t pattern_size) {
  quay__cu_result result = write_once(api, stream, pointer, pattern, pattern_size);
  for (uint64_t done = pattern_size; done < size && result == QUAY__CU_SUCCESS;) {
    const uint64_t part = quay__min(done, size - done);
    result = api->cuMemcpyAsync(pointer + done, pointer, part, stream);
    done += part;
  }
  return result;
}

static quay__cu_result fill(const quay__cuda_api *api, quay__cu_stream stream,
                            quay__cu_pointer pointer, uint64_t size, const unsigned char *pattern,
                            size_t pattern_size) {
  if (one_byte(pattern, pattern_size))
    return api->cuMemsetD8Async(pointer, pattern[0], size, stream);
  if (pattern_size == sizeof(uint16_t) && aligned(pointer, sizeof(uint16_t))) {
    uint16_t value;
    memcpy(&value, pattern, sizeof value);
    return api->cuMemsetD16Async(pointer, value, size / sizeof value, stream);
  }
  if (pattern_size == sizeof(uint32_t) && aligned(pointer, sizeof(uint32_t))) {
    uint32_t value;
    memcpy(&value, pattern, sizeof value);
    return api->cuMemsetD32Async(pointer, value, size / sizeof value, stream);
  }
  return fill_by_doubling(api, stream, pointer, size, pattern, pattern_size);
}

quay_status quay__cuda_submit_fill(quay__cuda_device *device, quay__cu_stream stream,
                                   quay__cu_pointer pointer, uint64_t size, const void *pattern,
                                   size_t pattern_size) {
  const quay__cu_result result = fill(device->api, stream, pointer, size, pattern, pattern_size);
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  return quay__cuda_fail(device, result, "filling memory of %s", device->name);
}
