/* What a layer does with a call that it has no business with: the same call on the allocator
 * inside it. */
#ifndef QUAY_LAYERS_FORWARD_H
#define QUAY_LAYERS_FORWARD_H

#include <quay/backend.h>

/* Fills in what `vtable` leaves NULL, destroy apart, with functions that forward to the layer's
 * inner allocator. The asynchronous group, window and reserve, commit and decommit are filled in
 * only if `inner` has them. */
void quay__forward_fill(quay_allocator_vtable *vtable, const quay_allocator *inner);

#endif
