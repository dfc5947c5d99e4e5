/* The values of abi.def, from our declarations or (compiled a second time) from those of the CUDA
 * Toolkit. There the prototypes are declared again, too: a compiler refuses those that differ, or
 * that are not of the version they say. */
#ifdef ABI_OF_TOOLKIT
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>
#define TABLE abi_of_toolkit
#define ENTRY(name, base, version, parameters)                                \
  extern CUresult name parameters;                                            \
  _Static_assert(_Generic(&(name), PFN_##base##_v##version : 1, default : 0), \
                 #name " is not version " #version " of " #base);
#define PER_THREAD(name, suffix, parameters, arguments) extern CUresult name##_##suffix parameters;
#include "sim_cuda/entries.def"
#else
#include "sim_cuda/abi.h"
#define TABLE abi_of_simulator
#endif

#include <stddef.h>

#include "abi_table.h"

const abi_row TABLE[] = {
#define VALUE(name)          {#name, (long long)(name)},
#define SIZE(type)           {"size of " #type, (long long)sizeof(type)},
#define OFFSET(type, member) {"offset of " #type "." #member, (long long)offsetof(type, member)},
#include "abi.def"
    {NULL, 0},
};
