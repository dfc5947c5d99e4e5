/* SHA-256 (FIPS 180-4, section 6.2). */
#ifndef QUAY_TOOLS_SHA256_H
#define QUAY_TOOLS_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_TEXT_SIZE 65 /* 64 hexadecimal digits and a NUL */

typedef struct sha256 {
  uint32_t state[8];
  uint64_t size; /* bytes so far */
  unsigned char block[64];
} sha256;

void sha256_begin(sha256 *hash);
void sha256_add(sha256 *hash, const void *data, size_t size);
void sha256_end(sha256 *hash, char out_text[SHA256_TEXT_SIZE]);

#endif
