/* SANITIZED is defined where AddressSanitizer or ThreadSanitizer makes programs slow, and
 * ADDRESS_SANITIZED where the first of them watches memory. */
#ifndef QUAY_TESTS_SUPPORT_SANITIZED_H
#define QUAY_TESTS_SUPPORT_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZED 1
#endif
#endif

#endif
