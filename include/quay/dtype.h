/* Element types. A dtype says how many bits an element takes and how it is aligned; Quay moves
 * elements and never computes with them. */
#ifndef QUAY_DTYPE_H
#define QUAY_DTYPE_H

#include <quay/base.h>
#include <quay/status.h>

/* X(NAME, value, bits, alignment, text)
 *   bits       of one element. All of today's are whole bytes; sub-byte types fit the interface
 *   alignment  in bytes, of one element in host memory: that of the C type, of the real part for
 *              complex types
 *   text       the lower-case name that quay_dtype_name() gives and quay_dtype_parse() takes
 * The values are part of the ABI: new types are appended.
 * F8_E4M3 is the variant without infinities (OCP 8-bit Floating Point Specification, "FN"),
 * F8_E5M2 the IEEE-like one, F8_E8M0 the power-of-two scale of OCP Microscaling. */
#define QUAY_DTYPE_TABLE(X)       \
  X(BOOL, 1, 8, 1, "bool")        \
  X(U8, 2, 8, 1, "u8")            \
  X(I8, 3, 8, 1, "i8")            \
  X(U16, 4, 16, 2, "u16")         \
  X(I16, 5, 16, 2, "i16")         \
  X(U32, 6, 32, 4, "u32")         \
  X(I32, 7, 32, 4, "i32")         \
  X(U64, 8, 64, 8, "u64")         \
  X(I64, 9, 64, 8, "i64")         \
  X(F16, 10, 16, 2, "f16")        \
  X(BF16, 11, 16, 2, "bf16")      \
  X(F32, 12, 32, 4, "f32")        \
  X(F64, 13, 64, 8, "f64")        \
  X(F8_E4M3, 14, 8, 1, "f8_e4m3") \
  X(F8_E5M2, 15, 8, 1, "f8_e5m2") \
  X(F8_E8M0, 16, 8, 1, "f8_e8m0") \
  X(C64, 17, 64, 4, "c64")        \
  X(C128, 18, 128, 8, "c128")

/* Zero is no type, so that a forgotten field is an error and not a silent byte. */
typedef enum quay_dtype {
  QUAY_DTYPE_NONE = 0,
#define QUAY_DTYPE_ENUMERATOR(name, value, bits, alignment, text) QUAY_##name = (value),
  QUAY_DTYPE_TABLE(QUAY_DTYPE_ENUMERATOR)
#undef QUAY_DTYPE_ENUMERATOR
} quay_dtype;

QUAY_BEGIN_DECLS

/* Whether `dtype` is one of the table's.
 * Thread-safety: any thread, any time. */
QUAY_API bool quay_dtype_valid(quay_dtype dtype);

/* Bits of one element; 0 for a value that is no dtype.
 * Thread-safety: any thread, any time. */
QUAY_API uint32_t quay_dtype_bits(quay_dtype dtype);

/* Bytes of one element; 0 for a value that is no dtype and for one of less than a byte.
 * Thread-safety: any thread, any time. */
QUAY_API size_t quay_dtype_size(quay_dtype dtype);

/* Alignment of one element in host memory, in bytes; 0 for a value that is no dtype.
 * Thread-safety: any thread, any time. */
QUAY_API size_t quay_dtype_alignment(quay_dtype dtype);

/* The lower-case name, such as "bf16"; "none" for a value that is no dtype. Static.
 * Thread-safety: any thread, any time. */
QUAY_API const char *quay_dtype_name(quay_dtype dtype);

/* The dtype of the name `text`, in lower or upper case ("f32", "BF16").
 * Errors: INVALID_ARGUMENT if `text` is NULL or names no dtype; the message lists the names.
 * Thread-safety: any thread, any time. */
QUAY_API QUAY_NODISCARD quay_status quay_dtype_parse(const char *text, quay_dtype *out_dtype);

/* Bytes of a compact array: the product of the `rank` extents of `shape`, times the element's
 * bits, rounded up to whole bytes. Rank 0 is a scalar: one element. An extent of 0 makes it 0.
 * Errors: INVALID_ARGUMENT (no dtype, negative extent, rank above QUAY_RANK_MAX, `shape` NULL with
 * a rank above 0); OUT_OF_RANGE if the product exceeds 2^63-1 bytes.
 * Thread-safety: any thread, any time. */
QUAY_API QUAY_NODISCARD quay_status quay_dtype_array_size(quay_dtype dtype, int32_t rank,
                                                          const int64_t *shape, uint64_t *out_size);

/* The most dimensions that a buffer has. NumPy's own limit is 64 since version 2.0. */
#define QUAY_RANK_MAX 64

QUAY_END_DECLS

#endif
