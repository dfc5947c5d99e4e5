/* What the library's own components, which are libraries or programs of their own, use of its
 * internals: the shared library exports these, and nothing else that no public header declares. */
#ifndef QUAY_CORE_COMPONENT_H
#define QUAY_CORE_COMPONENT_H

#include <quay/base.h>

#define QUAY__COMPONENT QUAY_API

#endif
