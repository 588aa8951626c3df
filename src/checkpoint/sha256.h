/* sha256.h - nettle's SHA-256 with a hexadecimal result. */
#ifndef RRFP_SHA256_H
#define RRFP_SHA256_H

#include <nettle/sha2.h>

/* Ends the hash; 64 digits and a NUL. */
static inline void rrfp_sha256_hex(struct sha256_ctx *context, char hex_out[65])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(context, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        hex_out[2 * i] = digits[digest[i] >> 4];
        hex_out[2 * i + 1] = digits[digest[i] & 15];
    }
    hex_out[64] = '\0';
}

#endif /* RRFP_SHA256_H */
