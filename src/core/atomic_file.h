/* Files that appear whole or not at all: a temporary file in the target's directory, renamed over
 * the target once it is complete. Knows nothing of buffers. */
#ifndef QUAY_CORE_ATOMIC_FILE_H
#define QUAY_CORE_ATOMIC_FILE_H

#include <quay/base.h>
#include <quay/status.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/component.h"

/* The functions are exported: the safetensors component and the program use them, which are apart
 * from the library in a shared build. */

/* A file being written. All zero but for descriptors of -1: none. */
typedef struct quay__atomic_file {
  int file;        /* descriptor of the temporary file, open for reading and writing */
  int directory;   /* of the target's directory, which may be renamed meanwhile */
  char *target;    /* absolute, symbolic links resolved; as it was in the beginning */
  char *temporary; /* the same, in the same directory */
  bool replaces;   /* there was a file before */
} quay__atomic_file;

#define QUAY__ATOMIC_FILE_NONE \
  { .file = -1, .directory = -1 }

/* Starts a file that is to become `path`. A symbolic link is followed: the file that it names is
 * replaced. `permissions` are as in quay_save_options. On error nothing is left behind and
 * `*out_file` is none.
 * Errors: INVALID_ARGUMENT (`path` names something that is no regular file), IO,
 * OUT_OF_HOST_MEMORY. */
QUAY__COMPONENT quay_status quay__atomic_file_begin(const char *path, uint32_t permissions,
                                                    quay__atomic_file *out_file);

/* Writes all of `size` bytes at `offset`. Several threads may write at once. On error the file is
 * still open: the caller aborts it. */
QUAY__COMPONENT quay_status quay__atomic_file_write(const quay__atomic_file *file, uint64_t offset,
                                                    const void *data, uint64_t size);

/* Puts the file in the target's place, after synchronising it with the disk if `sync` is set, and
 * the directory afterwards. Whatever the result, `*file` is none afterwards and no temporary file
 * is left. On error the target is as before, and the message says so; only if an existing file was
 * replaced and synchronising the directory fails, the new file is in place, as the message says. */
QUAY__COMPONENT quay_status quay__atomic_file_commit(quay__atomic_file *file, bool sync);

/* Gives the file up because of the thread's error, whose `status` it returns and to whose message
 * it adds what is in the target's place. For none it returns the status alone. */
QUAY__COMPONENT quay_status quay__atomic_file_give_up(quay__atomic_file *file, quay_status status);

/* Gives the file up. No-op for none. Keeps the thread's error and errno. */
QUAY__COMPONENT void quay__atomic_file_abort(quay__atomic_file *file);

#endif
