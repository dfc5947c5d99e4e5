/* What stands in for the CUDA backend where it is not built in, whether or not it is here. */
#include <criterion/criterion.h>
#include <string.h>

#include "support/status.h"

/* The stub under other names, beside the real backend. */
#define quay__backend_cuda          stub_backend
#define quay__cuda_shutdown         stub_shutdown
#define quay__cuda_collect          stub_collect
#define quay_cuda_adopt             stub_adopt
#define quay_cuda_release           stub_release
#define quay_cuda_pointer           stub_pointer
#define quay_cuda_export            stub_export
#define quay_cuda_import            stub_import
#define quay_cuda_ipc_export        stub_ipc_export
#define quay_cuda_ipc_import        stub_ipc_import
#define quay_cuda_mirror_pointer    stub_mirror_pointer
#define quay_cuda_mirror_flush      stub_mirror_flush
#define quay_cuda_mirror_invalidate stub_mirror_invalidate
#define quay_cuda_mirror_upload     stub_mirror_upload
#define quay_cuda_mirror_download   stub_mirror_download
#define quay_cuda_device            stub_device
#define quay_cuda_device_uuid       stub_device_uuid
#define quay_cuda_health            stub_health
#define quay_cuda_stream_wrap       stub_stream_wrap
#define quay_cuda_stream            stub_stream
#include "cuda/stub.c" /* NOLINT(bugprone-suspicious-include) */

#define CHECK_NOT_BUILT_IN(call)                  \
  do {                                            \
    CHECK_FAILS(call, QUAY_STATUS_UNAVAILABLE);   \
    CHECK_MESSAGE("not built into this library"); \
    CHECK_MESSAGE("QUAY_CUDA=ON");                \
  } while (0)

Test(cuda_stub, opening_says_that_it_is_not_built_in_and_what_to_do) {
  const quay_spec_args args = {.name = "cuda", .spec = "cuda:0"};
  quay_allocator *allocator = (quay_allocator *)&allocator;
  CHECK_NOT_BUILT_IN(stub_backend.open(stub_backend.user, &args, &allocator));
  cr_assert_null(allocator);
}

Test(cuda_stub, there_is_nothing_to_collect) {
  cr_assert_eq(stub_collect(), 0);
}

Test(cuda_stub, the_list_of_devices_has_one_line_with_the_reason) {
  quay_device_info info;
  bool more = false;
  CHECK_OK(stub_backend.device_info(stub_backend.user, 0, &info, &more));
  cr_assert(more);
  cr_assert_not(info.available);
  cr_assert_not_null(strstr(info.reason, "not built into this library"));
  CHECK_OK(stub_backend.device_info(stub_backend.user, 1, &info, &more));
  cr_assert_not(more);
}

Test(cuda_stub, every_function_of_the_header_that_can_fail_says_so) {
  quay_raw_buffer raw = {.size = 7};
  quay_cuda_memory memory = {.pointer = 7};
  uint64_t pointer = 7;
  void *twin = &raw;
  quay_device *device = (quay_device *)&raw;
  quay_stream *stream = (quay_stream *)&raw;
  uint8_t uuid[16] = {7};
  quay_health health = QUAY_HEALTH_OK;
  CHECK_NOT_BUILT_IN(quay_cuda_adopt(NULL, 1, 2, NULL, NULL, &raw));
  cr_assert_eq(raw.size, 0);
  CHECK_NOT_BUILT_IN(quay_cuda_release(&raw, &memory));
  cr_assert_eq(memory.pointer, 0);
  CHECK_NOT_BUILT_IN(quay_cuda_pointer(NULL, &pointer));
  cr_assert_eq(pointer, 0);
  quay_cuda_shared shared = {.file = 7};
  quay_cuda_ipc ipc = {.size = 7};
  CHECK_NOT_BUILT_IN(quay_cuda_export(NULL, &shared));
  cr_assert_eq(shared.file, -1);
  raw.size = 7;
  CHECK_NOT_BUILT_IN(quay_cuda_import(NULL, &shared, &raw));
  cr_assert_eq(raw.size, 0);
  CHECK_NOT_BUILT_IN(quay_cuda_ipc_export(NULL, &ipc));
  cr_assert_eq(ipc.size, 0);
  raw.size = 7;
  CHECK_NOT_BUILT_IN(quay_cuda_ipc_import(NULL, &ipc, &raw));
  cr_assert_eq(raw.size, 0);
  CHECK_NOT_BUILT_IN(quay_cuda_mirror_pointer(NULL, &twin));
  cr_assert_null(twin);
  CHECK_NOT_BUILT_IN(quay_cuda_mirror_flush(NULL));
  CHECK_NOT_BUILT_IN(quay_cuda_mirror_invalidate(NULL));
  CHECK_NOT_BUILT_IN(quay_cuda_mirror_upload(NULL, &raw, 1));
  CHECK_NOT_BUILT_IN(quay_cuda_mirror_download(NULL, &raw, 1));
  CHECK_NOT_BUILT_IN(quay_cuda_device(0, &device));
  cr_assert_null(device);
  CHECK_NOT_BUILT_IN(quay_cuda_device_uuid(NULL, uuid));
  cr_assert_eq(uuid[0], 0);
  CHECK_NOT_BUILT_IN(quay_cuda_health(NULL, &health));
  cr_assert_eq(health, QUAY_HEALTH_LOST);
  CHECK_NOT_BUILT_IN(quay_cuda_stream_wrap(0, 0, &stream));
  cr_assert_null(stream);
  cr_assert_eq(quay_cuda_stream(NULL), 0);
}
