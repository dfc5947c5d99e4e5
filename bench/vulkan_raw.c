/* Copies by the raw Vulkan interface: every family of queues, every kind of host memory, in one
 * piece and in many, by one thread and by several, with what Quay puts around them and without.
 * Tells what the driver allows, and what a piece costs: `us` is the host's time in vkQueueSubmit
 * for each piece. The device is in vulkan_raw_device.c. */
#include "vulkan_raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RAW_MOST (512 * MIB)

enum {
  WAY_QUEUES = 4,
  THREADS = 8,
  UNDER_WAY = 3, /* a thread's pieces */
};

/* Ways to copy. */

typedef enum raw_pieces {
  RAW_SUBMITTED, /* each is submitted by itself */
  RAW_AT_ONCE,   /* each is a submission, and all are in one call */
  RAW_RECORDED,  /* all are in one command buffer for each queue */
  RAW_THREADS,   /* by several threads, which have a few under way and wait for the oldest one */
} raw_pieces;

typedef struct raw_way {
  raw_queue *queues[WAY_QUEUES]; /* that pieces take turns on */
  uint32_t queue_count;
  raw_kind kind;
  uint64_t piece; /* bytes */
  raw_pieces pieces;
  bool barriers; /* before and after each */
  bool exported; /* the timelines can be exported */
} raw_way;

typedef struct raw_result {
  double gbps, submit_us;
} raw_result;

static uint64_t piece_count(const raw *all, const raw_way *way) {
  return (all->size - 1) / way->piece + 1;
}

static void record_barrier(const raw *all, VkCommandBuffer commands) {
  const VkMemoryBarrier barrier = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
      .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT,
      .dstAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT,
  };
  all->api.vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0,
                                1, &barrier, 0, NULL, 0, NULL);
}

static void record_piece(const raw *all, const raw_way *way, bool into, uint64_t number,
                         VkCommandBuffer commands) {
  const uint64_t at = number * way->piece;
  const VkBufferCopy region = {
      .srcOffset = at,
      .dstOffset = at,
      .size = least(all->size - at, way->piece),
  };
  VkBuffer here = all->here[way->kind].buffer, there = all->there.buffer;
  if (way->barriers)
    record_barrier(all, commands);
  all->api.vkCmdCopyBuffer(commands, into ? here : there, into ? there : here, 1, &region);
  if (way->barriers)
    record_barrier(all, commands);
}

/* The command buffers, in the order of their submission; how many. */
static uint64_t record(const raw *all, const raw_way *way, bool into, VkCommandBuffer *out) {
  static const VkCommandBufferBeginInfo begin = {.sType =
                                                     VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  const uint64_t pieces = piece_count(all, way);
  const uint64_t count = way->pieces == RAW_RECORDED ? way->queue_count : pieces;
  for (uint64_t i = 0; i < count; i++) {
    const VkCommandBufferAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = way->queues[i % way->queue_count]->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1,
    };
    must(all->api.vkAllocateCommandBuffers(all->device, &info, &out[i]),
         "vkAllocateCommandBuffers");
    must(all->api.vkBeginCommandBuffer(out[i], &begin), "vkBeginCommandBuffer");
    for (uint64_t piece = i; piece < pieces; piece += count)
      record_piece(all, way, into, piece, out[i]);
    if (!way->barriers) /* for the host, which reads it in the end */
      record_barrier(all, out[i]);
    must(all->api.vkEndCommandBuffer(out[i]), "vkEndCommandBuffer");
  }
  return count;
}

static void wait_for_value(const raw *all, const raw_queue *queue, bool exported, uint64_t value) {
  const VkSemaphoreWaitInfo info = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
      .semaphoreCount = 1,
      .pSemaphores = &queue->timelines[exported],
      .pValues = &value,
  };
  must(all->api.vkWaitSemaphores(all->device, &info, UINT64_MAX), "vkWaitSemaphores");
}

static void wait_for(const raw *all, const raw_way *way) {
  for (uint32_t i = 0; i < way->queue_count; i++)
    wait_for_value(all, way->queues[i], way->exported, way->queues[i]->values[way->exported]);
}

/* A submission, with all that it points to. */
typedef struct raw_submission {
  VkSubmitInfo info;
  VkTimelineSemaphoreSubmitInfo values;
  uint64_t value;
} raw_submission;

static void prepare(const raw_way *way, raw_queue *queue, const VkCommandBuffer *commands,
                    VkSubmitInfo *info, VkTimelineSemaphoreSubmitInfo *values, uint64_t *value) {
  *value = ++queue->values[way->exported];
  *values = (VkTimelineSemaphoreSubmitInfo){
      .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
      .signalSemaphoreValueCount = 1,
      .pSignalSemaphoreValues = value,
  };
  *info = (VkSubmitInfo){
      .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
      .pNext = values,
      .commandBufferCount = 1,
      .pCommandBuffers = commands,
      .signalSemaphoreCount = 1,
      .pSignalSemaphores = &queue->timelines[way->exported],
  };
}

/* One command buffer; its value of the timeline. */
static uint64_t submit_one(const raw *all, const raw_way *way, raw_queue *queue,
                           const VkCommandBuffer *commands) {
  raw_submission one;
  (void)pthread_mutex_lock(&queue->lock);
  prepare(way, queue, commands, &one.info, &one.values, &one.value);
  must(all->api.vkQueueSubmit(queue->handle, 1, &one.info, VK_NULL_HANDLE), "vkQueueSubmit");
  (void)pthread_mutex_unlock(&queue->lock);
  return one.value;
}

static void submit_at_once(const raw *all, const raw_way *way, const VkCommandBuffer *commands,
                           uint64_t count) {
  VkSubmitInfo *infos = calloc(count, sizeof *infos);
  VkTimelineSemaphoreSubmitInfo *values = calloc(count, sizeof *values);
  uint64_t *numbers = calloc(count, sizeof *numbers);
  if (infos == NULL || values == NULL || numbers == NULL)
    bench_failed("no memory");
  for (uint64_t i = 0; i < count; i++)
    prepare(way, way->queues[0], &commands[i], &infos[i], &values[i], &numbers[i]);
  must(all->api.vkQueueSubmit(way->queues[0]->handle, (uint32_t)count, infos, VK_NULL_HANDLE),
       "vkQueueSubmit");
  free(infos);
  free(values);
  free(numbers);
}

typedef struct raw_part {
  const raw *all;
  const raw_way *way;
  const VkCommandBuffer *commands;
  uint64_t count;
  uint64_t first; /* and every THREADS-th one from there on */
  double submitting;
} raw_part;

static void *submit_part(void *argument) {
  raw_part *part = argument;
  uint64_t values[UNDER_WAY] = {0};
  raw_queue *queues[UNDER_WAY] = {NULL};
  part->submitting = 0;
  for (uint64_t i = part->first, turn = 0; i < part->count; i += THREADS, turn++) {
    const uint64_t at = turn % UNDER_WAY;
    if (queues[at] != NULL)
      wait_for_value(part->all, queues[at], part->way->exported, values[at]);
    queues[at] = part->way->queues[i % part->way->queue_count];
    const double began = bench_now();
    values[at] = submit_one(part->all, part->way, queues[at], &part->commands[i]);
    part->submitting += bench_now() - began;
  }
  for (int at = 0; at < UNDER_WAY; at++) {
    if (queues[at] != NULL)
      wait_for_value(part->all, queues[at], part->way->exported, values[at]);
  }
  return NULL;
}

/* The threads' seconds in submissions. */
static double submit_by_threads(const raw *all, const raw_way *way, const VkCommandBuffer *commands,
                                uint64_t count) {
  pthread_t threads[THREADS];
  raw_part parts[THREADS];
  double submitting = 0;
  for (uint64_t i = 0; i < THREADS; i++) {
    parts[i] = (raw_part){all, way, commands, count, i, 0};
    if (pthread_create(&threads[i], NULL, submit_part, &parts[i]) != 0)
      bench_failed("no thread");
  }
  for (int i = 0; i < THREADS; i++) {
    (void)pthread_join(threads[i], NULL);
    submitting += parts[i].submitting;
  }
  return submitting;
}

/* Submits all of them; the host's seconds for that. */
static double submit(const raw *all, const raw_way *way, const VkCommandBuffer *commands,
                     uint64_t count) {
  if (way->pieces == RAW_THREADS)
    return submit_by_threads(all, way, commands, count);
  const double began = bench_now();
  if (way->pieces == RAW_AT_ONCE) { /* on the first queue */
    submit_at_once(all, way, commands, count);
  } else {
    for (uint64_t i = 0; i < count; i++)
      (void)submit_one(all, way, way->queues[i % way->queue_count], &commands[i]);
  }
  return bench_now() - began;
}

static raw_result measure(const raw *all, const raw_way *way, bool into, int runs) {
  double seconds[RUNS_MAX], submits[RUNS_MAX];
  const uint64_t most = piece_count(all, way) + way->queue_count;
  VkCommandBuffer *commands = calloc(most, sizeof(VkCommandBuffer));
  if (commands == NULL)
    bench_failed("no memory");
  const uint64_t count = record(all, way, into, commands);
  for (int i = -1; i < runs; i++) { /* the first one warms up */
    const double began = bench_now();
    const double took = submit(all, way, commands, count);
    wait_for(all, way);
    if (i >= 0) {
      seconds[i] = bench_now() - began;
      submits[i] = took;
    }
  }
  for (uint64_t i = 0; i < count; i++) {
    all->free_commands(all->device, way->queues[i % way->queue_count]->pool, 1, &commands[i]);
  }
  free(commands);
  return (raw_result){
      .gbps = (double)all->size / bench_median(seconds, runs) * 1e-9,
      .submit_us = bench_median(submits, runs) / (double)count * 1e6,
  };
}

/* In and out again, with every byte checked. */
static void print_way(const raw *all, const settings *set, const limits *limit, const char *name,
                      const raw_way *way) {
  static uint64_t seed = 100;
  const raw_memory *here = &all->here[way->kind];
  if (here->buffer == VK_NULL_HANDLE || way->queue_count == 0)
    return;
  bench_write(here->bytes, all->size, ++seed);
  const raw_result in = measure(all, way, true, set->runs);
  memset(here->bytes, 0x5a, all->size);
  const raw_result out = measure(all, way, false, set->runs);
  /* Memory that is not cached is read very slowly: its beginning has to do. */
  bench_compare(here->bytes, way->kind == RAW_HOST ? least(all->size, 4 * MIB) : all->size, seed,
                name);
  printf("  %-58s %6.2f %5.3f %6.1f  %6.2f %5.3f %6.1f\n", name, in.gbps, in.gbps / limit->in,
         in.submit_us, out.gbps, out.gbps / limit->out, out.submit_us);
  (void)fflush(stdout);
}

/* The family for copies alone that Quay takes; NULL: there is none. */
static raw_family *copy_family(raw *all) {
  for (uint32_t i = 0; i < all->family_count; i++) {
    raw_family *family = &all->families[i];
    if (family->count != 0 && (family->flags & VK_QUEUE_TRANSFER_BIT) != 0 &&
        (family->flags & (VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT)) == 0)
      return family;
  }
  return NULL;
}

static void print_families(raw *all, const settings *set, const limits *limit) {
  static const char *const kinds[RAW_KINDS] = {"imported", "host-visible", "host-cached"};
  char name[96];
  for (uint32_t i = 0; i < all->family_count; i++) {
    for (uint32_t queue = 0; queue < all->families[i].count; queue++) {
      raw_way way = {.queues = {&all->families[i].queues[queue]},
                     .queue_count = 1,
                     .piece = all->size,
                     .pieces = RAW_SUBMITTED};
      (void)snprintf(name, sizeof name, "family %u, queue %u, in one piece, imported", i, queue);
      print_way(all, set, limit, name, &way);
      for (int kind = 1; kind < RAW_KINDS && queue == 0; kind++) {
        way.kind = (raw_kind)kind;
        (void)snprintf(name, sizeof name, "family %u, queue %u, in one piece, %s", i, queue,
                       kinds[kind]);
        print_way(all, set, limit, name, &way);
      }
    }
  }
}

static void print_together(raw *all, const settings *set, const limits *limit, raw_family *copies) {
  raw_way way = {.queue_count = copies->count, .pieces = RAW_SUBMITTED};
  for (uint32_t i = 0; i < copies->count; i++)
    way.queues[i] = &copies->queues[i];
  way.piece = (all->size - 1) / way.queue_count + 1;
  print_way(all, set, limit, "all queues for copies, a part each", &way);
  for (uint32_t i = 0; i < all->family_count; i++) {
    if (all->families[i].count == 0 || &all->families[i] == copies)
      continue;
    char name[96];
    (void)snprintf(name, sizeof name, "one queue for copies and one of family %u, half each", i);
    way.queues[1] = &all->families[i].queues[0];
    way.queue_count = 2;
    way.piece = (all->size - 1) / 2 + 1;
    print_way(all, set, limit, name, &way);
  }
}

static void print_pieces(raw *all, const settings *set, const limits *limit, raw_family *copies) {
  static const struct {
    const char *name;
    raw_pieces pieces;
    bool barriers, exported, all_queues;
  } ways[] = {
      {"recorded together", RAW_RECORDED, false, false, false},
      {"recorded together, barriers around each", RAW_RECORDED, true, false, false},
      {"submitted in one call", RAW_AT_ONCE, false, false, false},
      {"submitted one by one", RAW_SUBMITTED, false, false, false},
      {"one by one, timeline for export", RAW_SUBMITTED, false, true, false},
      {"one by one, timeline for export, barriers", RAW_SUBMITTED, true, true, false},
      {"one by one, all queues for copies", RAW_SUBMITTED, false, false, true},
      {"one by one, all queues, export, barriers", RAW_SUBMITTED, true, true, true},
      {"8 threads", RAW_THREADS, false, false, false},
      {"8 threads, export, barriers", RAW_THREADS, true, true, false},
      {"8 threads, all queues", RAW_THREADS, false, false, true},
      {"8 threads, all queues, export, barriers", RAW_THREADS, true, true, true},
  };
  char name[96];
  for (uint64_t piece = 2 * MIB; piece <= 8 * MIB; piece *= 2) {
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
      raw_way way = {.queues = {&copies->queues[0], &copies->queues[1]},
                     .queue_count = ways[i].all_queues ? copies->count : 1,
                     .piece = piece,
                     .pieces = ways[i].pieces,
                     .barriers = ways[i].barriers,
                     .exported = ways[i].exported && all->can_export};
      if (all->here[RAW_IMPORTED].buffer == VK_NULL_HANDLE)
        way.kind = RAW_HOST;
      (void)snprintf(name, sizeof name, "pieces of %llu MiB, %s", (unsigned long long)(piece / MIB),
                     ways[i].name);
      print_way(all, set, limit, name, &way);
    }
  }
}

void bench_raw(quay_device *device, const settings *set, const limits *limit) {
  static raw all;
  const uint64_t size = least(set->size, RAW_MOST);
  printf(
      "\nvkCmdCopyBuffer by the raw interface, %llu MiB, medians of %d: GB/s, of the page-locked "
      "limit,\nmicroseconds of the host for a submission; in and out\n",
      (unsigned long long)(size / MIB), set->runs);
  raw_open(&all, device, size);
  print_families(&all, set, limit);
  raw_family *copies = copy_family(&all);
  if (copies != NULL) {
    print_together(&all, set, limit, copies);
    print_pieces(&all, set, limit, copies);
  }
  raw_close(&all);
}
