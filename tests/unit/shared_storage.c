/* Eight threads that make, view, copy, access and drop buffers of one storage and of many, over
 * streams that run late. ThreadSanitizer and late's detector look on. */
#include <pthread.h>

#include "late_core.h"

enum {
  THREADS = 8,
  ROUNDS = 40,
  PART = 256
};

static quay_buffer *shared, *constant;
static quay_allocator *memory, *peer_memory;

static void add_one(void *user, unsigned char *const *bytes) {
  const late_use *use = user;
  for (uint64_t i = 0; i < use->size; i++)
    bytes[0][i]++;
}

static void kernel(quay_stream *stream, quay_buffer *buffer, size_t count, late_use *use) {
  quay_access access;
  const quay_use uses[] = {{buffer, QUAY_READ_WRITE}, {constant, QUAY_READ}};
  MUST(quay_access_begin(stream, uses, count, &access));
  *use = (late_use){access.pointers[0], quay_buffer_size(buffer), QUAY_READ_WRITE};
  MUST(late_launch(quay_stream_native(stream), add_one, use, use, 1));
  MUST(quay_access_end(&access));
}

static void check_plus(quay_buffer *buffer, uint64_t first, unsigned plus) {
  unsigned char bytes[PART];
  MUST(quay_buffer_copy_out(buffer, bytes, PART));
  for (uint64_t i = 0; i < PART; i++)
    cr_assert_eq(bytes[i], (unsigned char)(pattern_byte(first + i, 1) + plus));
}

/* Each thread has a part of the shared storage, two streams, and buffers of its own, those of every
 * other thread on another device; all read `constant` and copy from it. */
static void *work(void *argument) {
  const uint64_t index = *(const uint64_t *)argument, first = index * PART;
  quay_stream *stream = late_stream_of((uint32_t)index % 2);
  quay_stream *local = late_stream_of(0);
  static late_use uses[THREADS][2 * ROUNDS];
  for (unsigned round = 0; round < ROUNDS; round++) {
    quay_buffer *part = late_view(shared, first, PART);
    kernel(local, part, 2, &uses[index][2 * round]);
    quay_buffer *own = NULL;
    MUST(quay_buffer_create(index % 2 == 0 ? memory : peer_memory, QUAY_U8, 1, (int64_t[]){PART},
                            NULL, &own));
    late_copy(stream, own, part);
    check_plus(own, first, round + 1);
    late_copy(local, own, constant);
    kernel(stream, own, 1, &uses[index][2 * round + 1]);
    if (round % 3 == 0)
      check_plus(own, 0, 1);
    quay_buffer_release(own);
    quay_buffer_release(part);
    if (round % 5 == 0)
      MUST(quay_collect(NULL));
  }
  MUST(quay_stream_synchronize(stream));
  MUST(quay_stream_synchronize(local));
  quay_stream_release(stream);
  quay_stream_release(local);
  return NULL;
}

static void run(bool ordered_free) {
  late_begin(&(late_options){
      .mode = LATE_THREADS, .max_delay_us = 30, .seed = 8, .ordered_free = ordered_free});
  memory = open_spec("late:0");
  peer_memory = open_spec("late:1");
  shared = pattern_buffer(memory, (uint64_t)THREADS * PART, 1);
  constant = pattern_buffer(memory, PART, 1);
  pthread_t threads[THREADS];
  uint64_t indices[THREADS];
  for (uint64_t i = 0; i < THREADS; i++) {
    indices[i] = i;
    cr_assert_eq(pthread_create(&threads[i], NULL, work, &indices[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  quay_buffer *all = late_view(shared, 0, PART);
  check_plus(all, 0, ROUNDS);
  quay_buffer_release(all);
  quay_buffer_release(shared);
  quay_buffer_release(constant);
  MUST(quay_allocator_synchronize(memory));
  MUST(quay_allocator_synchronize(peer_memory));
  quay_allocator_release(memory);
  quay_allocator_release(peer_memory);
  late_end();
}

Test(shared_storage, eight_threads_use_one_storage_and_many) {
  run(false);
}

Test(shared_storage, eight_threads_use_one_storage_and_many_with_ordered_free) {
  run(true);
}

/* All threads write the same bytes, each on its own stream: one after the other, never busy. */

static void *copy_over(void *source) {
  quay_stream *stream = late_stream_of(0);
  for (int i = 0; i < ROUNDS; i++)
    late_copy(stream, shared, source);
  quay_stream_release(stream);
  return NULL;
}

Test(shared_storage, copies_of_many_threads_into_one_buffer_take_turns) {
  late_begin(&(late_options){.mode = LATE_THREADS, .max_delay_us = 5, .seed = 8});
  shared = late_buffer("late:0", PART, 1);
  constant = late_buffer("late:0", PART, 2);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, copy_over, constant), 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  pattern_check_buffer(shared, 0, 2);
  MUST(quay_buffer_synchronize(shared));
  MUST(quay_buffer_synchronize(constant));
  quay_buffer_release(shared);
  quay_buffer_release(constant);
  late_end();
}

/* Copies between two halves of one storage in both directions at once: none waits for one that
 * waits for it, and each reads and writes a whole half. */

static void *copy_across_halves(void *argument) {
  const uint64_t index = *(const uint64_t *)argument;
  quay_stream *stream = late_stream_of(0);
  quay_buffer *halves[] = {late_view(shared, 0, PART), late_view(shared, PART, PART)};
  for (int i = 0; i < 20 * ROUNDS; i++)
    late_copy(stream, halves[index % 2], halves[(index + 1) % 2]);
  quay_buffer_release(halves[0]);
  quay_buffer_release(halves[1]);
  quay_stream_release(stream);
  return NULL;
}

Test(shared_storage, copies_within_one_storage_in_opposite_directions_do_not_block_each_other,
     .timeout = 60) {
  late_begin(&(late_options){.mode = LATE_THREADS, .max_delay_us = 5, .seed = 8});
  shared = late_buffer("late:0", 2 * PART, 1);
  pthread_t threads[THREADS];
  uint64_t indices[THREADS];
  for (uint64_t i = 0; i < THREADS; i++) {
    indices[i] = i;
    cr_assert_eq(pthread_create(&threads[i], NULL, copy_across_halves, &indices[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  unsigned char bytes[2 * PART];
  MUST(quay_buffer_copy_out(shared, bytes, sizeof bytes));
  cr_assert_arr_eq(bytes, bytes + PART, PART);
  const uint64_t first = bytes[0] == pattern_byte(0, 1) ? 0 : PART;
  for (uint64_t i = 0; i < PART; i++)
    cr_assert_eq(bytes[i], pattern_byte(first + i, 1));
  quay_buffer_release(shared);
  late_end();
}

/* Copies whose ranges overlap are done by the host, on return. On a stream they are uses of the
 * storage while they run, like any other. */

static void *copy_overlapping(void *argument) {
  const uint64_t index = *(const uint64_t *)argument;
  quay_stream *stream = late_stream_of(0);
  quay_buffer *low = late_view(shared, 0, PART), *high = late_view(shared, PART / 2, PART);
  quay_buffer *apart = late_view(shared, 4 * PART, PART);
  for (int i = 0; i < 4 * ROUNDS; i++) {
    if (index % 2 == 0) {
      late_copy(stream, high, low);
    } else if (index % 4 == 1) {
      late_copy(stream, apart, high);
    } else {
      const unsigned char byte = 7;
      MUST(quay_buffer_fill_on(high, &byte, 1, stream));
    }
  }
  MUST(quay_stream_synchronize(stream));
  quay_buffer_release(low);
  quay_buffer_release(high);
  quay_buffer_release(apart);
  quay_stream_release(stream);
  return NULL;
}

Test(shared_storage, copies_that_block_are_in_order_with_those_that_do_not, .timeout = 60) {
  late_begin(&(late_options){.mode = LATE_THREADS, .max_delay_us = 5, .seed = 8});
  shared = late_buffer("late:0", 8 * PART, 1);
  pthread_t threads[THREADS];
  uint64_t indices[THREADS];
  for (uint64_t i = 0; i < THREADS; i++) {
    indices[i] = i;
    cr_assert_eq(pthread_create(&threads[i], NULL, copy_overlapping, &indices[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  MUST(quay_buffer_synchronize(shared));
  quay_buffer_release(shared);
  late_end(); /* which finds what nothing orders */
}
