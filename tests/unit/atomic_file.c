/* Files that appear whole or not at all. What is saved in them is tested where it is written. */
#include "core/atomic_file.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <quay/backend.h>
#include <quay/quay.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/skip.h"

static char folder[256];

static void remove_folder(void);

static void make_folder(void) {
  const char *parent = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/quay-atomic-XXXXXX", parent != NULL ? parent : "/tmp");
  cr_assert_not_null(mkdtemp(folder));
  quay_test_skip_ends_with(remove_folder);
  cr_assert_eq(chdir(folder), 0);
  umask(022);
}

/* Names in the folder, without those of the system. */
static int count_files(void) {
  DIR *directory = opendir(folder);
  cr_assert_not_null(directory);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      ++count;
  }
  closedir(directory);
  return count;
}

static void remove_folder(void) {
  DIR *directory = opendir(folder);
  if (directory == NULL)
    return;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    if (unlink(entry->d_name) != 0)
      rmdir(entry->d_name);
  }
  closedir(directory);
  cr_expect_eq(rmdir(folder), 0);
}

TestSuite(atomic_file, .init = make_folder, .fini = remove_folder);

static void write_text(const char *path, const char *text, mode_t mode) {
  FILE *file = fopen(path, "w");
  cr_assert_not_null(file);
  fputs(text, file);
  cr_assert_eq(fclose(file), 0);
  cr_assert_eq(chmod(path, mode), 0);
}

static void expect_text(const char *path, const char *expected) {
  char text[256] = "";
  FILE *file = fopen(path, "r");
  cr_assert_not_null(file, "%s: %s", path, strerror(errno));
  const size_t size = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[size] = '\0';
  cr_expect_str_eq(text, expected);
}

static mode_t mode_of(const char *path) {
  struct stat status;
  cr_assert_eq(stat(path, &status), 0);
  return status.st_mode & 07777;
}

static void save(const char *path, const char *text, uint32_t permissions) {
  quay__atomic_file file;
  quay_status status = quay__atomic_file_begin(path, permissions, &file);
  if (status == QUAY_OK)
    status = quay__atomic_file_write(&file, 0, text, strlen(text));
  if (status == QUAY_OK)
    status = quay__atomic_file_commit(&file, true);
  cr_assert_eq(status, QUAY_OK, "%s", quay_last_error()->message);
}

static void expect_begin_fails(const char *path, quay_status expected, const char *part) {
  quay__atomic_file file;
  const int before = count_files();
  cr_expect_eq(quay__atomic_file_begin(path, 0, &file), expected);
  const char *message = quay_last_error()->message;
  cr_expect_not_null(strstr(message, part), "'%s' is not in: %s", part, message);
  cr_expect_eq(file.file, -1);
  cr_expect_eq(count_files(), before);
}

Test(atomic_file, a_new_file_appears_with_commit_and_not_before) {
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("new", 0, &file), QUAY_OK);
  cr_assert_eq(quay__atomic_file_write(&file, 0, "whole", 5), QUAY_OK);
  cr_expect_neq(access("new", F_OK), 0);
  cr_assert_eq(quay__atomic_file_commit(&file, true), QUAY_OK);
  expect_text("new", "whole");
  cr_expect_eq(count_files(), 1);
}

Test(atomic_file, an_old_file_stays_until_commit) {
  write_text("old", "before", 0644);
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("old", 0, &file), QUAY_OK);
  cr_assert_eq(quay__atomic_file_write(&file, 0, "after", 5), QUAY_OK);
  expect_text("old", "before");
  cr_assert_eq(quay__atomic_file_commit(&file, false), QUAY_OK);
  expect_text("old", "after");
  cr_expect_eq(count_files(), 1);
}

Test(atomic_file, abort_leaves_nothing) {
  write_text("old", "before", 0644);
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("old", 0, &file), QUAY_OK);
  cr_assert_eq(quay__atomic_file_write(&file, 0, "after", 5), QUAY_OK);
  quay__atomic_file_abort(&file);
  quay__atomic_file_abort(&file);
  expect_text("old", "before");
  cr_expect_eq(count_files(), 1);
}

Test(atomic_file, writes_may_come_in_any_order) {
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("new", 0, &file), QUAY_OK);
  cr_assert_eq(quay__atomic_file_write(&file, 3, "def", 3), QUAY_OK);
  cr_assert_eq(quay__atomic_file_write(&file, 0, "abc", 3), QUAY_OK);
  cr_assert_eq(quay__atomic_file_write(&file, 0, NULL, 0), QUAY_OK);
  cr_assert_eq(quay__atomic_file_commit(&file, false), QUAY_OK);
  expect_text("new", "abcdef");
}

Test(atomic_file, a_write_past_the_largest_offset_is_an_io_error) {
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("new", 0, &file), QUAY_OK);
  cr_expect_eq(quay__atomic_file_write(&file, INT64_MAX, "ab", 2), QUAY_STATUS_IO);
  cr_expect_str_eq(quay_last_error()->native_name, "EFBIG");
  cr_expect_eq(quay__atomic_file_write(&file, UINT64_MAX, "ab", 2), QUAY_STATUS_IO);
  quay__atomic_file_abort(&file);
}

Test(atomic_file, a_new_file_has_the_usual_permissions) {
  save("new", "x", 0);
  cr_expect_eq(mode_of("new"), 0644);
}

Test(atomic_file, asked_permissions_go_through_the_umask) {
  save("new", "x", 0660);
  cr_expect_eq(mode_of("new"), 0640);
}

Test(atomic_file, the_permissions_of_the_old_file_are_kept_whatever_the_umask) {
  write_text("old", "before", 0666);
  save("old", "x", 0);
  cr_expect_eq(mode_of("old"), 0666);
}

Test(atomic_file, a_set_user_id_bit_is_not_kept) {
  write_text("old", "before", 04755);
  save("old", "x", 0);
  cr_expect_eq(mode_of("old"), 0755);
}

Test(atomic_file, an_old_file_without_permissions_keeps_none) {
  write_text("old", "before", 0);
  save("old", "x", 0);
  cr_expect_eq(mode_of("old"), 0);
}

Test(atomic_file, asked_permissions_win_over_those_of_the_old_file) {
  write_text("old", "before", 0666);
  save("old", "x", 0600);
  cr_expect_eq(mode_of("old"), 0600);
}

Test(atomic_file, permissions_with_other_bits_are_refused) {
  quay__atomic_file file;
  cr_expect_eq(quay__atomic_file_begin("new", 04755, &file), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(count_files(), 0);
}

Test(atomic_file, a_symbolic_link_is_followed) {
  write_text("real", "before", 0600);
  cr_assert_eq(symlink("real", "link"), 0);
  save("link", "after", 0);
  struct stat status;
  cr_assert_eq(lstat("link", &status), 0);
  cr_expect(S_ISLNK(status.st_mode), "the link itself was replaced");
  expect_text("real", "after");
}

Test(atomic_file, a_dangling_symbolic_link_is_refused) {
  cr_assert_eq(symlink("nowhere", "link"), 0);
  expect_begin_fails("link", QUAY_STATUS_IO, "symbolic link");
}

Test(atomic_file, a_loop_of_symbolic_links_is_refused) {
  cr_assert_eq(symlink("b", "a"), 0);
  cr_assert_eq(symlink("a", "b"), 0);
  expect_begin_fails("a", QUAY_STATUS_IO, "ELOOP");
}

Test(atomic_file, a_directory_is_refused) {
  cr_assert_eq(mkdir("sub", 0755), 0);
  expect_begin_fails("sub", QUAY_STATUS_INVALID_ARGUMENT, "a directory");
  expect_begin_fails("sub/", QUAY_STATUS_INVALID_ARGUMENT, "a directory");
  expect_begin_fails(".", QUAY_STATUS_INVALID_ARGUMENT, "a directory");
  expect_begin_fails("/", QUAY_STATUS_INVALID_ARGUMENT, "a directory");
}

Test(atomic_file, a_fifo_is_refused_at_once) {
  cr_assert_eq(mkfifo("fifo", 0600), 0);
  expect_begin_fails("fifo", QUAY_STATUS_INVALID_ARGUMENT, "a FIFO");
}

Test(atomic_file, a_device_is_refused) {
  expect_begin_fails("/dev/null", QUAY_STATUS_INVALID_ARGUMENT, "a character device");
}

Test(atomic_file, a_missing_directory_is_named) {
  expect_begin_fails("missing/new", QUAY_STATUS_IO, "'missing'");
}

Test(atomic_file, a_path_without_a_name_is_refused) {
  expect_begin_fails("new/", QUAY_STATUS_INVALID_ARGUMENT, "without a file's name");
  expect_begin_fails("", QUAY_STATUS_INVALID_ARGUMENT, "without a file's name");
}

Test(atomic_file, a_file_in_the_place_of_a_directory_is_refused) {
  write_text("plain", "x", 0644);
  expect_begin_fails("plain/new", QUAY_STATUS_IO, "ENOTDIR");
}

Test(atomic_file, a_relative_path_is_that_of_the_beginning) {
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("new", 0, &file), QUAY_OK);
  cr_assert_eq(chdir("/"), 0);
  cr_expect_eq(quay__atomic_file_commit(&file, true), QUAY_OK);
  cr_assert_eq(chdir(folder), 0);
  expect_text("new", "");
}

Test(atomic_file, a_commit_that_fails_leaves_the_target_as_it_was) {
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("new", 0, &file), QUAY_OK);
  /* Somebody makes a directory of that name meanwhile. */
  cr_assert_eq(mkdir("new", 0755), 0);
  cr_expect_eq(quay__atomic_file_commit(&file, true), QUAY_STATUS_IO);
  cr_expect_not_null(strstr(quay_last_error()->message, "new' was not made"), "%s",
                     quay_last_error()->message);
  cr_expect_eq(file.file, -1);
  cr_expect_eq(count_files(), 1);
}

Test(atomic_file, a_commit_that_fails_says_that_the_old_file_is_as_it_was) {
  write_text("old", "old", 0644);
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("old", 0, &file), QUAY_OK);
  cr_assert_eq(unlink(file.temporary), 0);
  cr_expect_eq(quay__atomic_file_commit(&file, true), QUAY_STATUS_IO);
  cr_expect_not_null(strstr(quay_last_error()->message, "old' is as it was"), "%s",
                     quay_last_error()->message);
  expect_text("old", "old");
}

Test(atomic_file, a_directory_that_is_renamed_meanwhile_gets_the_file_and_keeps_no_temporary_one) {
  cr_assert_eq(mkdir("before", 0755), 0);
  for (int commits = 0; commits < 2; ++commits) {
    quay__atomic_file file;
    cr_assert_eq(quay__atomic_file_begin("before/new", 0, &file), QUAY_OK);
    cr_assert_eq(rename("before", "after"), 0);
    cr_assert_eq(quay__atomic_file_write(&file, 0, "new", 3), QUAY_OK);
    if (commits != 0) {
      cr_expect_eq(quay__atomic_file_commit(&file, true), QUAY_OK);
    } else {
      quay__atomic_file_abort(&file);
    }
    cr_assert_eq(rename("after", "before"), 0);
  }
  expect_text("before/new", "new");
  cr_expect_eq(unlink("before/new"), 0);
  cr_expect_eq(rmdir("before"), 0, "something was left in it");
}

Test(atomic_file, giving_up_none_leaves_the_error_alone) {
  quay__atomic_file file = QUAY__ATOMIC_FILE_NONE;
  (void)quay_error_set(QUAY_STATUS_IO, "", 0, NULL, "what was wrong");
  cr_expect_eq(quay__atomic_file_give_up(&file, QUAY_STATUS_IO), QUAY_STATUS_IO);
  cr_expect_str_eq(quay_last_error()->message, "what was wrong");
}

Test(atomic_file, a_write_beyond_the_process_s_limit_is_an_error_and_no_signal) {
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("new", 0, &file), QUAY_OK);
  struct rlimit before;
  cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  cr_assert_neq(signal(SIGXFSZ, SIG_DFL), SIG_ERR);
  const struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  cr_expect_eq(quay__atomic_file_write(&file, (1 << 20) - 1, "ab", 2), QUAY_STATUS_IO);
  cr_expect_str_eq(quay_last_error()->native_name, "EFBIG");
  cr_expect_eq(quay__atomic_file_write(&file, (1 << 20) - 2, "ab", 2), QUAY_OK);
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
  quay__atomic_file_abort(&file);
  cr_expect_eq(count_files(), 0);
}

Test(atomic_file, a_temporary_file_that_is_gone_is_reported_by_commit) {
  quay__atomic_file file;
  cr_assert_eq(quay__atomic_file_begin("new", 0, &file), QUAY_OK);
  cr_assert_eq(unlink(file.temporary), 0);
  cr_expect_eq(quay__atomic_file_commit(&file, false), QUAY_STATUS_IO);
  cr_expect_str_eq(quay_last_error()->native_name, "ENOENT");
}

Test(atomic_file, a_directory_that_may_not_be_written_to_is_named) {
  if (geteuid() == 0)
    quay_test_skip("user", "the superuser may write everywhere");
  cr_assert_eq(mkdir("locked", 0555), 0);
  expect_begin_fails("locked/new", QUAY_STATUS_IO, "EACCES");
}
