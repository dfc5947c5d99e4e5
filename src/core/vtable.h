/* The rules of the tables that backends fill in, and what stands in for functions they leave out.
 */
#ifndef QUAY_CORE_VTABLE_H
#define QUAY_CORE_VTABLE_H

#include <quay/backend.h>

/* INVALID_ARGUMENT with the broken rule named. */
quay_status quay__device_vtable_check(const quay_device_desc *desc, bool *out_has_streams);
quay_status quay__allocator_vtable_check(const quay_allocator_desc *desc, bool device_has_streams,
                                         bool *out_has_async, bool *out_has_reserve);

/* Puts the defaults of backend.h where functions are NULL. */
void quay__device_vtable_fill(quay_device_vtable *vtable);
void quay__allocator_vtable_fill(quay_allocator_vtable *vtable);

/* The default of copy_in_many_async, which is a layer's, too: its own copy_in_async sees each
 * piece.
 */
quay_status quay__copy_in_one_by_one(quay_allocator *allocator, const quay_copy_piece *pieces,
                                     size_t count, uint64_t stream);

#endif
