/* atomic_file.c - whole or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/atomic_file.h"

static void whole_or_not_at_all(void **state)
{
    (void)state;
    char dir[] = "/tmp/rrfp-atomic-XXXXXX", path[64], text[16] = "", command[96];
    rrfp_error error;
    rrfp_atomic_file file;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(rrfp_atomic_file_write(path, "old", 3, &error), RRFP_OK);
    assert_int_equal(rrfp_atomic_file_open(path, &file, &error), RRFP_OK);
    fputs("half", file.stream);
    rrfp_atomic_file_abort(&file);
    assert_int_equal(rrfp_atomic_file_prepare(path, &error), RRFP_OK);
    FILE *read = fopen(path, "r");
    assert_non_null(read);
    assert_non_null(fgets(text, sizeof text, read));
    fclose(read);
    assert_string_equal(text, "old");
    snprintf(command, sizeof command, "test \"$(ls %s)\" = f", dir); /* no temporary file left */
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static void errors_name_the_file(void **state)
{
    (void)state;
    rrfp_error error;
    assert_int_equal(rrfp_atomic_file_write("/nonexistent/f", "x", 1, &error), RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "/nonexistent/f"));
    assert_int_equal(rrfp_atomic_file_write("", "x", 1, &error), RRFP_ERR_INVALID);
    assert_int_equal(rrfp_atomic_file_write("/dev/full", "x", 1, &error), RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "/dev/full"));
}

/* As root a rename over a device would replace the device. */
static void a_device_is_written_not_replaced(void **state)
{
    (void)state;
    rrfp_error error;
    struct stat info;
    assert_int_equal(rrfp_atomic_file_write("/dev/null", "x", 1, &error), RRFP_OK);
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_or_not_at_all),
        cmocka_unit_test(errors_name_the_file),
        cmocka_unit_test(a_device_is_written_not_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
