/* Every function of the driver under the name that dlsym() finds it by, refusing everything; what
 * fake_cuda.c defines goes before. */
#define X(name, suffix, version, streams, need, parameters)            \
  __attribute__((visibility("default"), weak)) int name##suffix(void); \
  int name##suffix(void) {                                             \
    return 999;                                                        \
  }
#include "cuda/symbols.h"
