/* file_map.c - mmap of a regular file, with the errors a user can act on. */
#include "data/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool rrfp_file_is_regular(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

rrfp_status rrfp_file_map_open(const char *path, rrfp_file_map *out, rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    rrfp_file_map map = {NULL, 0};
    struct stat info;
    /* Without O_NONBLOCK, opening a pipe nobody writes to would hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    }
    if (fstat(fd, &info) != 0) {
        status = rrfp_error_set(error, RRFP_ERR_IO, "cannot examine '%s': %s", path,
                                strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = rrfp_error_set(error, RRFP_ERR_IO,
                                "'%s' is not a regular file; give a file on disk",
                                path);
    } else if (info.st_size > 0) {
        void *address = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (address == MAP_FAILED) {
            status = rrfp_error_set(error, RRFP_ERR_IO, "cannot map '%s' into memory: %s", path,
                                    strerror(errno));
        } else {
            map.bytes = address;
            map.size_bytes = (size_t)info.st_size;
        }
    }
    close(fd);
    if (status == RRFP_OK) {
        *out = map;
    }
    return status;
}

void rrfp_file_map_close(rrfp_file_map *map)
{
    if (map->bytes != NULL) {
        /* munmap wants a pointer to non-const; the mapping itself is read-only. */
        munmap((void *)(uintptr_t)map->bytes, map->size_bytes);
        map->bytes = NULL;
        map->size_bytes = 0;
    }
}
