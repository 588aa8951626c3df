/* crc32c.c - see crc32c.h. */
#include "base/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

/* Four bits at a time: a small table, two short steps a byte. */
uint32_t rrfp_crc32c_portable(const void *data, size_t bytes)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1, 0x417B1DBC, 0x5125DAD3,
        0x61C69362, 0x7198540D, 0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9,
        0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75};
    const unsigned char *at = data;
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        crc = (crc >> 4) ^ table[crc & 15];
        crc = (crc >> 4) ^ table[crc & 15];
    }
    return ~crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) static uint32_t by_instruction(const void *data, size_t bytes)
{
    const unsigned char *at = data, *end = at + bytes;
    uint64_t crc = UINT32_MAX, word;
    for (; end - at >= 8; at += 8) {
        memcpy(&word, at, sizeof word);
        crc = _mm_crc32_u64(crc, word);
    }
    uint32_t low = (uint32_t)crc;
    for (; at < end; at++) {
        low = _mm_crc32_u8(low, *at);
    }
    return ~low;
}

uint32_t rrfp_crc32c(const void *data, size_t bytes)
{
    return __builtin_cpu_supports("sse4.2") ? by_instruction(data, bytes)
                                            : rrfp_crc32c_portable(data, bytes);
}

#elif defined(__ARM_FEATURE_CRC32)

uint32_t rrfp_crc32c(const void *data, size_t bytes)
{
    const unsigned char *at = data, *end = at + bytes;
    uint32_t crc = UINT32_MAX;
    uint64_t word;
    for (; end - at >= 8; at += 8) {
        memcpy(&word, at, sizeof word);
        crc = __crc32cd(crc, word);
    }
    for (; at < end; at++) {
        crc = __crc32cb(crc, *at);
    }
    return ~crc;
}

#else

uint32_t rrfp_crc32c(const void *data, size_t bytes)
{
    return rrfp_crc32c_portable(data, bytes);
}

#endif
