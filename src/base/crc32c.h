/* crc32c.h - CRC-32C (Castagnoli), as in iSCSI (RFC 3720, appendix B.4). */
#ifndef RRFP_BASE_CRC32C_H
#define RRFP_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of `bytes` bytes at `data`; by the processor's own instruction where it has one. */
uint32_t rrfp_crc32c(const void *data, size_t bytes);

/* The same without that instruction: what others are compared with. */
uint32_t rrfp_crc32c_portable(const void *data, size_t bytes);

#endif /* RRFP_BASE_CRC32C_H */
