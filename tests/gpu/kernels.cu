// The kernels of the tests, as CUDA C++. kernels.ptx is what is run: what
//   nvcc -ptx -arch=compute_75 kernels.cu
// makes of this file, with `.version 6.4` and `.target sm_70`, so that any driver from Volta on
// compiles it. simulated.c says the same to the simulated driver.
typedef unsigned long long u64;

static __device__ u64 now() {
  u64 nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

static __device__ u64 first() {
  return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ u64 step() {
  return (u64)gridDim.x * blockDim.x;
}

extern "C" __global__ void gpu_sleep(unsigned microseconds) {
  const u64 end = now() + 1000ull * microseconds;
  while (now() < end)
    __nanosleep(1000);
}

// Until the host sets *open, which is pinned memory; *late is set if that takes too long.
extern "C" __global__ void gpu_hold(volatile unsigned *open, volatile unsigned *late, unsigned microseconds) {
  const u64 end = now() + 1000ull * microseconds;
  while (*open == 0) {
    if (now() >= end) {
      *late = 1;
      __threadfence_system();
      return;
    }
    __nanosleep(1000);
  }
}

extern "C" __global__ void gpu_pattern(unsigned *to, u64 words, unsigned seed) {
  for (u64 i = first(); i < words; i += step())
    to[i] = ((unsigned)i * 2654435761u + seed) | 0x01010101u;
}

extern "C" __global__ void gpu_copy(unsigned *to, const unsigned *from, u64 words) {
  for (u64 i = first(); i < words; i += step())
    to[i] = from[i];
}

extern "C" __global__ void gpu_illegal_address() {
  *(volatile unsigned *)16 = 1;
}

extern "C" __global__ void gpu_trap() {
  asm volatile("trap;");
}
