/* Two processes, one piece of GPU memory: the parent writes squares into it and passes it to its
 * child over a socket, which adds one to each of them in place; then the parent reads them.
 *
 *   cuda_share [SPEC]
 *
 * SPEC is an allocator of CUDA device memory, cuda:0 by default. Ends with status 0 if every number
 * is right, and with 77 where there is no such memory. */
#include <quay/quay.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 1000

typedef union control_message {
  struct cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
} control_message;

/* The structure goes as data, the file descriptor in it as a right. */
static bool send_memory(int socket, quay_cuda_shared *shared) {
  control_message control = {.room = {0}};
  struct iovec data = {.iov_base = shared, .iov_len = sizeof *shared};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof shared->file);
  memcpy(CMSG_DATA(header), &shared->file, sizeof shared->file);
  return sendmsg(socket, &message, 0) == (ssize_t)sizeof *shared;
}

static bool receive_memory(int socket, quay_cuda_shared *out) {
  control_message control = {.room = {0}};
  struct iovec data = {.iov_base = out, .iov_len = sizeof *out};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *out)
    return false;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header == NULL || header->cmsg_type != SCM_RIGHTS)
    return false;
  /* The number in the structure was the sender's. */
  memcpy(&out->file, CMSG_DATA(header), sizeof out->file);
  return true;
}

static quay_status add_one(quay_buffer *buffer) {
  int32_t numbers[COUNT];
  QUAY_TRY(quay_buffer_copy_out(buffer, numbers, sizeof numbers));
  for (int i = 0; i < COUNT; i++)
    numbers[i]++;
  return quay_buffer_copy_in(buffer, numbers, sizeof numbers);
}

/* The child's part. */
static quay_status change(quay_allocator *allocator, const quay_cuda_shared *shared) {
  quay_raw_buffer imported;
  const quay_status status = quay_cuda_import(allocator, shared, &imported);
  close(shared->file); /* the mapping does not need it */
  if (status != QUAY_OK)
    return status;
  quay_buffer *buffer = NULL;
  quay_status changed = quay_buffer_from_raw(&imported, QUAY_I32, 1, (int64_t[]){COUNT}, &buffer);
  if (changed == QUAY_OK)
    changed = add_one(buffer);
  quay_raw_buffer_free(&imported); /* the buffer has taken it over, unless that failed */
  quay_buffer_release(buffer);
  return changed;
}

static int run_child(const char *spec, int socket) {
  quay_cuda_shared shared;
  if (!receive_memory(socket, &shared))
    return 1; /* the parent has said why */
  quay_allocator *allocator = NULL;
  quay_status status = quay_allocator_open(spec, &allocator);
  if (status == QUAY_OK)
    status = change(allocator, &shared);
  quay_allocator_release(allocator);
  if (status != QUAY_OK)
    fprintf(stderr, "cuda_share, child: %s\n", quay_last_error()->message);
  return status == QUAY_OK ? 0 : 1;
}

static quay_status make_squares(quay_allocator *allocator, quay_buffer **out_buffer) {
  int32_t numbers[COUNT];
  for (int i = 0; i < COUNT; i++)
    numbers[i] = i * i;
  const quay_alloc_options options = {.exportable = true};
  return quay_buffer_create_from_host(allocator, QUAY_I32, 1, (int64_t[]){COUNT}, numbers, &options,
                                      out_buffer);
}

static quay_status pass_on(quay_buffer *buffer, int socket) {
  quay_cuda_shared shared;
  QUAY_TRY(quay_cuda_export(buffer, &shared));
  if (!send_memory(socket, &shared))
    perror("cuda_share: sendmsg");
  close(shared.file); /* the child has a descriptor of its own */
  return QUAY_OK;
}

static quay_status count_right(const quay_buffer *buffer, int *out_right) {
  int32_t numbers[COUNT];
  *out_right = 0;
  QUAY_TRY(quay_buffer_copy_out(buffer, numbers, sizeof numbers));
  for (int i = 0; i < COUNT; i++)
    *out_right += numbers[i] == i * i + 1;
  return QUAY_OK;
}

/* The socket is closed in any case, so that the child does not wait for ever. */
static quay_status run_parent(quay_allocator *allocator, int socket, pid_t child, int *out_right) {
  quay_buffer *buffer = NULL;
  quay_status status = make_squares(allocator, &buffer);
  if (status == QUAY_OK)
    status = pass_on(buffer, socket);
  close(socket);
  waitpid(child, NULL, 0);
  if (status == QUAY_OK)
    status = count_right(buffer, out_right);
  quay_buffer_release(buffer);
  return status;
}

int main(int argc, char **argv) {
  const char *spec = argc > 1 ? argv[1] : "cuda:0";
  int ends[2], right = 0;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    perror("cuda_share: socketpair");
    return 1;
  }
  const pid_t child = fork(); /* before CUDA is used: it does not survive a fork */
  if (child == 0) {
    close(ends[0]);
    return run_child(spec, ends[1]);
  }
  close(ends[1]);
  quay_allocator *allocator = NULL;
  quay_status status = quay_allocator_open(spec, &allocator);
  if (status == QUAY_OK) {
    status = run_parent(allocator, ends[0], child, &right);
  } else {
    close(ends[0]);
    waitpid(child, NULL, 0);
  }
  quay_allocator_release(allocator);
  if (status != QUAY_OK) {
    fprintf(stderr, "cuda_share: %s\n", quay_last_error()->message);
    return status == QUAY_STATUS_UNAVAILABLE || status == QUAY_STATUS_UNSUPPORTED ? 77 : 1;
  }
  printf("%d of %d numbers are right\n", right, COUNT);
  return right == COUNT ? 0 : 1;
}
