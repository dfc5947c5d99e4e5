/* Loads the libraries that it is given, one after the other, and lets a thread allocate with each;
 * then unloads them, before that thread ends. */
#include <dlfcn.h>
#include <pthread.h>
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  MOST = 8
};

static void *libraries[MOST];
static int count;
static pthread_barrier_t used, unloaded;

static void *find(void *library, const char *name) {
  void *const found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return found;
}

static void allocate_with(void *library) {
  quay_status (*open)(const char *, quay_allocator **);
  quay_status (*alloc)(quay_allocator *, uint64_t, const quay_alloc_options *, quay_raw_buffer *);
  void (*free_raw)(quay_raw_buffer *);
  void (*release)(quay_allocator *);
  *(void **)(void *)&open = find(library, "quay_allocator_open");
  *(void **)(void *)&alloc = find(library, "quay_allocator_alloc");
  *(void **)(void *)&free_raw = find(library, "quay_raw_buffer_free");
  *(void **)(void *)&release = find(library, "quay_allocator_release");
  quay_allocator *pool = NULL;
  quay_raw_buffer raw;
  if (open("pool+cpu", &pool) != QUAY_OK || alloc(pool, 1000, NULL, &raw) != QUAY_OK) {
    fprintf(stderr, "a library that was loaded does not allocate\n");
    exit(1);
  }
  free_raw(&raw);
  release(pool);
}

static void *use_all(void *unused) {
  (void)unused;
  for (int i = 0; i < count; i++)
    allocate_with(libraries[i]);
  pthread_barrier_wait(&used);
  pthread_barrier_wait(&unloaded);
  return NULL;
}

static void unload(void *library) {
  quay_status (*shutdown)(void);
  *(void **)(void *)&shutdown = find(library, "quay_shutdown");
  if (shutdown() != QUAY_OK || dlclose(library) != 0) {
    fprintf(stderr, "a library can't be unloaded\n");
    exit(1);
  }
}

int main(int argc, char **argv) {
  for (count = 0; count + 1 < argc && count < MOST; count++) {
    libraries[count] = dlopen(argv[count + 1], RTLD_NOW | RTLD_LOCAL);
    if (libraries[count] == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  pthread_t thread;
  pthread_barrier_init(&used, NULL, 2);
  pthread_barrier_init(&unloaded, NULL, 2);
  if (pthread_create(&thread, NULL, use_all, NULL) != 0)
    return 1;
  pthread_barrier_wait(&used);
  for (int i = 0; i < count; i++)
    unload(libraries[i]);
  pthread_barrier_wait(&unloaded);
  pthread_join(thread, NULL);
  return 0;
}
