/* The backend's entry in the registry: opening "mmap:DIRECTORY", and its line in the list of
 * devices. */
#include <errno.h>
#include <fcntl.h>

#include "core/error.h"
#include "core/os.h"
#include "core/registry.h"
#include "mmap/mmap_impl.h"

/* What the list of devices shows, since any directory will do. */
#define EXAMPLE_DIRECTORY "/tmp"

static quay_status check_directory(const char *spec, const char *directory) {
  struct stat status;
  if (quay__os_stat(directory, &status) != 0) {
    return quay__fail_errno(
        quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
        "opening \"%s\": mmap: takes an existing directory that can be written to; '%s'", spec,
        directory);
  }
  if (S_ISDIR(status.st_mode))
    return QUAY_OK;
  return quay__fail_errno(QUAY_STATUS_IO, QUAY__MMAP_NAME, ENOTDIR,
                          "opening \"%s\": '%s' is %s, a directory is needed", spec, directory,
                          quay__file_type_text(status.st_mode));
}

/* Allocates and frees a block, so that what stands in the way is told now: permissions, a read-only
 * file system, one that can't map. */
static quay_status probe(const char *spec, const char *directory) {
  quay__mapping *mapping = NULL;
  if (quay__mapping_block(directory, 1, 1, &mapping) != QUAY_OK) {
    return quay__error_append(" (the directory was probed with 1 byte when \"%s\" was opened)",
                              spec);
  }
  (void)quay__mapping_release(mapping);
  return QUAY_OK;
}

static quay_status mmap_open(void *user, const quay_spec_args *args,
                             quay_allocator **out_allocator) {
  (void)user;
  static const quay_spec_key keys[] = {{NULL, "a directory"}};
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  const char *directory = quay_spec_value(args, NULL);
  if (directory == NULL || directory[0] == '\0') {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "opening \"%s\": a directory for the files is needed, as in "
                          "\"mmap:/scratch\"",
                          args->spec);
  }
  QUAY_TRY(check_directory(args->spec, directory));
  /* One directory, one spelling; and the program may change its working directory. */
  char *absolute = quay__os_realpath(directory);
  if (absolute == NULL) {
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "opening \"%s\": following '%s' failed", args->spec, directory);
  }
  quay_status status = probe(args->spec, absolute);
  if (status == QUAY_OK)
    status = quay__mmap_allocator_create(absolute, out_allocator);
  quay__os_free(absolute);
  return status;
}

static quay_status mmap_device_info(void *user, size_t index, quay_device_info *out_info,
                                    bool *out_more) {
  (void)user;
  *out_more = index == 0;
  if (index != 0)
    return QUAY_OK;
  *out_info = (quay_device_info){
      .backend = QUAY__MMAP_NAME,
      .spec = "mmap:" EXAMPLE_DIRECTORY,
      .name = "files in a directory",
      .available = true,
      .reason = "",
      .type = QUAY_DEVICE_CPU,
  };
  const int file = quay__os_open(EXAMPLE_DIRECTORY, O_RDONLY | O_DIRECTORY, 0);
  if (file < 0) {
    out_info->available = false;
    out_info->reason = EXAMPLE_DIRECTORY " can't be used; name another directory";
    return QUAY_OK;
  }
  (void)quay__os_close(file);
  return QUAY_OK;
}

const quay_backend quay__backend_mmap = {
    .version = QUAY_BACKEND_VERSION,
    .struct_size = sizeof(quay_backend),
    .name = QUAY__MMAP_NAME,
    .open = mmap_open,
    .device_info = mmap_device_info,
};
