/* SHA-256. Names of functions and constants are those of FIPS 180-4, sections 4.1.2, 4.2.2, 5.3.3
 * and 6.2. */
#include "sha256.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_SIZE 64u

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t rotate(uint32_t x, unsigned n) {
  return x >> n | x << (32 - n);
}

static inline uint32_t load_big_endian(const unsigned char *bytes) {
  return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void add_block(uint32_t state[8], const unsigned char *block) {
  uint32_t w[64];
  for (size_t t = 0; t < 16; ++t)
    w[t] = load_big_endian(block + 4 * t);
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t x = w[t - 15], y = w[t - 2];
    const uint32_t sigma0 = rotate(x, 7) ^ rotate(x, 18) ^ x >> 3;
    const uint32_t sigma1 = rotate(y, 17) ^ rotate(y, 19) ^ y >> 10;
    w[t] = sigma1 + w[t - 7] + sigma0 + w[t - 16];
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t sum1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choice + constants[t] + w[t];
    const uint32_t sum0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
  state[4] += e;
  state[5] += f;
  state[6] += g;
  state[7] += h;
}

void sha256_begin(sha256 *hash) {
  *hash = (sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                             0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(sha256 *hash, const void *data, size_t size) {
  const unsigned char *next = data;
  const size_t held = (size_t)(hash->size % BLOCK_SIZE);
  hash->size += size;
  if (held != 0) {
    const size_t part = size < BLOCK_SIZE - held ? size : BLOCK_SIZE - held;
    memcpy(hash->block + held, next, part);
    if (held + part < BLOCK_SIZE)
      return;
    add_block(hash->state, hash->block);
    next += part;
    size -= part;
  }
  for (; size >= BLOCK_SIZE; next += BLOCK_SIZE, size -= BLOCK_SIZE)
    add_block(hash->state, next);
  if (size != 0)
    memcpy(hash->block, next, size);
}

void sha256_end(sha256 *hash, char out_text[SHA256_TEXT_SIZE]) {
  const uint64_t bits = hash->size * 8;
  const size_t held = (size_t)(hash->size % BLOCK_SIZE);
  /* A one bit, zeros up to 8 bytes before the end of a block, the length. */
  unsigned char padding[2 * BLOCK_SIZE] = {0x80};
  const size_t size = (held < BLOCK_SIZE - 8 ? BLOCK_SIZE : 2 * BLOCK_SIZE) - held;
  for (size_t i = 0; i < 8; ++i)
    padding[size - 1 - i] = (unsigned char)(bits >> (8 * i));
  sha256_add(hash, padding, size);
  for (size_t i = 0; i < 8; ++i) {
    snprintf(out_text + 8 * i, SHA256_TEXT_SIZE - 8 * i, "%08" PRIx32, hash->state[i]);
  }
}
