/* Reserved address space as a layer sees it. A reservation is recognised by its address: a commit
 * may change the rest of its handle. */
#include "layers/reservations.h"

#include "core/allocator_impl.h"
#include "core/error.h"
#include "core/os.h"

void quay__reservations_init(quay__reservations *reservations) {
  quay__lock_init(&reservations->lock);
  reservations->first = NULL;
}

void quay__reservations_destroy(quay__reservations *reservations) {
  while (reservations->first != NULL) {
    quay__reservation *const entry = reservations->first;
    reservations->first = entry->next;
    quay__os_free(entry);
  }
  quay__lock_destroy(&reservations->lock);
}

quay_status quay__reservations_reserve(quay__reservations *reservations, quay_allocator *inner,
                                       uint64_t size, uint64_t alignment,
                                       quay_raw_buffer *out_raw) {
  quay__reservation *const entry = quay__os_calloc(1, sizeof *entry);
  if (entry == NULL)
    return quay__fail_out_of_memory(sizeof *entry, "a layer's record of a reservation");
  quay_status status = quay__reserve(inner, size, alignment, out_raw);
  if (status != QUAY_OK) {
    quay__os_free(entry);
    return status;
  }
  status = inner->vtable.address(inner, out_raw, &entry->address);
  if (status != QUAY_OK) {
    quay__free(inner, out_raw, NULL, 0);
    quay__os_free(entry);
    return status;
  }
  quay__lock_acquire(&reservations->lock);
  entry->next = reservations->first;
  reservations->first = entry;
  quay__lock_release(&reservations->lock);
  return QUAY_OK;
}

/* The place in the list that points to the reservation, or to the list's end. With the lock held.
 */
static quay__reservation **find(quay__reservations *reservations, uint64_t address) {
  quay__reservation **link = &reservations->first;
  while (*link != NULL && (*link)->address != address)
    link = &(*link)->next;
  return link;
}

/* The address of a reservation. */
static bool find_address(quay_allocator *inner, const quay_raw_buffer *raw, uint64_t *out_address) {
  if ((raw->flags & QUAY__RAW_RESERVED) == 0)
    return false;
  quay__error_shield();
  const bool found = inner->vtable.address(inner, raw, out_address) == QUAY_OK;
  quay__error_unshield();
  return found;
}

void quay__reservations_count(quay__reservations *reservations, quay_allocator *inner,
                              const quay_raw_buffer *raw, uint64_t size) {
  uint64_t address;
  if (!find_address(inner, raw, &address))
    return;
  quay__lock_acquire(&reservations->lock);
  quay__reservation *const entry = *find(reservations, address);
  if (entry != NULL)
    entry->committed += size;
  quay__lock_release(&reservations->lock);
}

bool quay__reservations_forget(quay__reservations *reservations, quay_allocator *inner,
                               const quay_raw_buffer *raw, uint64_t *out_committed) {
  uint64_t address;
  if (!find_address(inner, raw, &address))
    return false;
  quay__lock_acquire(&reservations->lock);
  quay__reservation **const link = find(reservations, address);
  quay__reservation *const entry = *link;
  if (entry != NULL) {
    *link = entry->next;
    *out_committed = entry->committed;
  }
  quay__lock_release(&reservations->lock);
  quay__os_free(entry);
  return entry != NULL;
}
