/* Reading and writing safetensors files: every rule of the format, and round trips. The program's
 * view of them is in tests/cli. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <quay/quay.h>
#include <quay/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "support/sanitized.h"
#include "support/skip.h"

static char folder[256];
static char path[300];

static void make_folder(void) {
  const char *parent = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/quay-safetensors-XXXXXX", parent != NULL ? parent : "/tmp");
  cr_assert_not_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/file.safetensors", folder);
}

static void remove_folder(void) {
  unlink(path);
  cr_expect_eq(rmdir(folder), 0, "something else was left in %s", folder);
}

TestSuite(safetensors, .init = make_folder, .fini = remove_folder);

/* Bytes that differ from their neighbours and are never 0. */
static unsigned char byte_at(uint64_t index) {
  return (unsigned char)(1 + (index * 37 + index / 251) % 255);
}

static void write_bytes(const void *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file);
  cr_assert_eq(fwrite(bytes, 1, size, file), size);
  cr_assert_eq(fclose(file), 0);
}

/* A file with a header of `header_size` bytes, which claims `claimed` ones, and `data_size` bytes.
 */
static void write_raw(const char *header, size_t header_size, uint64_t claimed, size_t data_size) {
  unsigned char *bytes = malloc(8 + header_size + data_size);
  cr_assert_not_null(bytes);
  for (size_t i = 0; i < 8; ++i)
    bytes[i] = (unsigned char)(claimed >> (8 * i));
  memcpy(bytes + 8, header, header_size);
  for (size_t i = 0; i < data_size; ++i)
    bytes[8 + header_size + i] = byte_at(i);
  write_bytes(bytes, 8 + header_size + data_size);
  free(bytes);
}

static void write_file(const char *header, size_t data_size) {
  write_raw(header, strlen(header), strlen(header), data_size);
}

/* Opening the file fails with `status` and a message that has all of `parts`, up to a NULL. */
static void expect_refused_with(quay_status status, const char *const *parts) {
  quay_safetensors *file = NULL;
  const quay_status got = quay_safetensors_open(path, NULL, &file);
  const char *message = quay_last_error()->message;
  cr_assert_eq(got, status, "%s: %s", quay_status_name(got), message);
  cr_assert_null(file);
  cr_expect_eq(quay_last_error()->status, status);
  cr_expect_not_null(strstr(message, path), "the path is not in: %s", message);
  for (; *parts != NULL; ++parts) {
    cr_expect_not_null(strstr(message, *parts), "'%s' is not in: %s", *parts, message);
  }
}

#define EXPECT_REFUSED(status, ...) \
  expect_refused_with((status), (const char *const[]){__VA_ARGS__, NULL})
#define EXPECT_MALFORMED(...) EXPECT_REFUSED(QUAY_STATUS_MALFORMED, __VA_ARGS__)

static quay_safetensors *open_file(void) {
  quay_safetensors *file = NULL;
  const quay_status status = quay_safetensors_open(path, NULL, &file);
  cr_assert_eq(status, QUAY_OK, "%s", quay_last_error()->message);
  return file;
}

/* The file's length. */

static long json_allocations_left; /* until one fails */

static void *allocate_for_json(size_t size) {
  return json_allocations_left-- == 0 ? NULL : malloc(size);
}

Test(safetensors, memory_that_runs_out_in_the_parser_is_no_fault_of_the_file) {
  static const char header[] =
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]}}      ";
  write_file(header, 6);
  json_set_alloc_funcs(allocate_for_json, free);
  quay_status status = QUAY_STATUS_BUSY;
  int out_of_memory = 0;
  for (long n = 0; status != QUAY_OK; n++) {
    quay_safetensors *file = NULL;
    json_allocations_left = n;
    status = quay_safetensors_open(path, NULL, &file);
    json_allocations_left = -1;
    quay_safetensors_close(file);
    out_of_memory += status == QUAY_STATUS_OUT_OF_HOST_MEMORY;
    const char *message = quay_last_error()->message;
    cr_expect(status == QUAY_OK || message[strlen(message) - 1] != ' ', "n=%ld: %s", n, message);
    cr_assert_lt(n, 1000);
  }
  cr_assert_gt(out_of_memory, 10);
}

Test(safetensors, open_refuses_an_empty_file) {
  write_bytes("", 0);
  EXPECT_MALFORMED("0 bytes", "too few");
}

Test(safetensors, open_refuses_a_file_of_seven_bytes) {
  write_bytes("\1\0\0\0\0\0\0", 7);
  EXPECT_MALFORMED("7 bytes", "too few");
}

Test(safetensors, open_refuses_a_header_longer_than_the_file) {
  write_raw("{}", 2, 3, 0);
  EXPECT_MALFORMED("3 bytes", "only 2 follow");
}

Test(safetensors, open_refuses_a_header_longer_than_the_limit) {
  write_raw("{}", 2, QUAY_SAFETENSORS_HEADER_MAX + 1u, 0);
  EXPECT_MALFORMED("100000001", "at most 100000000");
}

Test(safetensors, open_refuses_a_header_length_that_wraps_around) {
  write_raw("{}", 2, UINT64_MAX - 7, 0);
  EXPECT_MALFORMED("at most 100000000");
}

Test(safetensors, open_refuses_a_header_of_no_bytes) {
  write_raw("", 0, 0, 4);
  EXPECT_MALFORMED("does not begin with '{'");
}

Test(safetensors, open_takes_the_longest_header_that_is_allowed) {
  const size_t size = QUAY_SAFETENSORS_HEADER_MAX;
  char *header = malloc(size);
  cr_assert_not_null(header);
  memset(header, ' ', size);
  memcpy(header, "{}", 2);
  write_raw(header, size, size, 0);
  free(header);
  quay_safetensors *file = open_file();
  cr_expect_eq(quay_safetensors_count(file), 0u);
  quay_safetensors_close(file);
}

/* JSON. */

Test(safetensors, open_refuses_a_header_that_begins_with_a_space) {
  write_file(" {}", 0);
  EXPECT_MALFORMED("does not begin with '{'");
}

Test(safetensors, open_refuses_invalid_json_and_names_the_entry) {
  write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":}}",
             1);
  EXPECT_MALFORMED("no valid JSON", "'b'", "byte");
}

Test(safetensors, open_refuses_a_header_that_ends_early) {
  write_file("{\"a\":", 0);
  EXPECT_MALFORMED("no valid JSON", "'a'");
}

Test(safetensors, open_refuses_text_after_the_object) {
  write_file("{} x", 0);
  EXPECT_MALFORMED("no valid JSON");
}

Test(safetensors, open_refuses_a_nul_after_the_object) {
  write_raw("{}\0\0", 4, 4, 0);
  EXPECT_MALFORMED("no valid JSON");
}

Test(safetensors, open_takes_spaces_after_the_object) {
  write_file("{}      ", 0);
  quay_safetensors *file = open_file();
  cr_expect_eq(quay_safetensors_count(file), 0u);
  quay_safetensors_close(file);
}

Test(safetensors, open_refuses_text_that_is_no_utf8) {
  write_file("{\"\xC3\x28\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("no valid UTF-8", "byte 2");
}

Test(safetensors, open_refuses_a_nul_in_a_name) {
  write_file("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("no valid JSON");
}

Test(safetensors, open_refuses_two_tensors_of_one_name) {
  write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
             "\"twin\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"
             "\"twin\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
             2);
  EXPECT_MALFORMED("two entries named 'twin'");
}

Test(safetensors, open_refuses_a_key_that_stands_twice_in_a_tensor) {
  write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"dtype\":\"I8\",\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'dtype' stands twice", "'a'");
}

Test(safetensors, open_refuses_two_entries_of_metadata) {
  write_file("{\"__metadata__\":{},\"__metadata__\":{}}", 0);
  EXPECT_MALFORMED("two entries named '__metadata__'");
}

Test(safetensors, open_refuses_metadata_keys_that_stand_twice) {
  write_file("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0);
  EXPECT_MALFORMED("'k' stands twice", "'__metadata__'");
}

Test(safetensors, open_refuses_arrays_nested_too_deeply) {
  enum {
    DEPTH = 100000
  };
  char *header = malloc(DEPTH + 16);
  cr_assert_not_null(header);
  memcpy(header, "{\"a\":", 5);
  memset(header + 5, '[', DEPTH);
  write_raw(header, 5 + DEPTH, 5 + DEPTH, 0);
  free(header);
  EXPECT_MALFORMED("no valid JSON", "'a'");
}

/* Metadata. */

Test(safetensors, open_refuses_metadata_that_is_no_object) {
  write_file("{\"__metadata__\":[]}", 0);
  EXPECT_MALFORMED("__metadata__", "no object");
}

Test(safetensors, open_refuses_a_metadata_value_that_is_no_string) {
  write_file("{\"__metadata__\":{\"epoch\":3}}", 0);
  EXPECT_MALFORMED("'epoch'", "no string");
}

Test(safetensors, metadata_keeps_the_order_of_the_header) {
  write_file("{\"__metadata__\":{\"z\":\"1\",\"a\":\"\\u00e9\",\"m\":\"\"}}", 0);
  static const quay_safetensors_metadata expected[] = {{"z", "1"}, {"a", "\xC3\xA9"}, {"m", ""}};
  quay_safetensors *file = open_file();
  cr_assert_eq(quay_safetensors_metadata_count(file), 3u);
  for (size_t i = 0; i < 3; ++i) {
    quay_safetensors_metadata pair;
    cr_assert_eq(quay_safetensors_get_metadata(file, i, &pair), QUAY_OK);
    cr_expect_str_eq(pair.key, expected[i].key);
    cr_expect_str_eq(pair.value, expected[i].value);
  }
  quay_safetensors_close(file);
}

/* Entries. */

Test(safetensors, open_refuses_a_tensor_that_is_no_object) {
  write_file("{\"odd\":7}", 0);
  EXPECT_MALFORMED("'odd'", "no object");
}

Test(safetensors, open_refuses_a_tensor_without_a_dtype) {
  write_file("{\"odd\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'odd'", "no dtype");
}

Test(safetensors, open_refuses_a_tensor_without_a_shape) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'odd'", "no shape");
}

Test(safetensors, open_refuses_a_tensor_without_offsets) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1);
  EXPECT_MALFORMED("'odd'", "no data_offsets");
}

Test(safetensors, open_refuses_an_unknown_key) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"extra\":1}}", 1);
  EXPECT_MALFORMED("'odd'", "'extra'");
}

Test(safetensors, open_refuses_a_dtype_that_is_no_string) {
  write_file("{\"odd\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'odd'", "no string");
}

Test(safetensors, open_refuses_an_unknown_dtype) {
  write_file("{\"odd\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
  EXPECT_MALFORMED("'odd'", "'F31'");
}

Test(safetensors, open_refuses_a_dtype_in_lower_case) {
  write_file("{\"odd\":{\"dtype\":\"u8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'odd'", "'u8'");
}

Test(safetensors, open_refuses_a_dtype_that_only_quay_has) {
  write_file("{\"odd\":{\"dtype\":\"C128\",\"shape\":[1],\"data_offsets\":[0,16]}}", 16);
  EXPECT_MALFORMED("'odd'", "'C128'");
}

Test(safetensors, open_says_that_dtypes_below_a_byte_are_unsupported) {
  static const char *const names[] = {"F4", "F6_E2M3", "F6_E3M2"};
  for (size_t i = 0; i < 3; ++i) {
    char header[128];
    snprintf(header, sizeof header,
             "{\"odd\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,3]}}", names[i]);
    write_file(header, 3);
    EXPECT_REFUSED(QUAY_STATUS_UNSUPPORTED, "'odd'", names[i]);
  }
}

Test(safetensors, open_refuses_a_shape_that_is_no_array) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'odd'", "shape", "no array");
}

Test(safetensors, open_refuses_a_negative_extent) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[2,-1],\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'odd'", "negative extent", "-1");
}

Test(safetensors, open_refuses_an_extent_that_is_a_fraction) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'odd'", "no integer");
}

Test(safetensors, open_refuses_an_extent_that_is_a_string) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", 1);
  EXPECT_MALFORMED("'odd'", "no integer");
}

Test(safetensors, open_refuses_an_extent_above_63_bits) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,1]}}",
             1);
  EXPECT_MALFORMED("'odd'");
}

Test(safetensors, open_refuses_a_shape_whose_product_overflows) {
  write_file("{\"odd\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],"
             "\"data_offsets\":[0,0]}}",
             0);
  EXPECT_MALFORMED("'odd'", "2^63-1");
}

Test(safetensors, open_refuses_more_dimensions_than_a_buffer_has) {
  char header[512] = "{\"odd\":{\"dtype\":\"U8\",\"shape\":[1";
  for (int i = 1; i <= QUAY_RANK_MAX; ++i)
    strcat(header, ",1");
  strcat(header, "],\"data_offsets\":[0,1]}}");
  write_file(header, 1);
  EXPECT_REFUSED(QUAY_STATUS_UNSUPPORTED, "'odd'", "65 dimensions", "64");
}

Test(safetensors, open_refuses_offsets_that_are_no_pair) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1);
  EXPECT_MALFORMED("'odd'", "two integers");
}

Test(safetensors, open_refuses_offsets_that_are_fractions) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1e0]}}", 1);
  EXPECT_MALFORMED("'odd'", "no integers");
}

Test(safetensors, open_refuses_negative_offsets) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1);
  EXPECT_MALFORMED("'odd'", "negative data_offsets");
}

Test(safetensors, open_refuses_offsets_that_end_before_they_begin) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1);
  EXPECT_MALFORMED("'odd'", "end before they begin");
}

Test(safetensors, open_refuses_offsets_beyond_the_file) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]}}", 4);
  EXPECT_MALFORMED("'odd'", "beyond the file", "4 bytes of data");
}

Test(safetensors, open_refuses_offsets_at_the_end_of_the_number_range) {
  write_file("{\"odd\":{\"dtype\":\"U8\",\"shape\":[1],"
             "\"data_offsets\":[9223372036854775806,9223372036854775807]}}",
             1);
  EXPECT_MALFORMED("'odd'", "beyond the file");
}

Test(safetensors, open_refuses_a_size_that_is_not_that_of_the_shape) {
  write_file("{\"odd\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,7]}}", 7);
  EXPECT_MALFORMED("'odd'", "7 bytes", "take 8");
}

/* The layout of all tensors. */

Test(safetensors, open_refuses_tensors_that_overlap) {
  write_file("{\"low\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
             "\"high\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
             7);
  EXPECT_MALFORMED("'high'", "'low'", "inside");
}

Test(safetensors, open_refuses_two_tensors_on_the_same_bytes) {
  write_file("{\"one\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
             "\"two\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
             4);
  EXPECT_MALFORMED("'two'", "'one'", "inside");
}

Test(safetensors, open_refuses_an_empty_tensor_inside_another) {
  write_file("{\"full\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
             "\"none\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
             4);
  EXPECT_MALFORMED("'none'", "'full'");
}

Test(safetensors, open_refuses_a_hole_before_the_first_tensor) {
  write_file("{\"late\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[1,4]}}", 4);
  EXPECT_MALFORMED("'late'", "hole");
}

Test(safetensors, open_refuses_a_hole_between_tensors) {
  write_file("{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]},"
             "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
             4);
  EXPECT_MALFORMED("'b'", "hole");
}

Test(safetensors, open_refuses_bytes_after_the_last_tensor) {
  write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 5);
  EXPECT_MALFORMED("last 3 bytes");
}

Test(safetensors, open_refuses_data_without_tensors) {
  write_file("{}", 1);
  EXPECT_MALFORMED("last 1 bytes");
}

/* What can be opened. */

Test(safetensors, open_takes_a_file_without_tensors) {
  write_file("{}", 0);
  quay_safetensors *file = open_file();
  cr_expect_eq(quay_safetensors_count(file), 0u);
  cr_expect_eq(quay_safetensors_metadata_count(file), 0u);
  cr_expect_eq(quay_buffer_size(quay_safetensors_data(file)), 0u);
  quay_safetensors_close(file);
}

Test(safetensors, tensors_come_in_the_order_of_their_data) {
  write_file("{\"last\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]},"
             "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
             "\"first\":{\"dtype\":\"I16\",\"shape\":[2,1],\"data_offsets\":[0,4]}}",
             5);
  static const char *const names[] = {"first", "none", "last"};
  quay_safetensors *file = open_file();
  cr_assert_eq(quay_safetensors_count(file), 3u);
  for (size_t i = 0; i < 3; ++i) {
    quay_safetensors_tensor tensor;
    cr_assert_eq(quay_safetensors_get(file, i, &tensor), QUAY_OK);
    cr_expect_str_eq(tensor.name, names[i]);
  }
  quay_safetensors_close(file);
}

Test(safetensors, get_tells_everything_about_a_tensor) {
  const char *header = "{\"t\":{\"data_offsets\":[0,12],\"shape\":[3,1,2],\"dtype\":\"BF16\"}}";
  write_file(header, 12);
  quay_safetensors *file = open_file();
  quay_safetensors_tensor tensor;
  cr_assert_eq(quay_safetensors_get(file, 0, &tensor), QUAY_OK);
  cr_expect_str_eq(tensor.dtype_name, "BF16");
  cr_expect_eq(tensor.dtype, QUAY_BF16);
  cr_assert_eq(tensor.rank, 3);
  cr_expect_eq(tensor.shape[0], 3);
  cr_expect_eq(tensor.shape[1], 1);
  cr_expect_eq(tensor.shape[2], 2);
  cr_expect_eq(tensor.offset, 8 + strlen(header));
  cr_expect_eq(tensor.size, 12u);
  quay_safetensors_close(file);
}

Test(safetensors, get_refuses_an_index_past_the_end) {
  write_file("{}", 0);
  quay_safetensors *file = open_file();
  quay_safetensors_tensor tensor;
  cr_expect_eq(quay_safetensors_get(file, 0, &tensor), QUAY_STATUS_OUT_OF_RANGE);
  cr_expect_eq(quay_safetensors_get(file, 0, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_buffer *buffer = NULL;
  cr_expect_eq(quay_safetensors_buffer(file, 0, &buffer), QUAY_STATUS_OUT_OF_RANGE);
  quay_safetensors_metadata pair;
  cr_expect_eq(quay_safetensors_get_metadata(file, 0, &pair), QUAY_STATUS_OUT_OF_RANGE);
  quay_safetensors_close(file);
}

Test(safetensors, find_quotes_a_name_that_is_not_there) {
  write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
  quay_safetensors *file = open_file();
  size_t index = 7;
  cr_expect_eq(quay_safetensors_find(file, "b", &index), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_not_null(strstr(quay_last_error()->message, "'b'"));
  quay_safetensors_close(file);
}

Test(safetensors, null_arguments_are_refused) {
  quay_safetensors *file = NULL;
  size_t index = 0;
  cr_expect_eq(quay_safetensors_open(NULL, NULL, &file), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_safetensors_open(path, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_safetensors_find(NULL, "a", &index), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_safetensors_count(NULL), 0u);
  cr_expect_eq(quay_safetensors_metadata_count(NULL), 0u);
  cr_expect_null(quay_safetensors_data(NULL));
  quay_safetensors_close(NULL);
}

Test(safetensors, open_refuses_a_part_of_a_file_and_a_shared_mapping) {
  write_file("{}", 0);
  quay_safetensors *file = NULL;
  const quay_map_options shared = {.mode = QUAY_MAP_SHARED}, part = {.offset = 1};
  cr_expect_eq(quay_safetensors_open(path, &shared, &file), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_safetensors_open(path, &part, &file), QUAY_STATUS_INVALID_ARGUMENT);
}

Test(safetensors, open_of_a_missing_file_is_an_io_error) {
  quay_safetensors *file = NULL;
  cr_expect_eq(quay_safetensors_open(path, NULL, &file), QUAY_STATUS_IO);
  cr_expect_str_eq(quay_last_error()->native_name, "ENOENT");
}

static void expect_bytes(const quay_buffer *buffer, uint64_t first) {
  const uint64_t size = quay_buffer_size(buffer);
  unsigned char *bytes = malloc((size_t)size + 1);
  cr_assert_not_null(bytes);
  cr_assert_eq(quay_buffer_copy_out(buffer, bytes, size), QUAY_OK, "%s",
               quay_last_error()->message);
  for (uint64_t i = 0; i < size; ++i) {
    cr_assert_eq(bytes[i], byte_at(first + i), "byte %" PRIu64, i);
  }
  free(bytes);
}

Test(safetensors, buffers_are_sealed_views_of_one_mapping) {
  write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
             "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
             16);
  quay_safetensors *file = open_file();
  quay_buffer *a = NULL, *b = NULL;
  cr_assert_eq(quay_safetensors_buffer(file, 0, &a), QUAY_OK);
  cr_assert_eq(quay_safetensors_buffer(file, 1, &b), QUAY_OK);
  cr_expect_eq(quay_buffer_storage_id(a), quay_buffer_storage_id(b));
  cr_expect_eq(quay_buffer_storage_id(a), quay_buffer_storage_id(quay_safetensors_data(file)));
  cr_expect(quay_buffer_is_sealed(b));
  cr_expect_eq(quay_buffer_dtype(b), QUAY_F32);
  cr_expect_eq(quay_buffer_kind(b), QUAY_MEMORY_FILE);
  expect_bytes(a, 0);
  expect_bytes(b, 8);
  quay_buffer_release(a);
  quay_buffer_release(b);
  quay_safetensors_close(file);
}

Test(safetensors, buffers_outlive_the_file) {
  write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[0,64]}}", 64);
  quay_safetensors *file = open_file();
  quay_buffer *a = NULL;
  cr_assert_eq(quay_safetensors_buffer(file, 0, &a), QUAY_OK);
  quay_safetensors_close(file);
  cr_assert_eq(unlink(path), 0);
  expect_bytes(a, 0);
  quay_buffer_release(a);
}

/* Headers of every length modulo 8 put the data at every offset. */
Test(safetensors, misaligned_tensors_copy_and_refuse_typed_access) {
  char header[128] = "{\"t\":{\"dtype\":\"F64\",\"shape\":[3],\"data_offsets\":[0,24]}}";
  for (int i = 0; i < 8; ++i) {
    write_file(header, 24);
    const bool aligned = strlen(header) % 8 == 0;
    quay_safetensors *file = open_file();
    quay_buffer *view = NULL;
    quay_host_array array;
    cr_assert_eq(quay_safetensors_buffer(file, 0, &view), QUAY_OK);
    cr_expect_eq(quay_buffer_host_array(view, QUAY_F64, &array),
                 aligned ? QUAY_OK : QUAY_STATUS_MISALIGNED);
    expect_bytes(view, 0);
    quay_buffer_release(view);
    quay_safetensors_close(file);
    strcat(header, " ");
  }
}

Test(safetensors, a_file_truncated_after_opening_is_an_io_error_on_copy) {
  const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[100000],\"data_offsets\":[0,100000]}}";
  write_file(header, 100000);
  quay_safetensors *file = open_file();
  quay_buffer *a = NULL;
  cr_assert_eq(quay_safetensors_buffer(file, 0, &a), QUAY_OK);
  cr_assert_eq(truncate(path, 5000), 0);
  char *bytes = malloc(100000);
  cr_assert_not_null(bytes);
  cr_expect_eq(quay_buffer_copy_out(a, bytes, 100000), QUAY_STATUS_IO);
  free(bytes);
  quay_buffer_release(a);
  quay_safetensors_close(file);
}

Test(safetensors, copy_on_write_buffers_can_be_changed_without_changing_the_file) {
  write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
  const quay_map_options options = {.mode = QUAY_MAP_COPY_ON_WRITE};
  quay_safetensors *file = NULL;
  cr_assert_eq(quay_safetensors_open(path, &options, &file), QUAY_OK);
  quay_buffer *a = NULL;
  cr_assert_eq(quay_safetensors_buffer(file, 0, &a), QUAY_OK);
  cr_expect_not(quay_buffer_is_sealed(a));
  cr_expect_eq(quay_buffer_copy_in(a, "\xFE\xFD\xFC\xFB", 4), QUAY_OK);
  quay_buffer_release(a);
  quay_safetensors_close(file);
  file = open_file();
  cr_assert_eq(quay_safetensors_buffer(file, 0, &a), QUAY_OK);
  expect_bytes(a, 0);
  quay_buffer_release(a);
  quay_safetensors_close(file);
}

Test(safetensors, a_hundred_thousand_tensors_open_and_are_found_quickly) {
  enum {
    COUNT = 100000
  };
  char *header = malloc(COUNT * 96 + 16);
  cr_assert_not_null(header);
  size_t used = (size_t)sprintf(header, "{");
  for (int i = 0; i < COUNT; ++i) {
    /* Not in the order of their names. */
    used += (size_t)sprintf(header + used,
                            "%s\"layer.%d.w\":{\"dtype\":\"U8\",\"shape\":[1],"
                            "\"data_offsets\":[%d,%d]}",
                            i == 0 ? "" : ",", (int)((int64_t)i * 77777 % COUNT), i, i + 1);
  }
  used += (size_t)sprintf(header + used, "}");
  write_raw(header, used, used, COUNT);
  free(header);
  /* Time of the processor: the machine may be busy with other things. */
  const clock_t begin = clock();
  quay_safetensors *file = open_file();
  cr_assert_eq(quay_safetensors_count(file), (size_t)COUNT);
  for (int i = 0; i < COUNT; ++i) {
    char name[32];
    size_t index = 0;
    snprintf(name, sizeof name, "layer.%d.w", (int)((int64_t)i * 77777 % COUNT));
    cr_assert_eq(quay_safetensors_find(file, name, &index), QUAY_OK);
    cr_assert_eq(index, (size_t)i, "%s", name);
  }
  const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  quay_safetensors_close(file);
#ifdef SANITIZED
  (void)seconds;
#else
  cr_expect_lt(seconds, 2.0, "took %g s", seconds);
#endif
}

Test(safetensors, opening_and_listing_four_gibibytes_takes_little_memory) {
#ifdef SANITIZED
  quay_test_skip("memory", "a sanitizer takes memory of its own");
#endif
  const uint64_t size = UINT64_C(4) << 30;
  const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1024,1048576],"
                       "\"data_offsets\":[0,4294967296]}}";
  write_file(header, 0);
  cr_assert_eq(truncate(path, (off_t)(8 + strlen(header) + size)), 0);
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  quay_safetensors *file = open_file();
  quay_safetensors_tensor tensor;
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_safetensors_get(file, 0, &tensor), QUAY_OK);
  cr_assert_eq(quay_safetensors_buffer(file, 0, &buffer), QUAY_OK);
  getrusage(RUSAGE_SELF, &after);
  cr_expect_eq(tensor.size, size);
  /* In KiB. The runner's own part is not the library's. */
  cr_expect_lt(after.ru_maxrss - before.ru_maxrss, 4 * 1024);
  cr_expect_lt(after.ru_maxrss, 16 * 1024);
  quay_buffer_release(buffer);
  quay_safetensors_close(file);
}

/* Writing. */

static quay_buffer *make_buffer(quay_allocator *allocator, quay_dtype dtype, int32_t rank,
                                const int64_t *shape, uint64_t first) {
  uint64_t size = 0;
  cr_assert_eq(quay_dtype_array_size(dtype, rank, shape, &size), QUAY_OK);
  unsigned char *bytes = malloc((size_t)size + 1);
  cr_assert_not_null(bytes);
  for (uint64_t i = 0; i < size; ++i)
    bytes[i] = byte_at(first + i);
  quay_buffer *buffer = NULL;
  const quay_status status =
      quay_buffer_create_from_host(allocator, dtype, rank, shape, bytes, NULL, &buffer);
  cr_assert_eq(status, QUAY_OK, "%s", quay_last_error()->message);
  free(bytes);
  return buffer;
}

static void expect_saved(const quay_safetensors_entry *entries, size_t count) {
  const quay_status status = quay_safetensors_save(path, entries, count, NULL, 0, NULL);
  cr_assert_eq(status, QUAY_OK, "%s", quay_last_error()->message);
}

static void expect_not_saved(quay_status expected, const quay_safetensors_entry *entries,
                             size_t count, const char *part) {
  const quay_status status = quay_safetensors_save(path, entries, count, NULL, 0, NULL);
  const char *message = quay_last_error()->message;
  cr_expect_eq(status, expected, "%s: %s", quay_status_name(status), message);
  cr_expect_not_null(strstr(message, part), "'%s' is not in: %s", part, message);
  cr_expect_neq(access(path, F_OK), 0, "a file was left behind");
}

static const quay_dtype writable[] = {QUAY_BOOL, QUAY_U8,      QUAY_I8,      QUAY_U16,     QUAY_I16,
                                      QUAY_U32,  QUAY_I32,     QUAY_U64,     QUAY_I64,     QUAY_F16,
                                      QUAY_F32,  QUAY_F8_E4M3, QUAY_F8_E5M2, QUAY_F8_E8M0, QUAY_F64,
                                      QUAY_BF16, QUAY_C64};

#define WRITABLE_COUNT (sizeof writable / sizeof writable[0])

Test(safetensors, every_dtype_survives_writing_and_reading) {
  static const int64_t shape[] = {3, 5};
  quay_safetensors_entry entries[WRITABLE_COUNT];
  for (size_t i = 0; i < WRITABLE_COUNT; ++i) {
    entries[i] = (quay_safetensors_entry){.name = quay_dtype_name(writable[i]),
                                          .buffer = make_buffer(NULL, writable[i], 2, shape, i)};
  }
  expect_saved(entries, WRITABLE_COUNT);
  quay_safetensors *file = open_file();
  cr_assert_eq(quay_safetensors_count(file), WRITABLE_COUNT);
  for (size_t i = 0; i < WRITABLE_COUNT; ++i) {
    size_t index = 0;
    quay_safetensors_tensor tensor;
    quay_buffer *buffer = NULL;
    cr_assert_eq(quay_safetensors_find(file, entries[i].name, &index), QUAY_OK);
    cr_assert_eq(quay_safetensors_get(file, index, &tensor), QUAY_OK);
    cr_expect_eq(tensor.dtype, writable[i]);
    cr_expect_eq(tensor.rank, 2);
    cr_expect_eq(tensor.offset % quay_dtype_size(writable[i]), 0u, "%s", entries[i].name);
    cr_assert_eq(quay_safetensors_buffer(file, index, &buffer), QUAY_OK);
    expect_bytes(buffer, i);
    quay_buffer_release(buffer);
    quay_buffer_release((quay_buffer *)entries[i].buffer);
  }
  quay_safetensors_close(file);
}

Test(safetensors, scalars_and_empty_tensors_survive_writing_and_reading) {
  static const int64_t empty[] = {0, 7};
  quay_buffer *scalar = make_buffer(NULL, QUAY_F32, 0, NULL, 5);
  quay_buffer *none = make_buffer(NULL, QUAY_I64, 2, empty, 0);
  const quay_safetensors_entry entries[] = {{"scalar", scalar}, {"none", none}};
  expect_saved(entries, 2);
  quay_safetensors *file = open_file();
  quay_safetensors_tensor tensor;
  cr_assert_eq(quay_safetensors_get(file, 0, &tensor), QUAY_OK);
  cr_expect_str_eq(tensor.name, "none");
  cr_expect_eq(tensor.rank, 2);
  cr_expect_eq(tensor.size, 0u);
  cr_assert_eq(quay_safetensors_get(file, 1, &tensor), QUAY_OK);
  cr_expect_eq(tensor.rank, 0);
  cr_expect_eq(tensor.size, 4u);
  quay_safetensors_close(file);
  quay_buffer_release(scalar);
  quay_buffer_release(none);
}

Test(safetensors, tensors_larger_than_a_block_are_written_from_memory_and_from_files) {
  static const int64_t shape[] = {(9 << 20) + 3};
  quay_buffer *in_memory = make_buffer(NULL, QUAY_U8, 1, shape, 11);
  const quay_safetensors_entry entry = {"big", in_memory};
  expect_saved(&entry, 1);
  quay_buffer_release(in_memory);
  /* From the mapping of the very file that is replaced. */
  quay_safetensors *file = open_file();
  quay_buffer *in_file = NULL;
  cr_assert_eq(quay_safetensors_buffer(file, 0, &in_file), QUAY_OK);
  const quay_safetensors_entry again = {"again", in_file};
  expect_saved(&again, 1);
  quay_buffer_release(in_file);
  quay_safetensors_close(file);
  file = open_file();
  quay_safetensors_tensor tensor;
  cr_assert_eq(quay_safetensors_get(file, 0, &tensor), QUAY_OK);
  cr_expect_str_eq(tensor.name, "again");
  cr_assert_eq(quay_safetensors_buffer(file, 0, &in_file), QUAY_OK);
  expect_bytes(in_file, 11);
  quay_buffer_release(in_file);
  quay_safetensors_close(file);
}

Test(safetensors, names_and_metadata_of_any_text_survive) {
  static const char *const names[] = {"", "\xE5\x90\x8D\xE5\x89\x8D", "a\"b\\c/d",
                                      "line\nbreak\x01", "\xF0\x9F\xA6\x86"};
  static const quay_safetensors_metadata metadata[] = {{"format", "\"pt\""}, {"\xC3\xA9", ""}};
  static const int64_t shape[] = {2};
  quay_safetensors_entry entries[5];
  for (size_t i = 0; i < 5; ++i) {
    entries[i] = (quay_safetensors_entry){names[i], make_buffer(NULL, QUAY_U8, 1, shape, i)};
  }
  cr_assert_eq(quay_safetensors_save(path, entries, 5, metadata, 2, NULL), QUAY_OK);
  quay_safetensors *file = open_file();
  for (size_t i = 0; i < 5; ++i) {
    size_t index = 0;
    cr_expect_eq(quay_safetensors_find(file, names[i], &index), QUAY_OK, "%s", names[i]);
    quay_buffer_release((quay_buffer *)entries[i].buffer);
  }
  cr_assert_eq(quay_safetensors_metadata_count(file), 2u);
  for (size_t i = 0; i < 2; ++i) {
    quay_safetensors_metadata pair;
    cr_assert_eq(quay_safetensors_get_metadata(file, i, &pair), QUAY_OK);
    cr_expect_str_eq(pair.key, metadata[i].key);
    cr_expect_str_eq(pair.value, metadata[i].value);
  }
  quay_safetensors_close(file);
}

Test(safetensors, a_file_without_tensors_can_be_written) {
  expect_saved(NULL, 0);
  quay_safetensors *file = open_file();
  cr_expect_eq(quay_safetensors_count(file), 0u);
  quay_safetensors_close(file);
}

Test(safetensors, save_refuses_a_name_that_is_twice_there) {
  static const int64_t shape[] = {2};
  quay_buffer *buffer = make_buffer(NULL, QUAY_U8, 1, shape, 1);
  const quay_safetensors_entry entries[] = {{"twin", buffer}, {"twin", buffer}};
  expect_not_saved(QUAY_STATUS_INVALID_ARGUMENT, entries, 2, "'twin'");
  quay_buffer_release(buffer);
}

Test(safetensors, save_refuses_the_name_of_the_metadata) {
  static const int64_t shape[] = {2};
  quay_buffer *buffer = make_buffer(NULL, QUAY_U8, 1, shape, 1);
  const quay_safetensors_entry entry = {"__metadata__", buffer};
  expect_not_saved(QUAY_STATUS_INVALID_ARGUMENT, &entry, 1, "__metadata__");
  quay_buffer_release(buffer);
}

Test(safetensors, save_refuses_names_that_are_no_utf8) {
  /* A stray continuation, an overlong slash, a surrogate, above U+10FFFF, cut off. */
  static const char *const names[] = {"\x80",         "\xC0\xAF",         "\xE0\x80\xAF",
                                      "\xED\xA0\x80", "\xF4\x90\x80\x80", "a\xE2\x82"};
  static const int64_t shape[] = {2};
  quay_buffer *buffer = make_buffer(NULL, QUAY_U8, 1, shape, 1);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    const quay_safetensors_entry entry = {names[i], buffer};
    expect_not_saved(QUAY_STATUS_INVALID_ARGUMENT, &entry, 1, "UTF-8");
  }
  quay_buffer_release(buffer);
}

Test(safetensors, save_refuses_metadata_keys_that_are_twice_there) {
  static const quay_safetensors_metadata metadata[] = {{"k", "1"}, {"k", "2"}};
  cr_expect_eq(quay_safetensors_save(path, NULL, 0, metadata, 2, NULL),
               QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_not_null(strstr(quay_last_error()->message, "'k'"));
}

Test(safetensors, save_refuses_a_dtype_that_the_format_does_not_have) {
  static const int64_t shape[] = {2};
  quay_buffer *buffer = make_buffer(NULL, QUAY_C128, 1, shape, 1);
  const quay_safetensors_entry entry = {"wide", buffer};
  expect_not_saved(QUAY_STATUS_UNSUPPORTED, &entry, 1, "c128");
  quay_buffer_release(buffer);
}

Test(safetensors, save_refuses_a_buffer_that_nothing_was_written_to) {
  static const int64_t shape[] = {2};
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_buffer_create_lazy(NULL, QUAY_U8, 1, shape, NULL, &buffer), QUAY_OK);
  const quay_safetensors_entry entry = {"lazy", buffer};
  expect_not_saved(QUAY_STATUS_NOT_ALLOCATED, &entry, 1, "'lazy'");
  quay_buffer_release(buffer);
}

Test(safetensors, save_refuses_null) {
  const quay_safetensors_entry entries[] = {{"a", NULL}};
  expect_not_saved(QUAY_STATUS_INVALID_ARGUMENT, entries, 1, "NULL");
  expect_not_saved(QUAY_STATUS_INVALID_ARGUMENT, NULL, 1, "entries");
  cr_expect_eq(quay_safetensors_save(NULL, NULL, 0, NULL, 0, NULL), QUAY_STATUS_INVALID_ARGUMENT);
}

static bool stop_at_once(void *user, uint64_t done, uint64_t total) {
  (void)done, (void)total;
  ++*(int *)user;
  return false;
}

Test(safetensors, a_cancelled_save_leaves_the_old_file) {
  write_file("{\"old\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
  static const int64_t shape[] = {9 << 20};
  quay_buffer *buffer = make_buffer(NULL, QUAY_U8, 1, shape, 1);
  const quay_safetensors_entry entry = {"new", buffer};
  int calls = 0;
  const quay_save_options options = {.progress = stop_at_once, .progress_user = &calls};
  cr_expect_eq(quay_safetensors_save(path, &entry, 1, NULL, 0, &options), QUAY_STATUS_CANCELLED);
  cr_expect_eq(calls, 1);
  quay_buffer_release(buffer);
  quay_safetensors *file = open_file();
  size_t index = 0;
  cr_expect_eq(quay_safetensors_find(file, "old", &index), QUAY_OK);
  quay_safetensors_close(file);
}

typedef struct progress_seen {
  uint64_t done, total;
  bool backwards;
} progress_seen;

static bool note_progress(void *user, uint64_t done, uint64_t total) {
  progress_seen *seen = user;
  seen->backwards = seen->backwards || done < seen->done || done > total;
  seen->done = done;
  seen->total = total;
  return true;
}

typedef struct giver {
  quay_buffer *buffer;
  quay_allocator *allocator;
  uint64_t live;
} giver;

static bool give_back(void *user, uint64_t done, uint64_t total) {
  giver *g = user;
  (void)done;
  (void)total;
  quay_buffer_release(g->buffer);
  g->buffer = NULL;
  quay_stats stats;
  return quay_allocator_stats(g->allocator, &stats) == QUAY_OK && stats.live_bytes == g->live;
}

Test(safetensors, a_buffer_that_a_callback_releases_is_kept_until_it_is_written) {
  static const int64_t shape[] = {(9 << 20) + 1};
  giver g = {.live = (9 << 20) + 1};
  cr_assert_eq(quay_allocator_open("cpu", &g.allocator), QUAY_OK);
  g.buffer = make_buffer(g.allocator, QUAY_U8, 1, shape, 1);
  const quay_safetensors_entry entry = {"a", g.buffer};
  const quay_save_options options = {.progress = give_back, .progress_user = &g};
  cr_assert_eq(quay_safetensors_save(path, &entry, 1, NULL, 0, &options), QUAY_OK, "%s",
               quay_last_error()->message);
  quay_stats stats;
  cr_assert_eq(quay_allocator_stats(g.allocator, &stats), QUAY_OK);
  cr_expect_eq(stats.live_bytes, 0);
  quay_allocator_release(g.allocator);
}

Test(safetensors, progress_ends_with_the_size_of_the_file) {
  static const int64_t shape[] = {(9 << 20) + 1};
  quay_buffer *buffer = make_buffer(NULL, QUAY_U8, 1, shape, 1);
  const quay_safetensors_entry entry = {"a", buffer};
  progress_seen seen = {0};
  const quay_save_options options = {.progress = note_progress, .progress_user = &seen};
  cr_assert_eq(quay_safetensors_save(path, &entry, 1, NULL, 0, &options), QUAY_OK);
  quay_buffer_release(buffer);
  struct stat status;
  cr_assert_eq(stat(path, &status), 0);
  cr_expect_eq(seen.done, (uint64_t)status.st_size);
  cr_expect_eq(seen.total, (uint64_t)status.st_size);
  cr_expect_not(seen.backwards);
}
