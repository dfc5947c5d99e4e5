/* What a backend or layer does with the arguments of its spec. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/spec.h"

static bool same_key(const char *a, const char *b) {
  if (a == NULL || b == NULL)
    return a == b;
  return strcmp(a, b) == 0;
}

/* "align=a power of two, hugepages=on or off". */
static void list_keys(const quay_spec_key *keys, size_t count, char *out_text, size_t size) {
  size_t used = 0;
  snprintf(out_text, size, "nothing");
  for (size_t i = 0; i < count && used < size; i++) {
    const int length = snprintf(out_text + used, size - used, "%s%s%s(%s)", used > 0 ? ", " : "",
                                keys[i].key != NULL ? keys[i].key : "",
                                keys[i].key != NULL ? "=" : "", keys[i].form);
    if (length < 0)
      return;
    used += (size_t)length;
  }
}

static quay_status fail_item(const quay_spec_args *args, const quay_spec_arg *item,
                             const char *problem, const quay_spec_key *keys, size_t count) {
  char possible[512];
  list_keys(keys, count, possible, sizeof possible);
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, args->name, 0, NULL,
                        "allocator spec \"%s\": \"%s%s%s\" %s; %s takes %s", args->spec,
                        item->key != NULL ? item->key : "", item->key != NULL ? "=" : "",
                        item->value, problem, args->name, possible);
}

static quay_status fail_empty(const quay_spec_args *args, const quay_spec_key *keys, size_t count) {
  char possible[512];
  list_keys(keys, count, possible, sizeof possible);
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, args->name, 0, NULL,
                        "allocator spec \"%s\": an argument is empty; %s takes %s", args->spec,
                        args->name, possible);
}

quay_status quay_spec_check(const quay_spec_args *args, const quay_spec_key *keys, size_t count) {
  for (size_t i = 0; i < args->count; i++) {
    const quay_spec_arg *const item = &args->items[i];
    bool known = false;
    if (item->key == NULL && item->value[0] == '\0')
      return fail_empty(args, keys, count);
    for (size_t k = 0; k < count; k++)
      known = known || same_key(item->key, keys[k].key);
    if (!known) {
      return fail_item(args, item,
                       item->key != NULL ? "is no argument of it" : "has no place in it", keys,
                       count);
    }
    if (item->value[0] == '\0')
      return fail_item(args, item, "has no value", keys, count);
    for (size_t j = 0; j < i; j++) {
      if (!same_key(item->key, args->items[j].key))
        continue;
      return fail_item(args, item, item->key != NULL ? "comes twice" : "is one argument too many",
                       keys, count);
    }
  }
  return QUAY_OK;
}

const char *quay_spec_value(const quay_spec_args *args, const char *key) {
  for (size_t i = 0; i < args->count; i++) {
    if (same_key(args->items[i].key, key))
      return args->items[i].value;
  }
  return NULL;
}

static quay_status fail_value(const quay_spec_args *args, const char *key, const char *value,
                              const char *form) {
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, args->name, 0, NULL,
                        "allocator spec \"%s\": %s%s\"%s\" is not %s", args->spec,
                        key != NULL ? key : "", key != NULL ? "=" : "", value, form);
}

quay_status quay_spec_bytes(const quay_spec_args *args, const char *key, uint64_t *out) {
  const char *const value = quay_spec_value(args, key);
  uint64_t bytes;
  if (value == NULL)
    return QUAY_OK;
  if (!quay__parse_bytes(value, &bytes)) {
    return fail_value(args, key, value,
                      "a size in bytes, such as 4096, 64KiB or 8GiB, and below 2^64");
  }
  *out = bytes;
  return QUAY_OK;
}

quay_status quay_spec_unsigned(const quay_spec_args *args, const char *key, uint64_t *out) {
  const char *const value = quay_spec_value(args, key);
  uint64_t number;
  if (value == NULL)
    return QUAY_OK;
  if (!quay__parse_unsigned(value, &number)) {
    return fail_value(args, key, value, "a whole number from 0 to 2^64-1");
  }
  *out = number;
  return QUAY_OK;
}

quay_status quay_spec_switch(const quay_spec_args *args, const char *key, bool *out) {
  const char *const value = quay_spec_value(args, key);
  if (value == NULL)
    return QUAY_OK;
  const bool on = strcmp(value, "on") == 0;
  if (!on && strcmp(value, "off") != 0)
    return fail_value(args, key, value, "on or off");
  *out = on;
  return QUAY_OK;
}

quay_status quay__spec_name_error(const quay_spec_args *args) {
  quay__error_state error;
  quay__error_save(&error);
  return quay_error_set(error.status, args->name, error.native_code, error.native_name,
                        "\"%s\": %s", args->spec, error.message);
}
