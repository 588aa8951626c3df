/* atomic_file.c - see atomic_file.h. */
#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static rrfp_status failed(const char *verb, const char *path, rrfp_error *error)
{
    int number = errno;
    return rrfp_error_set(error, RRFP_ERR_IO, "cannot %s %s: %s", verb, path, strerror(number));
}

rrfp_status rrfp_atomic_file_open(const char *path, rrfp_atomic_file *file, rrfp_error *error)
{
    memset(file, 0, sizeof *file);
    int length = snprintf(file->temporary, sizeof file->temporary, "%s.tmp-%ld", path,
                          (long)getpid());
    if (path[0] == '\0' || length < 0 || (size_t)length >= sizeof file->temporary) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "file name \"%.100s\" is empty or too long",
                              path);
    }
    memcpy(file->path, path, strlen(path) + 1);
    struct stat info;
    file->direct = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    file->stream = fopen(file->direct ? path : file->temporary, "wb");
    return file->stream == NULL ? failed("write", path, error) : RRFP_OK;
}

rrfp_status rrfp_sync_parent_directory(const char *path, rrfp_error *error)
{
    char directory[RRFP_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    if (length >= sizeof directory - 2) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "file name \"%.100s\" is too long", path);
    }
    memcpy(directory, path, length);
    directory[length] = '\0';
    if (length == 0) {
        strcpy(directory, slash == NULL ? "." : "/");
    }
    int descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
        return failed("open directory", directory, error);
    }
    /* Some file systems cannot sync a directory and say EINVAL: nothing is lost by going on. */
    if (fsync(descriptor) != 0 && errno != EINVAL) {
        rrfp_status status = failed("sync directory", directory, error);
        close(descriptor);
        return status;
    }
    close(descriptor);
    return RRFP_OK;
}

rrfp_status rrfp_atomic_file_commit(rrfp_atomic_file *file, rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    errno = 0;
    if (fflush(file->stream) != 0 || ferror(file->stream) ||
        (!file->direct && fsync(fileno(file->stream)) != 0)) {
        errno = errno != 0 ? errno : EIO;
        status = failed("write", file->path, error);
    }
    if (fclose(file->stream) != 0 && status == RRFP_OK) {
        status = failed("write", file->path, error);
    }
    file->stream = NULL;
    if (file->direct) {
        return status;
    }
    if (status == RRFP_OK && rename(file->temporary, file->path) != 0) {
        status = failed("replace", file->path, error);
    }
    if (status != RRFP_OK) {
        unlink(file->temporary);
        return status;
    }
    return rrfp_sync_parent_directory(file->path, error);
}

void rrfp_atomic_file_abort(rrfp_atomic_file *file)
{
    if (file->stream != NULL) {
        fclose(file->stream);
        file->stream = NULL;
        if (!file->direct) {
            unlink(file->temporary);
        }
    }
}

rrfp_status rrfp_atomic_file_write(const char *path, const void *bytes, size_t count,
                                   rrfp_error *error)
{
    rrfp_atomic_file file;
    rrfp_status status = rrfp_atomic_file_open(path, &file, error);
    if (status != RRFP_OK) {
        return status;
    }
    if (fwrite(bytes, 1, count, file.stream) != count) {
        status = failed("write", path, error);
        rrfp_atomic_file_abort(&file);
        return status;
    }
    return rrfp_atomic_file_commit(&file, error);
}

rrfp_status rrfp_make_directories(const char *dir, rrfp_error *error)
{
    char path[RRFP_PATH_BYTES];
    size_t length = strlen(dir);
    if (length == 0 || length >= sizeof path) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "directory \"%.100s\" is empty or too long",
                              dir);
    }
    memcpy(path, dir, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            char kept = path[i];
            path[i] = '\0';
            if (mkdir(path, 0777) != 0 && errno != EEXIST) {
                return failed("make directory", path, error);
            }
            path[i] = kept;
        }
    }
    struct stat info;
    if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode)) {
        errno = ENOTDIR;
        return failed("write into", dir, error);
    }
    return RRFP_OK;
}

rrfp_status rrfp_atomic_file_prepare(const char *path, rrfp_error *error)
{
    char directory[RRFP_PATH_BYTES];
    rrfp_atomic_file file;
    rrfp_status status = RRFP_OK;
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    if (length > 0 && length < sizeof directory) {
        memcpy(directory, path, length);
        directory[length] = '\0';
        status = rrfp_make_directories(directory, error);
    }
    if (status == RRFP_OK) {
        status = rrfp_atomic_file_open(path, &file, error);
    }
    if (status == RRFP_OK) {
        rrfp_atomic_file_abort(&file);
    }
    return status;
}
