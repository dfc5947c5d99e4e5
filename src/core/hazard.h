/* What a storage remembers of device work: open accesses, the last write and the reads since, by
 * range of bytes. On devices without streams only open accesses are remembered. */
#ifndef QUAY_CORE_HAZARD_H
#define QUAY_CORE_HAZARD_H

#include <quay/stream.h>

#include "core/storage.h"

/* Waits, on the host, for recorded work that conflicts with reading (or writing) the range. Cheap
 * if nothing was ever recorded: one load. */
quay_status quay__hazards_wait(quay__storage *storage, uint64_t offset, uint64_t size,
                               quay_use_mode mode);

/* Whether any access with writing is open on the storage. */
bool quay__hazards_write_open(quay__storage *storage);
/* Whether any access at all is open on it. */
bool quay__hazards_any_open(quay__storage *storage);

/* With the storage: frees what is remembered. */
void quay__hazards_destroy(quay__storage *storage);

#endif
