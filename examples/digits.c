/* Classifies images of handwritten digits with a trained network (64 pixels, 128 and 64 hidden
 * units, 10 digits), whose weights and images are Quay buffers wherever QUAY_BACKEND says.
 *
 *   QUAY_BACKEND=mmap:/tmp digits [FOLDER]
 *
 * FOLDER holds digits.safetensors (the network) and digits-test.safetensors (images, labels). */
#include <quay/backend.h> /* quay_error_set() */
#include <quay/quay.h>
#include <quay/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DIGITS_FOLDER
#define DIGITS_FOLDER "tests/data"
#endif

#define LAYERS    3
#define UNITS_MAX 128
#define PIXELS    64
#define DIGITS    10

/* One tensor, and its elements where the CPU can read them. */
typedef struct loaded_tensor {
  quay_buffer *buffer; /* of the default allocator */
  void *host_copy;     /* where the CPU can't read the buffer's own memory */
  const void *data;
  int64_t shape[2]; /* a vector has 1 as its second extent */
} loaded_tensor;

static void tensor_release(loaded_tensor *tensor) {
  free(tensor->host_copy);
  quay_buffer_release(tensor->buffer);
}

/* Loads the tensor named `name` to the default allocator. */
static quay_status load_buffer(const quay_safetensors *file, const char *name, quay_buffer **out) {
  size_t index = 0;
  quay_buffer *in_file = NULL;
  QUAY_TRY(quay_safetensors_find(file, name, &index));
  QUAY_TRY(quay_safetensors_buffer(file, index, &in_file));
  quay_status status =
      quay_buffer_create(NULL, quay_buffer_dtype(in_file), quay_buffer_rank(in_file),
                         quay_buffer_shape(in_file), NULL, out);
  if (status == QUAY_OK)
    status = quay_buffer_copy_from(*out, in_file);
  quay_buffer_release(in_file);
  return status;
}

/* Memory of a GPU, say, is copied before it is computed with. */
static quay_status make_readable(loaded_tensor *tensor, quay_dtype dtype) {
  if (quay_buffer_host_accessible(tensor->buffer)) {
    quay_host_array array;
    QUAY_TRY(quay_buffer_host_array(tensor->buffer, dtype, &array));
    tensor->data = array.data;
    return QUAY_OK;
  }
  const uint64_t size = quay_buffer_size(tensor->buffer);
  tensor->host_copy = malloc((size_t)size);
  tensor->data = tensor->host_copy;
  if (tensor->host_copy == NULL) {
    return quay_error_set(QUAY_STATUS_OUT_OF_HOST_MEMORY, "", 0, NULL, "no memory for a host copy");
  }
  return quay_buffer_copy_out(tensor->buffer, tensor->host_copy, size);
}

/* Loads a tensor that must be of this dtype and shape; ANY stands for any number of rows. */
#define ANY (-1)

static quay_status load(const quay_safetensors *file, const char *name, quay_dtype dtype,
                        int64_t rows, int64_t columns, loaded_tensor *out) {
  QUAY_TRY(load_buffer(file, name, &out->buffer));
  const int64_t *shape = quay_buffer_shape(out->buffer);
  const int32_t rank = quay_buffer_rank(out->buffer);
  out->shape[0] = rank > 0 ? shape[0] : 1;
  out->shape[1] = rank > 1 ? shape[1] : 1;
  const bool fits = (rows == ANY || out->shape[0] == rows) && out->shape[1] == columns &&
                    rank <= 2 && quay_buffer_dtype(out->buffer) == dtype;
  if (!fits) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "", 0, NULL,
                          "tensor '%s' is not of the dtype and shape that the network needs", name);
  }
  return make_readable(out, dtype);
}

/* Row-major [out, in] weights, then the bias. */
typedef struct dense_layer {
  loaded_tensor weight, bias;
} dense_layer;

typedef struct digits_network {
  dense_layer layers[LAYERS];
  loaded_tensor images, labels;
} digits_network;

static const int64_t units[LAYERS + 1] = {PIXELS, UNITS_MAX, 64, DIGITS};

static quay_status load_layers(const quay_safetensors *file, digits_network *network) {
  for (size_t i = 0; i < LAYERS; ++i) {
    char name[32];
    snprintf(name, sizeof name, "fc%zu.weight", i + 1);
    QUAY_TRY(load(file, name, QUAY_F32, units[i + 1], units[i], &network->layers[i].weight));
    snprintf(name, sizeof name, "fc%zu.bias", i + 1);
    QUAY_TRY(load(file, name, QUAY_F32, units[i + 1], 1, &network->layers[i].bias));
  }
  return QUAY_OK;
}

static quay_status load_images(const quay_safetensors *file, digits_network *network) {
  QUAY_TRY(load(file, "images", QUAY_F32, ANY, PIXELS, &network->images));
  return load(file, "labels", QUAY_U8, network->images.shape[0], 1, &network->labels);
}

/* Opens a file of the folder and takes out of it what `take` wants. The buffers that it made are
 * copies, so that the file can be closed. */
static quay_status read_file(const char *folder, const char *name,
                             quay_status (*take)(const quay_safetensors *, digits_network *),
                             digits_network *network) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "", 0, NULL,
                          "the folder's name is too long");
  }
  quay_safetensors *file = NULL;
  QUAY_TRY(quay_safetensors_open(path, NULL, &file));
  const quay_status status = take(file, network);
  quay_safetensors_close(file);
  return status;
}

/* out = weight * in + bias, negative results cut to 0 except in the last layer. */
static void apply(const dense_layer *layer, const float *in, bool cut, float *out) {
  const float *weight = layer->weight.data, *bias = layer->bias.data;
  const int64_t rows = layer->weight.shape[0], columns = layer->weight.shape[1];
  for (int64_t row = 0; row < rows; ++row) {
    float sum = bias[row];
    for (int64_t column = 0; column < columns; ++column) {
      sum += weight[row * columns + column] * in[column];
    }
    out[row] = cut && sum < 0 ? 0 : sum;
  }
}

static int classify(const digits_network *network, const float *image) {
  float a[UNITS_MAX], b[UNITS_MAX];
  apply(&network->layers[0], image, true, a);
  apply(&network->layers[1], a, true, b);
  apply(&network->layers[2], b, false, a);
  int best = 0;
  for (int digit = 1; digit < DIGITS; ++digit) {
    if (a[digit] > a[best])
      best = digit;
  }
  return best;
}

static int64_t count_correct(const digits_network *network) {
  const float *images = network->images.data;
  const uint8_t *labels = network->labels.data;
  int64_t correct = 0;
  for (int64_t i = 0; i < network->images.shape[0]; ++i) {
    if (classify(network, images + i * PIXELS) == labels[i])
      ++correct;
  }
  return correct;
}

static void network_release(digits_network *network) {
  for (size_t i = 0; i < LAYERS; ++i) {
    tensor_release(&network->layers[i].weight);
    tensor_release(&network->layers[i].bias);
  }
  tensor_release(&network->images);
  tensor_release(&network->labels);
}

int main(int argc, char **argv) {
  if (argc > 2) {
    fprintf(stderr, "usage: digits [FOLDER]\n");
    return 2;
  }
  const char *folder = argc == 2 ? argv[1] : DIGITS_FOLDER;
  digits_network network = {0};
  quay_status status = read_file(folder, "digits.safetensors", load_layers, &network);
  if (status == QUAY_OK) {
    status = read_file(folder, "digits-test.safetensors", load_images, &network);
  }
  if (status == QUAY_OK) {
    printf("%lld/%lld correct\n", (long long)count_correct(&network),
           (long long)network.images.shape[0]);
  } else {
    fprintf(stderr, "digits: %s\n", quay_last_error()->message);
  }
  network_release(&network);
  return status == QUAY_OK && fflush(stdout) == 0 ? 0 : 1;
}
