/* Files that appear whole or not at all. The order is the one that survives a crash: write, sync
 * the file, rename, sync the directory. What is written is the caller's business. */
#include "core/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"

#define NAME_ATTEMPTS 16
/* Linux moves at most 0x7ffff000 bytes in one call (write(2)). */
#define WRITE_MAX 0x40000000u

static const quay__atomic_file none = QUAY__ATOMIC_FILE_NONE;

static const char *kind_of_file(mode_t mode) {
  if (S_ISDIR(mode))
    return "a directory";
  if (S_ISFIFO(mode))
    return "a FIFO";
  if (S_ISSOCK(mode))
    return "a socket";
  if (S_ISCHR(mode))
    return "a character device";
  if (S_ISBLK(mode))
    return "a block device";
  return "no regular file";
}

static bool is_symbolic_link(const char *path) {
  const int file = quay__os_open(path, O_PATH | O_NOFOLLOW, 0);
  if (file < 0)
    return false;
  struct stat status;
  const bool is_link = quay__os_fstat(file, &status) == 0 && S_ISLNK(status.st_mode);
  quay__os_close(file);
  return is_link;
}

static quay_status join_path(const char *directory, const char *name, char **out_path) {
  const size_t size = strlen(directory) + 1 + strlen(name) + 1;
  char *path = quay__os_malloc(size);
  if (path == NULL)
    return quay__fail_out_of_memory(size, "a path");
  snprintf(path, size, "%s/%s", strcmp(directory, "/") == 0 ? "" : directory, name);
  *out_path = path;
  return QUAY_OK;
}

/* The absolute path of a file that does not exist in a directory that does. */
static quay_status resolve_new(const char *path, char **out_target) {
  if (is_symbolic_link(path)) {
    return quay__fail_errno(
        QUAY_STATUS_IO, "", ENOENT,
        "cannot write '%s': it is a symbolic link to a file that does not exist", path);
  }
  const char *slash = strrchr(path, '/');
  const char *name = slash == NULL ? path : slash + 1;
  if (*name == '\0') {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "cannot write '%s': the path ends without a file's name", path);
  }
  char *parent = quay__os_strdup(slash == NULL ? "." : path);
  if (parent == NULL)
    return quay__fail_out_of_memory(strlen(path) + 1, "a path");
  if (slash != NULL)
    parent[slash == path ? 1 : slash - path] = '\0';
  char *directory = quay__os_realpath(parent);
  quay_status status;
  if (directory == NULL) {
    status = quay__fail_errno(quay__status_of_errno(errno), "", errno,
                              "cannot write '%s': its directory '%s' cannot be used", path, parent);
  } else {
    status = join_path(directory, name, out_target);
  }
  quay__os_free(directory);
  quay__os_free(parent);
  return status;
}

/* The target of `path`, and whether there is a file, with what permission bits. Set-user-ID bits
 * are not among them: the new file's owner may be another. */
static quay_status resolve(const char *path, char **out_target, bool *out_exists,
                           mode_t *out_mode) {
  *out_exists = false;
  *out_target = quay__os_realpath(path);
  if (*out_target == NULL) {
    if (errno == ENOENT)
      return resolve_new(path, out_target);
    return quay__fail_errno(quay__status_of_errno(errno), "", errno, "cannot write '%s'", path);
  }
  struct stat status;
  if (quay__os_stat(*out_target, &status) != 0) {
    return quay__fail_errno(quay__status_of_errno(errno), "", errno, "cannot write '%s'", path);
  }
  if (!S_ISREG(status.st_mode)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "cannot write '%s': it is %s, and only regular files can be replaced", path,
                      kind_of_file(status.st_mode));
  }
  *out_exists = true;
  *out_mode = status.st_mode & 0777;
  return QUAY_OK;
}

/* NULL if there is no memory, which is then the thread's error. `target` is absolute, so that it
 * has a slash. */
static char *directory_of(const char *target) {
  char *directory = quay__os_strdup(target);
  if (directory == NULL) {
    (void)quay__fail_out_of_memory(strlen(target) + 1, "a path");
    return NULL;
  }
  char *slash = strrchr(directory, '/');
  slash[slash == directory ? 1 : 0] = '\0';
  return directory;
}

static const char *name_of(const char *path) {
  return strrchr(path, '/') + 1; /* absolute */
}

static quay_status create_temporary(const char *path, mode_t mode, quay__atomic_file *file) {
  char *directory = directory_of(file->target);
  if (directory == NULL)
    return QUAY_STATUS_OUT_OF_HOST_MEMORY;
  quay_status status = QUAY_OK;
  file->directory = quay__os_open(directory, O_PATH | O_DIRECTORY, 0);
  if (file->directory < 0) {
    status =
        quay__fail_errno(quay__status_of_errno(errno), "", errno,
                         "cannot write '%s': its directory '%s' cannot be used", path, directory);
    quay__os_free(directory);
    return status;
  }
  for (int attempt = 0; attempt < NAME_ATTEMPTS; ++attempt) {
    char name[64];
    snprintf(name, sizeof name, ".quay-%016" PRIx64 ".tmp", quay__os_random());
    status = join_path(directory, name, &file->temporary);
    if (status != QUAY_OK)
      break;
    file->file = quay__os_open_at(file->directory, name, O_RDWR | O_CREAT | O_EXCL, mode);
    if (file->file >= 0)
      break;
    const int error_number = errno;
    quay__os_free(file->temporary);
    file->temporary = NULL;
    status = quay__fail_errno(quay__status_of_errno(error_number), "", error_number,
                              "cannot write '%s': no temporary file can be made in '%s'", path,
                              directory);
    if (error_number != EEXIST)
      break;
  }
  quay__os_free(directory);
  return file->file >= 0 ? QUAY_OK : status;
}

quay_status quay__atomic_file_begin(const char *path, uint32_t permissions,
                                    quay__atomic_file *out_file) {
  *out_file = none;
  if ((permissions & ~0777u) != 0) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "cannot write '%s': permissions %#" PRIo32 " are more than the bits 0777",
                      path, permissions);
  }
  quay__atomic_file file = none;
  mode_t mode = 0666;
  quay_status status = resolve(path, &file.target, &file.replaces, &mode);
  if (status != QUAY_OK)
    goto fail;
  const bool keep_mode = file.replaces && permissions == 0;
  if (permissions != 0)
    mode = (mode_t)permissions;
  status = create_temporary(path, mode, &file);
  if (status != QUAY_OK)
    goto fail;
  /* The umask does not apply to what the replaced file had already. */
  if (keep_mode && quay__os_fchmod(file.file, mode) != 0) {
    status = quay__fail_errno(QUAY_STATUS_IO, "", errno,
                              "cannot write '%s': its permissions cannot be kept", path);
    goto fail;
  }
  *out_file = file;
  return QUAY_OK;

fail:
  quay__atomic_file_abort(&file);
  return status;
}

quay_status quay__atomic_file_write(const quay__atomic_file *file, uint64_t offset,
                                    const void *data, uint64_t size) {
  uint64_t end;
  if (!quay__add(offset, size, &end) || end > INT64_MAX) {
    return quay__fail_errno(QUAY_STATUS_IO, "", EFBIG,
                            "cannot write %" PRIu64 " bytes at offset %" PRIu64 " of '%s'", size,
                            offset, file->target);
  }
  const char *bytes = data;
  uint64_t done = 0;
  while (done < size) {
    const size_t part = (size_t)quay__min(size - done, WRITE_MAX);
    const ssize_t count = quay__os_pwrite(file->file, bytes + done, part, offset + done);
    /* 0 for a part that is not empty: nothing would ever end the loop. */
    if (count <= 0) {
      const int error_number = count < 0 ? errno : EIO;
      return quay__fail_errno(quay__status_of_errno(error_number), "", error_number,
                              "cannot write %zu bytes at offset %" PRIu64 " of '%s'", part,
                              offset + done, file->target);
    }
    done += (uint64_t)count;
  }
  return QUAY_OK;
}

/* Opens the directory for its later fsync: before the rename, so that a failure changes nothing. */
static quay_status open_directory(const quay__atomic_file *file, int *out_directory) {
  *out_directory = quay__os_open_at(file->directory, ".", O_RDONLY | O_DIRECTORY, 0);
  if (*out_directory >= 0)
    return QUAY_OK;
  return quay__fail_errno(quay__status_of_errno(errno), "", errno,
                          "cannot write '%s': its directory cannot be opened, which "
                          "synchronising it needs",
                          file->target);
}

/* After the rename. A file that was not there before is taken away again if this fails; one that
 * was is gone for good. */
static quay_status sync_directory(const quay__atomic_file *file, int directory) {
  if (quay__os_fsync(directory) == 0)
    return QUAY_OK;
  /* Some file systems have nothing to synchronise for a directory. */
  if (errno == EINVAL || errno == ENOTSUP)
    return QUAY_OK;
  const int error_number = errno;
  const bool stays =
      file->replaces || quay__os_unlink_at(file->directory, name_of(file->target)) != 0;
  return quay__fail_errno(QUAY_STATUS_IO, "", error_number,
                          "%s '%s'%s: its directory cannot be synchronised",
                          stays ? "the new" : "cannot write", file->target,
                          stays ? " is in place, but may be lost if the machine fails" : "");
}

/* What is in the place of the target if the new file does not get there. */
static quay_status tell_unchanged(const quay__atomic_file *file) {
  return quay__error_append(file->replaces ? "; '%s' is as it was" : "; '%s' was not made",
                            file->target);
}

/* All that can fail without a change. `directory` is for what comes after it; -1 without `sync`. */
static quay_status put_in_place(quay__atomic_file *file, bool sync, int *out_directory) {
  if (sync)
    QUAY_TRY(open_directory(file, out_directory));
  if (sync && quay__os_fsync(file->file) != 0) {
    return quay__fail_errno(QUAY_STATUS_IO, "", errno,
                            "cannot write '%s': it cannot be synchronised with the disk",
                            file->target);
  }
  /* Network file systems report failed writes when the file is closed. */
  const int closed = quay__os_close(file->file);
  file->file = -1;
  if (closed != 0)
    return quay__fail_errno(QUAY_STATUS_IO, "", errno, "cannot write '%s'", file->target);
  if (quay__os_rename_at(file->directory, name_of(file->temporary), name_of(file->target)) != 0) {
    return quay__fail_errno(quay__status_of_errno(errno), "", errno,
                            "cannot put the finished file in the place of '%s'", file->target);
  }
  quay__os_free(file->temporary);
  file->temporary = NULL;
  return QUAY_OK;
}

quay_status quay__atomic_file_commit(quay__atomic_file *file, bool sync) {
  int directory = -1;
  quay_status status = put_in_place(file, sync, &directory);
  if (status != QUAY_OK) {
    (void)tell_unchanged(file);
  } else if (sync) {
    status = sync_directory(file, directory);
  }
  if (directory >= 0)
    quay__os_close(directory);
  quay__atomic_file_abort(file);
  return status;
}

quay_status quay__atomic_file_give_up(quay__atomic_file *file, quay_status status) {
  if (file->target != NULL)
    (void)tell_unchanged(file);
  quay__atomic_file_abort(file);
  return status;
}

void quay__atomic_file_abort(quay__atomic_file *file) {
  const int error_number = errno;
  if (file->file >= 0)
    quay__os_close(file->file);
  if (file->temporary != NULL &&
      quay__os_unlink_at(file->directory, name_of(file->temporary)) != 0 && errno != ENOENT) {
    quay_log(QUAY_LOG_ERROR, "the temporary file '%s' is left behind: %s", file->temporary,
             quay__errno_name(errno));
  }
  if (file->directory >= 0)
    quay__os_close(file->directory);
  quay__os_free(file->temporary);
  quay__os_free(file->target);
  *file = none;
  errno = error_number;
}
