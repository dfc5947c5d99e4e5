/* DLPack on a device whose streams run late: what an export waits for, and what its deleter leaves
 * behind. The backend finds every access and free that nothing orders. */
#include <quay/dlpack.h>
#include <stdatomic.h>

#include "late_fixture.h"

/* Tests end with end(): what fails after a test fails nothing. */
TestSuite(dlpack_stream, .init = begin_manual);

enum {
  SIZE = 40
};

static quay_buffer *make_buffer(const char *spec) {
  quay_allocator *allocator = NULL;
  OK(quay_allocator_open(spec, &allocator));
  quay_buffer *buffer = NULL;
  OK(quay_buffer_create(allocator, QUAY_I16, 2, (int64_t[]){4, 5}, NULL, &buffer));
  quay_allocator_release(allocator);
  const unsigned char value = 7;
  OK(quay_buffer_fill(buffer, &value, 1));
  return buffer;
}

/* The program's own kernel on a buffer; adds 1 to every byte. It is as late as it can be. */
static void write_late(quay_stream *stream, quay_buffer *buffer, late_use *use) {
  quay_access access;
  OK(quay_access_begin(stream, &(quay_use){buffer, QUAY_READ_WRITE}, 1, &access));
  *use = (late_use){access.pointers[0], SIZE, QUAY_READ_WRITE};
  launch_on(stream, use);
  OK(quay_access_end(&access));
}

static quay_dl_managed_tensor_versioned *export_on(quay_stream *stream, quay_buffer *buffer) {
  const quay_dlpack_export_options options = {.stream = stream};
  quay_dl_managed_tensor_versioned *tensor = NULL;
  OK(quay_dlpack_export(buffer, &options, &tensor));
  return tensor;
}

/* The consumer's kernel, of which Quay is told nothing. */
static void consume(quay_stream *stream, const quay_dl_managed_tensor_versioned *tensor,
                    quay_use_mode mode, late_use *use) {
  *use = (late_use){(uint64_t)(uintptr_t)tensor->dl_tensor.data, SIZE, mode};
  launch_on(stream, use);
}

static void expect_all(uint64_t address, unsigned char value) {
  unsigned char bytes[SIZE];
  cr_assert(late_peek(address, bytes, SIZE));
  for (int i = 0; i < SIZE; i++)
    cr_expect_eq(bytes[i], value, "byte %d is %u, not %u", i, bytes[i], value);
}

Test(dlpack_stream, a_third_party_device_is_exported_with_its_number_and_index) {
  quay_buffer *buffer = make_buffer("late:1");
  quay_dl_managed_tensor_versioned *tensor = NULL;
  OK(quay_dlpack_export(buffer, NULL, &tensor));
  cr_expect_eq(tensor->dl_tensor.device.device_type, 12);
  cr_expect_eq(tensor->dl_tensor.device.device_id, 1);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
  end();
}

Test(dlpack_stream, pinned_memory_of_a_third_party_is_exported_as_host_memory) {
  quay_buffer *buffer = make_buffer("late:1,memory=pinned");
  quay_dl_managed_tensor_versioned *tensor = NULL;
  OK(quay_dlpack_export(buffer, NULL, &tensor));
  cr_expect_eq(tensor->dl_tensor.device.device_type, 1);
  cr_expect_eq(tensor->dl_tensor.device.device_id, 0);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
  end();
}

Test(dlpack_stream, an_export_without_a_stream_waits_for_recorded_work) {
  quay_buffer *buffer = make_buffer("late:0");
  quay_stream *producer = stream_new(0);
  late_use use;
  write_late(producer, buffer, &use);
  quay_dl_managed_tensor_versioned *tensor = NULL;
  OK(quay_dlpack_export(buffer, NULL, &tensor));
  expect_all((uint64_t)(uintptr_t)tensor->dl_tensor.data, 8);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
  quay_stream_release(producer);
  end();
}

Test(dlpack_stream, an_export_on_a_stream_orders_the_consumer_without_waiting) {
  quay_buffer *buffer = make_buffer("late:0");
  quay_stream *producer = stream_new(0);
  quay_stream *consumer = stream_new(0);
  late_use written;
  late_use consumed;
  write_late(producer, buffer, &written);
  quay_dl_managed_tensor_versioned *tensor = export_on(consumer, buffer);
  cr_expect_gt(late_queued(quay_stream_native(producer)), 0);
  consume(consumer, tensor, QUAY_READ_WRITE, &consumed);
  OK(quay_stream_synchronize(consumer));
  expect_all(written.address, 9);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
  quay_stream_release(producer);
  quay_stream_release(consumer);
  end();
}

Test(dlpack_stream, the_deleter_orders_later_work_after_the_consumers) {
  quay_buffer *buffer = make_buffer("late:0");
  quay_stream *consumer = stream_new(0);
  quay_stream *other = stream_new(0);
  late_use consumed;
  late_use written;
  quay_dl_managed_tensor_versioned *tensor = export_on(consumer, buffer);
  consume(consumer, tensor, QUAY_READ_WRITE, &consumed);
  tensor->deleter(tensor);
  write_late(other, buffer, &written);
  OK(quay_stream_synchronize(other));
  expect_all(written.address, 9);
  quay_buffer_release(buffer);
  quay_stream_release(consumer);
  quay_stream_release(other);
  end();
}

Test(dlpack_stream, memory_is_not_free_before_the_consumers_work_is_done) {
  quay_buffer *buffer = make_buffer("late:0");
  quay_stream *consumer = stream_new(0);
  late_use consumed;
  quay_dl_managed_tensor_versioned *tensor = export_on(consumer, buffer);
  consume(consumer, tensor, QUAY_READ, &consumed);
  quay_buffer_release(buffer);
  tensor->deleter(tensor);
  expect_no_violations();
  late_counts counts;
  late_count(&counts);
  cr_expect_eq(counts.run, counts.submitted - 1, "the deleter waited");
  OK(quay_stream_synchronize(consumer));
  OK(quay_collect(NULL));
  quay_stream_release(consumer);
  end();
}

Test(dlpack_stream, a_read_only_export_waits_for_writes_alone) {
  quay_buffer *buffer = make_buffer("late:0");
  OK(quay_buffer_seal(buffer));
  quay_stream *reader = stream_new(0);
  quay_stream *consumer = stream_new(0);
  quay_access access;
  OK(quay_access_begin(reader, &(quay_use){buffer, QUAY_READ}, 1, &access));
  const late_use use = {access.pointers[0], SIZE, QUAY_READ};
  launch_on(reader, &use);
  OK(quay_access_end(&access));
  late_use consumed;
  quay_dl_managed_tensor_versioned *tensor = export_on(consumer, buffer);
  consume(consumer, tensor, QUAY_READ, &consumed);
  OK(quay_stream_synchronize(consumer));
  cr_expect_gt(late_queued(quay_stream_native(reader)), 0);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
  OK(quay_stream_synchronize(reader));
  OK(quay_stream_synchronize(consumer));
  OK(quay_collect(NULL));
  quay_stream_release(reader);
  quay_stream_release(consumer);
  end();
}

Test(dlpack_stream, a_stream_of_another_device_is_refused) {
  quay_buffer *buffer = make_buffer("late:0");
  quay_stream *stranger = stream_new(2);
  const quay_dlpack_export_options options = {.stream = stranger};
  quay_dl_managed_tensor_versioned *tensor = (quay_dl_managed_tensor_versioned *)buffer;
  cr_expect_eq(quay_dlpack_export(buffer, &options, &tensor), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_not_null(strstr(quay_last_error()->message, "the stream is of the device late:2, but "
                                                        "the buffer is on late:0"),
                     "%s", quay_last_error()->message);
  cr_expect_null(tensor);
  quay_buffer_release(buffer);
  quay_stream_release(stranger);
  end();
}

static void count_errors(void *user, quay_log_level level, const char *message) {
  if (level == QUAY_LOG_ERROR && strstr(message, "exported tensor") != NULL)
    atomic_fetch_add((atomic_int *)user, 1);
}

Test(dlpack_stream, a_use_that_can_not_be_recorded_is_waited_for_and_reported) {
  atomic_int errors = 0;
  quay_log_set(count_errors, &errors, QUAY_LOG_ERROR);
  quay_buffer *buffer = make_buffer("late:0");
  quay_stream *consumer = stream_new(0);
  quay_stream *other = stream_new(0);
  late_use consumed;
  quay_dl_managed_tensor_versioned *tensor = export_on(consumer, buffer);
  consume(consumer, tensor, QUAY_READ, &consumed);
  quay_access open;
  OK(quay_access_begin(other, &(quay_use){buffer, QUAY_READ}, 1, &open));
  tensor->deleter(tensor);
  quay_log_set(NULL, NULL, QUAY_LOG_ERROR);
  cr_expect_eq(atomic_load(&errors), 1);
  cr_expect_eq(late_queued(quay_stream_native(consumer)), 0);
  quay_stats stats;
  OK(quay_allocator_stats(quay_buffer_allocator(buffer), &stats));
  cr_expect_eq(stats.error_count, 1);
  OK(quay_access_end(&open));
  quay_buffer_release(buffer);
  OK(quay_stream_synchronize(other));
  OK(quay_collect(NULL));
  quay_stream_release(consumer);
  quay_stream_release(other);
  end();
}
