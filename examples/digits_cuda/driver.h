/* The few functions of the CUDA driver that launch kernels, taken from the library that Quay itself
 * uses: nothing of the CUDA Toolkit is needed to build or run the example. */
#ifndef DIGITS_CUDA_DRIVER_H
#define DIGITS_CUDA_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;

typedef struct driver {
  int (*init)(unsigned flags);
  int (*device_get)(int *device, int ordinal);
  int (*context_retain)(CUcontext *context, int device);
  int (*context_release)(int device);
  int (*context_set)(CUcontext context);
  int (*module_load)(CUmodule *module, const void *image);
  int (*module_unload)(CUmodule module);
  int (*module_function)(CUfunction *function, CUmodule module, const char *name);
  int (*launch)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                CUstream stream, void **parameters, void **extra);
  int (*error_name)(int result, const char **name);
} driver;

/* False, with a message on standard error, where there is none. */
bool driver_load(driver *out);

/* Whether `result` is success; else says what failed. */
bool driver_did(const driver *cuda, int result, const char *what);

#endif
