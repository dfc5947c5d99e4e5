/* quay copy: file to backend to file, in bounded memory. The new file appears whole or not at all,
 * also when the program is told to stop. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/atomic_file.h"
#include "program.h"
#include "progress.h"
#include "signals.h"
#include "text.h"

/* Bytes that are under way at a time: one block of the backend, and one of host memory where the
 * backend's can't be written to a file as it is. */
#define BLOCK_SIZE (16u << 20)

typedef struct copy_options {
  const char *source, *destination;
  const char *via; /* NULL: the default allocator */
  bool direct, no_progress;
} copy_options;

/* What is under way. */
typedef struct file_transfer {
  quay_buffer *source; /* the mapped file */
  quay_buffer *block;  /* of the backend */
  void *host_block;    /* NULL where `block` can be written from where it is */
  quay__atomic_file file;
  progress_bar progress;
} file_transfer;

static exit_status fail_stopped(void) {
  return fail("stopped by signal %d; nothing was written", signals_asked());
}

static exit_status allocate_blocks(file_transfer *transfer, quay_allocator *allocator) {
  const uint64_t size = quay_buffer_size(transfer->source);
  const int64_t shape[] = {size < BLOCK_SIZE ? (int64_t)size : BLOCK_SIZE};
  if (quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &transfer->block) != QUAY_OK) {
    return fail_quay();
  }
  const bool plain = quay_buffer_kind(transfer->block) == QUAY_MEMORY_PAGEABLE &&
                     quay_buffer_host_accessible(transfer->block);
  if (plain)
    return EXIT_DONE;
  transfer->host_block = malloc((size_t)shape[0] + 1);
  return transfer->host_block != NULL ? EXIT_DONE : fail_memory();
}

/* Takes the blocks on the disk beforehand, so that a disk that is too full is known at once. Where
 * the file system can't, it is known when it is full. */
static exit_status reserve(const file_transfer *transfer, const char *path) {
  const uint64_t size = quay_buffer_size(transfer->source);
  if (size == 0 || fallocate(transfer->file.file, 0, 0, (off_t)size) == 0)
    return EXIT_DONE;
  if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG)
    return EXIT_DONE;
  return fail("cannot write '%s': no room for %" PRIu64 " bytes: %s%s", path, size, strerror(errno),
              errno == EFBIG ? "; ulimit -f tells how large the process may make files" : "");
}

/* Between two files the library may touch the pages of the source's mapping, which then count as
 * memory of this process; read through a host block they do not. */
static quay_status fill_block(file_transfer *transfer, uint64_t offset, uint64_t size,
                              quay_buffer *window) {
  if (quay_buffer_kind(window) != QUAY_MEMORY_FILE) {
    return quay_buffer_copy_region(window, 0, transfer->source, offset, size, NULL);
  }
  quay_buffer *from = NULL;
  QUAY_TRY(quay_buffer_view(transfer->source, offset, size, &from));
  quay_status status = quay_buffer_copy_out(from, transfer->host_block, size);
  if (status == QUAY_OK)
    status = quay_buffer_copy_in(window, transfer->host_block, size);
  quay_buffer_release(from);
  return status;
}

/* The bytes of the block at an address that write(2) may read. */
static quay_status empty_block(file_transfer *transfer, const quay_buffer *window, uint64_t size,
                               const void **out_bytes) {
  if (transfer->host_block == NULL)
    return quay_buffer_host_bytes(window, out_bytes, NULL);
  *out_bytes = transfer->host_block;
  return quay_buffer_copy_out(window, transfer->host_block, size);
}

/* Copies may keep pages of the mapping in this process's memory. */
static quay_status forget_block(const file_transfer *transfer, uint64_t offset, uint64_t size) {
  quay_buffer *from = NULL;
  QUAY_TRY(quay_buffer_view(transfer->source, offset, size, &from));
  const quay_status status = quay_buffer_advise(from, QUAY_ADVICE_DONT_NEED);
  quay_buffer_release(from);
  return status;
}

static quay_status move_block(file_transfer *transfer, uint64_t offset, uint64_t size) {
  const void *bytes = NULL;
  quay_buffer *window = NULL;
  QUAY_TRY(quay_buffer_view(transfer->block, 0, size, &window));
  quay_status status = fill_block(transfer, offset, size, window);
  if (status == QUAY_OK)
    status = empty_block(transfer, window, size, &bytes);
  if (status == QUAY_OK)
    status = quay__atomic_file_write(&transfer->file, offset, bytes, size);
  if (status == QUAY_OK)
    status = forget_block(transfer, offset, size);
  quay_buffer_release(window);
  return status;
}

static exit_status move_all(file_transfer *transfer) {
  const uint64_t total = quay_buffer_size(transfer->source);
  for (uint64_t offset = 0; offset < total; offset += BLOCK_SIZE) {
    if (signals_asked() != 0)
      return fail_stopped();
    const uint64_t rest = total - offset;
    const uint64_t size = rest < BLOCK_SIZE ? rest : BLOCK_SIZE;
    if (move_block(transfer, offset, size) != QUAY_OK)
      return fail_quay();
    progress_update(&transfer->progress, offset + size);
  }
  if (signals_asked() != 0)
    return fail_stopped();
  return quay__atomic_file_commit(&transfer->file, true) == QUAY_OK ? EXIT_DONE : fail_quay();
}

static exit_status transfer_file(const copy_options *options, quay_allocator *allocator,
                                 file_transfer *transfer) {
  const quay_map_options mapping = {.direct = options->direct};
  if (quay_map_file(options->source, &mapping, &transfer->source) != QUAY_OK)
    return fail_quay();
  exit_status status = allocate_blocks(transfer, allocator);
  if (status != EXIT_DONE)
    return status;
  signals_catch();
  if (quay__atomic_file_begin(options->destination, 0, &transfer->file) != QUAY_OK) {
    return fail_quay();
  }
  status = reserve(transfer, options->destination);
  if (status != EXIT_DONE)
    return status;
  progress_begin(&transfer->progress, !options->no_progress, quay_buffer_size(transfer->source));
  status = move_all(transfer);
  progress_end(&transfer->progress);
  return status;
}

/* The new file is in place by now: nothing here needs memory that may be lacking. */
static exit_status print_summary(uint64_t bytes, const char *backend, double seconds) {
  char size[TEXT_SIZE_MAX], name[512];
  text_of_size(bytes, size);
  text_print(backend, name, sizeof name);
  printf("%s through %s, %.3f s, %.3f GB/s\n", size, name, seconds,
         seconds > 0 ? (double)bytes / seconds * 1e-9 : 0);
  return finish_output();
}

static exit_status copy(const copy_options *options, quay_allocator *allocator) {
  const double begin = now_seconds();
  file_transfer transfer = {.file = QUAY__ATOMIC_FILE_NONE};
  exit_status status = transfer_file(options, allocator, &transfer);
  const uint64_t bytes = quay_buffer_size(transfer.source);
  quay__atomic_file_abort(&transfer.file);
  free(transfer.host_block);
  quay_buffer_release(transfer.block);
  quay_buffer_release(transfer.source);
  if (status == EXIT_DONE) {
    status = print_summary(bytes, quay_allocator_spec(allocator), now_seconds() - begin);
  }
  return status;
}

/* EXIT_DONE with a source of NULL: the help was asked for. */
static exit_status parse(int argc, char **argv, copy_options *out) {
  enum {
    VIA = 'v',
    DIRECT = 'd',
    NO_PROGRESS = 'n'
  };
  static const struct option options[] = {{"via", required_argument, NULL, VIA},
                                          {"direct", no_argument, NULL, DIRECT},
                                          {"no-progress", no_argument, NULL, NO_PROGRESS},
                                          {"help", no_argument, NULL, OPTION_HELP},
                                          {0}};
  int option;
  while ((option = next_option(&command_copy, argc, argv, options)) != OPTION_END) {
    if (option == OPTION_BAD)
      return EXIT_USAGE;
    if (option == OPTION_HELP)
      return EXIT_DONE;
    if (option == VIA)
      out->via = optarg;
    if (option == DIRECT)
      out->direct = true;
    if (option == NO_PROGRESS)
      out->no_progress = true;
  }
  if (optind + 2 > argc) {
    return fail_usage(&command_copy, "copy: %s is named",
                      optind == argc ? "no file" : "no destination");
  }
  if (optind + 2 < argc) {
    return fail_usage(&command_copy, "copy: unexpected argument '%s'", argv[optind + 2]);
  }
  out->source = argv[optind];
  out->destination = argv[optind + 1];
  return EXIT_DONE;
}

static exit_status run(int argc, char **argv) {
  copy_options options = {.source = NULL};
  const exit_status parsed = parse(argc, argv, &options);
  if (parsed != EXIT_DONE)
    return parsed;
  if (options.source == NULL)
    return print_help(&command_copy);
  quay_allocator *allocator = NULL;
  if (quay_allocator_open(options.via, &allocator) != QUAY_OK)
    return fail_quay();
  const exit_status status = copy(&options, allocator);
  quay_allocator_release(allocator);
  return status;
}

const subcommand command_copy = {
    .name = "copy",
    .summary = "Copy a file through the memory of a backend.",
    .usage = "quay copy SRC DST [--via SPEC] [--direct] [--no-progress]",
    .details =
        "  --via SPEC     through what, such as cpu or cuda:0 (default: $QUAY_BACKEND, else "
        "cpu)\n"
        "  --direct       read SRC with direct I/O where the file system can: for a file that is\n"
        "                 not in the page cache, which is not filled with it then\n"
        "  --no-progress  draw no progress bar on the terminal\n"
        "  -h, --help     print this help\n\n"
        "DST appears complete or not at all: a temporary file beside it takes its place.\n",
    .run = run,
};
