/* Classifies images of handwritten digits with a trained network (64 pixels, 128 and 64 hidden
 * units, 10 digits) on a CUDA device: weights and images are Quay buffers, the layers are kernels
 * that are launched in accesses on a Quay stream.
 *
 *   digits_cuda [FOLDER]
 *
 * FOLDER holds digits.safetensors (the network) and digits-test.safetensors (images, labels). */
#include <quay/quay.h>
#include <quay/safetensors.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

#ifndef DIGITS_FOLDER
#define DIGITS_FOLDER "tests/data"
#endif

enum {
  LAYERS = 3,
  PIXELS = 64,
  DIGITS = 10,
  THREADS = 128, /* of a block */
};

static const int64_t units[LAYERS + 1] = {PIXELS, 128, 64, DIGITS};

extern const char digits_cuda_ptx[]; /* kernels.ptx */

/* The device's side: code, and a stream to launch it on. */
typedef struct kernels {
  driver cuda;
  int device;
  CUcontext context;
  CUmodule module;
  CUfunction dense, largest;
} kernels;

typedef struct network {
  quay_allocator *gpu;
  quay_stream *stream;
  quay_buffer *weight[LAYERS], *bias[LAYERS];
  quay_buffer *outputs[LAYERS + 1]; /* [0] holds the images */
  quay_buffer *found;               /* the digit of each image */
  quay_buffer *labels;              /* in host memory */
  int64_t images;
} network;

/* Loading. */

static quay_status load(const quay_safetensors *file, const char *name, quay_allocator *to,
                        quay_buffer **out) {
  size_t index = 0;
  quay_buffer *in_file = NULL;
  QUAY_TRY(quay_safetensors_find(file, name, &index));
  QUAY_TRY(quay_safetensors_buffer(file, index, &in_file));
  quay_status status = quay_buffer_create(to, quay_buffer_dtype(in_file), quay_buffer_rank(in_file),
                                          quay_buffer_shape(in_file), NULL, out);
  if (status == QUAY_OK)
    status = quay_buffer_copy_from(*out, in_file);
  quay_buffer_release(in_file);
  return status;
}

static quay_status load_layers(const quay_safetensors *file, network *of) {
  for (int i = 0; i < LAYERS; i++) {
    char name[32];
    snprintf(name, sizeof name, "fc%d.weight", i + 1);
    QUAY_TRY(load(file, name, of->gpu, &of->weight[i]));
    snprintf(name, sizeof name, "fc%d.bias", i + 1);
    QUAY_TRY(load(file, name, of->gpu, &of->bias[i]));
  }
  return QUAY_OK;
}

static quay_status load_images(const quay_safetensors *file, network *of) {
  quay_allocator *host = NULL;
  QUAY_TRY(load(file, "images", of->gpu, &of->outputs[0]));
  of->images = quay_buffer_shape(of->outputs[0])[0];
  QUAY_TRY(quay_allocator_open("cpu", &host));
  const quay_status status = load(file, "labels", host, &of->labels);
  quay_allocator_release(host);
  return status;
}

static quay_status read_file(const char *folder, const char *name,
                             quay_status (*take)(const quay_safetensors *, network *),
                             network *of) {
  char path[4096];
  quay_safetensors *file = NULL;
  snprintf(path, sizeof path, "%s/%s", folder, name); /* a name that was cut is not found */
  QUAY_TRY(quay_safetensors_open(path, NULL, &file));
  const quay_status status = take(file, of);
  quay_safetensors_close(file);
  return status;
}

/* Everything that the kernels work on. Lazy: the first write allocates. */
static quay_status make(const char *folder, network *of) {
  QUAY_TRY(quay_allocator_open("cuda:0", &of->gpu));
  QUAY_TRY(quay_stream_create(quay_allocator_device(of->gpu), NULL, &of->stream));
  QUAY_TRY(read_file(folder, "digits.safetensors", load_layers, of));
  QUAY_TRY(read_file(folder, "digits-test.safetensors", load_images, of));
  for (int i = 1; i <= LAYERS; i++) {
    const int64_t shape[] = {of->images, units[i]};
    QUAY_TRY(quay_buffer_create_lazy(of->gpu, QUAY_F32, 2, shape, NULL, &of->outputs[i]));
  }
  return quay_buffer_create_lazy(of->gpu, QUAY_U8, 1, &of->images, NULL, &of->found);
}

/* What the kernels take for granted. */
static bool fits(const network *of) {
  for (int i = 0; i < LAYERS; i++) {
    const uint64_t in = (uint64_t)units[i], out = (uint64_t)units[i + 1];
    if (quay_buffer_dtype(of->weight[i]) != QUAY_F32 ||
        quay_buffer_dtype(of->bias[i]) != QUAY_F32 ||
        quay_buffer_size(of->weight[i]) != in * out * sizeof(float) ||
        quay_buffer_size(of->bias[i]) != out * sizeof(float))
      return false;
  }
  return quay_buffer_dtype(of->outputs[0]) == QUAY_F32 &&
         quay_buffer_size(of->outputs[0]) == (uint64_t)of->images * PIXELS * sizeof(float) &&
         quay_buffer_dtype(of->labels) == QUAY_U8 &&
         quay_buffer_size(of->labels) == (uint64_t)of->images;
}

static void release(network *of) {
  for (int i = 0; i < LAYERS; i++) {
    quay_buffer_release(of->weight[i]);
    quay_buffer_release(of->bias[i]);
  }
  for (int i = 0; i <= LAYERS; i++)
    quay_buffer_release(of->outputs[i]);
  quay_buffer_release(of->found);
  quay_buffer_release(of->labels);
  quay_stream_release(of->stream);
  quay_allocator_release(of->gpu);
}

/* Kernels. */

/* In the context that Quay uses, which is the device's primary one. */
static bool open_kernels(kernels *of) {
  const driver *cuda = &of->cuda;
  return driver_load(&of->cuda) && driver_did(cuda, cuda->init(0), "starting the driver") &&
         driver_did(cuda, cuda->device_get(&of->device, 0), "finding the device") &&
         driver_did(cuda, cuda->context_retain(&of->context, of->device), "making the context") &&
         driver_did(cuda, cuda->context_set(of->context), "using the context") &&
         driver_did(cuda, cuda->module_load(&of->module, digits_cuda_ptx), "loading the kernels") &&
         driver_did(cuda, cuda->module_function(&of->dense, of->module, "dense"), "dense") &&
         driver_did(cuda, cuda->module_function(&of->largest, of->module, "largest"), "largest");
}

static void close_kernels(kernels *of) {
  if (of->module != NULL)
    (void)driver_did(&of->cuda, of->cuda.module_unload(of->module), "unloading the kernels");
  if (of->context != NULL)
    (void)driver_did(&of->cuda, of->cuda.context_release(of->device), "releasing the context");
}

/* One thread for each of `count` results. */
static bool launch(const kernels *of, CUfunction function, quay_stream *stream, int64_t count,
                   void **parameters) {
  const unsigned blocks = (unsigned)((count + THREADS - 1) / THREADS);
  CUstream native = (CUstream)(uintptr_t)quay_cuda_stream(stream);
  return driver_did(
      &of->cuda,
      of->cuda.launch(function, blocks, 1, 1, THREADS, 1, 1, 0, native, parameters, NULL),
      "launching a kernel");
}

/* Layer number `i` of the network. The access waits for what the launch must not overtake, and
 * keeps the buffers until the kernel is done. */
static quay_status run_layer(const kernels *code, const network *of, int i, bool *out_launched) {
  const quay_use uses[] = {{of->outputs[i + 1], QUAY_WRITE},
                           {of->outputs[i], QUAY_READ},
                           {of->weight[i], QUAY_READ},
                           {of->bias[i], QUAY_READ}};
  quay_access access;
  QUAY_TRY(quay_access_begin(of->stream, uses, 4, &access));
  uint64_t out = access.pointers[0], in = access.pointers[1];
  uint64_t weight = access.pointers[2], bias = access.pointers[3];
  int images = (int)of->images, columns = (int)units[i], rows = (int)units[i + 1];
  int cut = i + 1 < LAYERS; /* negative results, to 0 */
  void *parameters[] = {&out, &in, &weight, &bias, &images, &columns, &rows, &cut};
  *out_launched = launch(code, code->dense, of->stream, of->images * units[i + 1], parameters);
  return quay_access_end(&access);
}

static quay_status run_largest(const kernels *code, const network *of, bool *out_launched) {
  const quay_use uses[] = {{of->found, QUAY_WRITE}, {of->outputs[LAYERS], QUAY_READ}};
  quay_access access;
  QUAY_TRY(quay_access_begin(of->stream, uses, 2, &access));
  uint64_t digits = access.pointers[0], outputs = access.pointers[1];
  int images = (int)of->images, count = DIGITS;
  void *parameters[] = {&digits, &outputs, &images, &count};
  *out_launched = launch(code, code->largest, of->stream, of->images, parameters);
  return quay_access_end(&access);
}

static quay_status classify(const kernels *code, const network *of, bool *out_launched) {
  *out_launched = true;
  for (int i = 0; i < LAYERS && *out_launched; i++)
    QUAY_TRY(run_layer(code, of, i, out_launched));
  return *out_launched ? run_largest(code, of, out_launched) : QUAY_OK;
}

/* Copies the digits out, which waits for the kernels. */
static quay_status count_correct(const network *of, int64_t *out_correct) {
  const size_t size = (size_t)of->images;
  uint8_t *found = malloc(size), *expected = malloc(size);
  quay_status status = QUAY_STATUS_OUT_OF_HOST_MEMORY;
  if (found != NULL && expected != NULL)
    status = quay_buffer_copy_out(of->found, found, size);
  if (status == QUAY_OK)
    status = quay_buffer_copy_out(of->labels, expected, size);
  *out_correct = 0;
  for (size_t i = 0; status == QUAY_OK && i < size; i++)
    *out_correct += found[i] == expected[i];
  free(found);
  free(expected);
  return status;
}

static bool run(const char *folder, const kernels *code, network *of) {
  int64_t correct = 0;
  bool launched = true;
  quay_status status = make(folder, of);
  if (status == QUAY_OK && !fits(of)) {
    fprintf(stderr, "digits_cuda: the files in %s hold another network\n", folder);
    return false;
  }
  if (status == QUAY_OK)
    status = classify(code, of, &launched);
  if (status == QUAY_OK && launched)
    status = count_correct(of, &correct);
  if (status != QUAY_OK)
    fprintf(stderr, "digits_cuda: %s\n", quay_last_error()->message);
  if (status != QUAY_OK || !launched)
    return false;
  printf("%lld/%lld correct\n", (long long)correct, (long long)of->images);
  return fflush(stdout) == 0;
}

int main(int argc, char **argv) {
  if (argc > 2) {
    fprintf(stderr, "usage: digits_cuda [FOLDER]\n");
    return 2;
  }
  network of = {.images = 0};
  kernels code = {.device = 0};
  const bool good = open_kernels(&code) && run(argc == 2 ? argv[1] : DIGITS_FOLDER, &code, &of);
  release(&of);
  close_kernels(&code);
  return good ? 0 : 1;
}
