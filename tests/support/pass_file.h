/* A structure and one file descriptor over a socket (SCM_RIGHTS). */
#ifndef QUAY_TESTS_SUPPORT_PASS_FILE_H
#define QUAY_TESTS_SUPPORT_PASS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

typedef union quay_test_control {
  struct cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
} quay_test_control;

static inline bool quay_test_send_file(int socket, void *data, size_t size, int file) {
  struct iovec part = {.iov_base = data, .iov_len = size};
  quay_test_control control = {.room = {0}};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof file);
  memcpy(CMSG_DATA(header), &file, sizeof file);
  return sendmsg(socket, &message, 0) == (ssize_t)size;
}

/* The descriptor; -1: nothing came. */
static inline int quay_test_receive_file(int socket, void *data, size_t size) {
  struct iovec part = {.iov_base = data, .iov_len = size};
  quay_test_control control = {.room = {0}};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  int file = -1;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == (ssize_t)size &&
      CMSG_FIRSTHDR(&message) != NULL)
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
  return file;
}

#endif
