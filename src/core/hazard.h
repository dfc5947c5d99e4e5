/* What a storage remembers of device work, by range of bytes: the open accesses, and as events the
 * writes and reads whose end nobody has waited for. On devices without streams only open accesses
 * are remembered, since everything else is done on return.
 *
 * Invariant that keeps the list short: whoever opens a write has its stream wait for all recorded
 * work that it conflicts with. The event recorded at the write's end therefore comes after all of
 * that, and older records that lie wholly within its range are dropped. */
#ifndef QUAY_CORE_HAZARD_H
#define QUAY_CORE_HAZARD_H

#include <quay/stream.h>

#include "core/storage.h"

/* A storage remembers about so many finished accesses. When there are more, those of one stream are
 * merged: a later event of a stream covers an earlier one, and the range becomes one that holds
 * both, so that somebody may wait for more than he must, but never for less. Only with uses of more
 * streams than this the oldest is waited for. */
#define QUAY__HAZARD_RECORDS_MAX 64

/* A window of a storage and what is done to it. */
typedef struct quay__range {
  uint64_t offset, size; /* bytes */
  quay_use_mode mode;
} quay__range;

/* Waits, on the host, for recorded work that conflicts with reading (or writing) the range. Cheap
 * if nothing was ever recorded: one load. Open accesses are not waited for: the bracket is the
 * program's, and nothing tells when its work will be submitted. A write makes the host the last
 * writer of the range. */
quay_status quay__hazards_wait(quay__storage *storage, uint64_t offset, uint64_t size,
                               quay_use_mode mode);

/* Waits, on the host, for all recorded work on the range. */
quay_status quay__hazards_drain(quay__storage *storage, uint64_t offset, uint64_t size);

/* Opens uses of `count` ranges on `stream` under the number `id`, all or none. BUSY if a
 * conflicting access is open on another stream, READ_ONLY if one writes and the storage was sealed
 * meanwhile. `brief` says that they are closed without the program's doing: others wait for that
 * instead of being refused. Whoever opens several brief ones opens those of one storage at once,
 * goes from storage to storage in the order of their ids, and opens nothing else meanwhile: else
 * two threads could wait for each other. */
quay_status quay__hazards_open(quay__storage *storage, const quay__range *ranges, size_t count,
                               quay_stream *stream, uint64_t id, bool brief);

/* BUSY as quay__hazards_open() would answer, without opening anything. */
quay_status quay__hazards_check(quay__storage *storage, const quay__range *range,
                                const quay_stream *stream);

/* Makes `stream` wait for recorded work of other streams that conflicts with the range. */
quay_status quay__hazards_order(quay__storage *storage, const quay__range *range,
                                quay_stream *stream);

/* Closes all uses of the number `id`, and records `event`, of the stream that they were opened on,
 * for them if it is not NULL. Can't fail. */
void quay__hazards_close(quay__storage *storage, uint64_t id, quay_event *event);

/* Seals, in one step with the look at open accesses: BUSY while one with writing is open. */
quay_status quay__hazards_seal(quay__storage *storage);

/* The stream that last wrote to the range, retained; NULL if it was the host or nobody, or if the
 * stream is gone. After a merge writes may seem to reach further than they did. */
quay_stream *quay__hazards_last_writer(quay__storage *storage, uint64_t offset, uint64_t size);

/* Of a storage that nobody refers to any more: the events that are not complete, lent. Those of a
 * device that is lost or was reset count as complete. QUAY__HAZARD_RECORDS_MAX: perhaps there are
 * more. */
size_t quay__hazards_pending(quay__storage *storage,
                             quay_event *out_events[QUAY__HAZARD_RECORDS_MAX]);

/* With the storage: frees what is remembered. */
void quay__hazards_destroy(quay__storage *storage);

#endif
