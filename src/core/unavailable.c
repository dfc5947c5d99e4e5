/* What stands in for a backend that is not built in. */
#include "core/unavailable.h"

#include "core/error.h"

quay_status quay__unavailable_open(void *user, const quay_spec_args *args,
                                   quay_allocator **out_allocator) {
  const quay__unavailable *const self = user;
  *out_allocator = NULL;
  return quay_error_set(QUAY_STATUS_UNAVAILABLE, self->name, 0, NULL, "\"%s\": %s", args->spec,
                        self->reason);
}

quay_status quay__unavailable_info(void *user, size_t index, quay_device_info *out_info,
                                   bool *out_more) {
  const quay__unavailable *const self = user;
  *out_more = index == 0;
  if (index != 0)
    return QUAY_OK;
  *out_info = (quay_device_info){
      .spec = self->name,
      .name = "",
      .available = false,
      .reason = self->reason,
      .type = self->type,
  };
  return QUAY_OK;
}
