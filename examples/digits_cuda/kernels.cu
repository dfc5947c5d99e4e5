// The layers of the digits network, as CUDA C++. kernels.ptx is what is run: what
//   nvcc -ptx -arch=compute_75 kernels.cu
// makes of this file, with `.version 6.4` and `.target sm_70`, so that any driver from Volta on
// compiles it.

// One dense layer of the digits network.
extern "C" __global__ void dense(float *out, const float *in, const float *weight,
                                 const float *bias, int images, int columns, int rows,
                                 int cut) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= images * rows)
    return;
  const int image = index / rows, row = index % rows;
  float sum = bias[row];
  for (int column = 0; column < columns; column++)
    sum += weight[row * columns + column] * in[image * columns + column];
  out[index] = cut && sum < 0 ? 0 : sum;
}

// The digit with the largest output.
extern "C" __global__ void largest(unsigned char *digits, const float *outputs, int images, int count) {
  const int image = blockIdx.x * blockDim.x + threadIdx.x;
  if (image >= images)
    return;
  const float *row = outputs + image * count;
  int best = 0;
  for (int digit = 1; digit < count; digit++)
    best = row[digit] > row[best] ? digit : best;
  digits[image] = (unsigned char)best;
}
