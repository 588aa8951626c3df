/*
 * doctor.c - `rrfp doctor`: what this machine and this build are, and what to
 * remedy.  Reads, measures for under a second, changes nothing.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "config/options.h"
#include "kernels/kernels.h"
#include "launch/binding.h"
#include "launch/mpi_rendezvous.h"
#ifdef RRFP_HAVE_UCX
#include "transport/ucx.h"
#endif

enum { GEMM_SIZE = 384, MAX_REMEDIES = 16, SLEEPS = 21, MEDIAN_SLEEP = 10 };

typedef struct report {
    char remedies[MAX_REMEDIES][320];
    size_t remedy_count;
} report;

__attribute__((format(printf, 2, 3))) static void row(const char *name, const char *format, ...)
{
    va_list args;

    printf("  %-16s ", name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    fputc('\n', stdout);
}

__attribute__((format(printf, 2, 3))) static void remedy(report *r, const char *format, ...)
{
    va_list args;

    if (r->remedy_count < MAX_REMEDIES) {
        va_start(args, format);
        vsnprintf(r->remedies[r->remedy_count++], sizeof r->remedies[0], format, args);
        va_end(args);
    }
}

/* First line of a file of /proc or /sys, without its newline; false when there is none. */
static bool read_line(const char *path, char *out, size_t out_bytes)
{
    FILE *file = fopen(path, "re");
    bool read;

    if (file == NULL) {
        return false;
    }
    read = fgets(out, (int)out_bytes, file) != NULL;
    fclose(file);
    if (read) {
        out[strcspn(out, "\n")] = '\0';
    }
    return read;
}

static void write_size(uint64_t bytes, char *out, size_t out_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(out, out_bytes, "%.4g %s", value, units[unit]);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static long report_cores(report *r)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN), usable = online;
    char smt[16], quota[64], model[160] = "unknown";
    FILE *file = fopen("/proc/cpuinfo", "re");
    long long limit = 0, period = 0;

    for (char line[256]; file != NULL && fgets(line, sizeof line, file) != NULL;) {
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            snprintf(model, sizeof model, "%.150s", strchr(line, ':') + 2);
            model[strcspn(model, "\n")] = '\0';
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    row("processor", "%s", model);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        usable = CPU_COUNT(&set);
    }
    row("cores", "%ld usable of %ld online%s", usable, online,
        read_line("/sys/devices/system/cpu/smt/active", smt, sizeof smt) && smt[0] == '1'
            ? ", hyper-threads among them"
            : "");
    if (usable < online) {
        remedy(r, "only %ld of %ld cores may be used: check taskset or the container's cpuset",
               usable, online);
    }
    if (read_line("/sys/fs/cgroup/cpu.max", quota, sizeof quota)) {
        if (sscanf(quota, "%lld %lld", &limit, &period) != 2) {
            limit = 0;
        }
    } else if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota)) {
        limit = strtoll(quota, NULL, 10);
        if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", quota, sizeof quota)) {
            period = strtoll(quota, NULL, 10);
        }
    }
    if (limit > 0 && period > 0) {
        row("cpu quota", "%.2f cores", (double)limit / (double)period);
        if (limit < usable * period) {
            remedy(r, "the control group grants %.2f of %ld cores: stages on more threads than "
                      "that are throttled in bursts; use fewer stages or raise the quota",
                   (double)limit / (double)period, usable);
        }
    } else {
        row("cpu quota", "none");
    }
    return usable;
}

static void report_memory(report *r)
{
    char total[32], available[32] = "unknown", limit[32], text[64], level[3][32];
    static const int names[3] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                                 _SC_LEVEL3_CACHE_SIZE};
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t free_bytes = 0;
    FILE *file = fopen("/proc/meminfo", "re");

    for (char line[128]; file != NULL && fgets(line, sizeof line, file) != NULL;) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &free_bytes) == 1) {
            free_bytes *= 1024;
            write_size(free_bytes, available, sizeof available);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    for (size_t i = 0; i < 3; i++) {
        long bytes = sysconf(names[i]);

        if (bytes > 0) {
            write_size((uint64_t)bytes, level[i], sizeof level[i]);
        } else {
            snprintf(level[i], sizeof level[i], "unknown");
        }
    }
    row("caches", "L1d %s, L2 %s, L3 %s", level[0], level[1], level[2]);
    write_size((uint64_t)sysconf(_SC_PHYS_PAGES) * page, total, sizeof total);
    row("memory", "%s, %s available", total, available);
    if (free_bytes > 0 && free_bytes < (uint64_t)1 << 30) {
        remedy(r, "under 1 GiB of memory is free: bound activations with --max-inflight or "
                  "--max-inflight-bytes");
    }
    if (read_line("/sys/fs/cgroup/memory.max", text, sizeof text) ||
        read_line("/sys/fs/cgroup/memory/memory.limit_in_bytes", text, sizeof text)) {
        uint64_t bytes = strtoull(text, NULL, 10);

        /* "max", or version 1's number near 2^63, is no limit. */
        if (bytes > 0 && bytes < UINT64_C(1) << 60) {
            write_size(bytes, limit, sizeof limit);
            row("memory limit", "%s (control group)", limit);
        }
    }
    if (read_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text)) {
        row("huge pages", "%s", text);
        if (strstr(text, "[never]") != NULL) {
            remedy(r, "transparent huge pages are off: 'madvise' or 'always' in "
                      "/sys/kernel/mm/transparent_hugepage/enabled spares TLB misses");
        }
    }
}

static void report_limits(report *r)
{
    static const struct {
        int which;
        const char *name;
    } limits[] = {{RLIMIT_NOFILE, "open files"}, {RLIMIT_AS, "address space"},
                  {RLIMIT_STACK, "stack"}};

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct rlimit limit;

        if (getrlimit(limits[i].which, &limit) != 0) {
            continue;
        }
        if (limit.rlim_cur == RLIM_INFINITY) {
            row(limits[i].name, "unlimited");
        } else {
            row(limits[i].name, "%ju", (uintmax_t)limit.rlim_cur);
        }
        if (limits[i].which == RLIMIT_AS && limit.rlim_cur != RLIM_INFINITY) {
            remedy(r, "the address space is limited: 'ulimit -v unlimited', token files are "
                      "mapped whole");
        }
    }
}

static int compare_ns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void report_clock(report *r)
{
    char source[64];
    uint64_t late[SLEEPS];

    if (read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
                  sizeof source)) {
        row("clock source", "%s", source);
        if (strcmp(source, "hpet") == 0 || strcmp(source, "acpi_pm") == 0) {
            remedy(r, "clock source %s is slow to read: traces cost more; prefer tsc", source);
        }
    }
    for (size_t i = 0; i < SLEEPS; i++) {
        struct timespec wait = {0, 1000000};
        uint64_t start = now_ns();

        nanosleep(&wait, NULL);
        late[i] = now_ns() - start;
        late[i] = late[i] > 1000000 ? late[i] - 1000000 : 0;
    }
    qsort(late, SLEEPS, sizeof late[0], compare_ns);
    row("sleep overshoot", "%.0f us median, %.0f us worst of %d sleeps of 1 ms",
        (double)late[MEDIAN_SLEEP] / 1e3, (double)late[SLEEPS - 1] / 1e3, SLEEPS);
}

/* Best of several products within about a third of a second; 0 without memory. */
static double measure_gemm(void)
{
    size_t count = (size_t)GEMM_SIZE * GEMM_SIZE;
    float *buffers = aligned_alloc(64, 3 * count * sizeof(float));
    double flops = 2.0 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE, best = 0;
    uint64_t begin = now_ns();

    if (buffers == NULL) {
        return 0;
    }
    for (size_t i = 0; i < 3 * count; i++) {
        buffers[i] = (float)(i % 17) * 0.0625f;
    }
    rrfp_kernels_thread_init(1);
    for (int i = 0; i < 1000 && now_ns() - begin < 300000000u; i++) {
        uint64_t start = now_ns();
        double rate;

        rrfp_gemm(false, false, GEMM_SIZE, GEMM_SIZE, GEMM_SIZE, buffers, GEMM_SIZE,
                  buffers + count, GEMM_SIZE, 0.0f, buffers + 2 * count, GEMM_SIZE);
        rate = flops / (double)(now_ns() - start + 1);
        best = rate > best ? rate : best;
    }
    free(buffers);
    return best;
}

static void report_instructions(report *r)
{
#if defined(__x86_64__) || defined(__i386__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f");
#if defined(__AVX512F__)
    const char *built = "AVX-512";
    bool wider = false;
#elif defined(__AVX2__)
    const char *built = "AVX2";
    bool wider = avx512;
#else
    const char *built = "SSE2";
    bool wider = avx2 || avx512;
#endif
    row("vector unit", "%s here, compiled for %s", avx512 ? "AVX-512" : avx2 ? "AVX2" : "SSE2",
        built);
    if (wider) {
        remedy(r, "compiled for %s on a machine that has more: configure with -DRRFP_NATIVE=ON",
               built);
    }
#else
    (void)r;
#endif
}

static void report_build(report *r)
{
    double rate = measure_gemm();

    row("version", "%s", RRFP_VERSION_STRING);
    row("compiler", "%s",
#if defined(__clang__)
        __VERSION__
#else
        "gcc " __VERSION__
#endif
    );
#if defined(RRFP_SANITIZED)
    row("build", "sanitizers on");
    remedy(r, "this build carries sanitizers and is many times slower: use the release preset");
#elif !defined(NDEBUG)
    row("build", "assertions on");
    remedy(r, "this build checks assertions: use the release preset for speed");
#else
    row("build", "release");
#endif
    report_instructions(r);
    row("GEMM library", "%s, %.1f GFLOP/s on one thread (%d x %d x %d)", rrfp_kernels_gemm_name(),
        rate, GEMM_SIZE, GEMM_SIZE, GEMM_SIZE);
    const char *mpi = rrfp_mpi_name() == NULL ? "MPI no" : rrfp_mpi_name();
#ifdef RRFP_HAVE_UCX
    row("transports", "inproc (threads of one process); %s (processes)", rrfp_ucx_version());
#else
    row("transports", "inproc (threads of one process); UCX no");
#endif
    row("launchers", "--nproc; RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; %s", mpi);
    row("binding", "%s", rrfp_binding_name() == NULL ? "hwloc no" : rrfp_binding_name());
    row("devices", "processor only");
    row("data", "text, Megatron .bin/.idx, llm.c shards; tokenizers byte, gpt2-bpe");
    row("checkpoints", "safetensors, Hugging Face GPT-2 and Llama directories");
}

static void report_environment(report *r, long cores)
{
    static const char *const names[] = {
        "OMP_NUM_THREADS",      "OMP_PROC_BIND",      "OMP_PLACES",       "OMP_WAIT_POLICY",
        "GOMP_CPU_AFFINITY",    "OPENBLAS_CORETYPE",  "OPENBLAS_NUM_THREADS",
        "OPENBLAS_VERBOSE",     "BLIS_NUM_THREADS",   "BLIS_ARCH_TYPE",   "DNNL_MAX_CPU_ISA",
        "ONEDNN_MAX_CPU_ISA",   "DNNL_VERBOSE",       "ONEDNN_VERBOSE",   "MALLOC_ARENA_MAX",
        "LD_PRELOAD"};
    bool any = false;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);

        if (value == NULL) {
            continue;
        }
        any = true;
        row(names[i], "%.120s", value);
        if (strstr(names[i], "CORETYPE") != NULL || strstr(names[i], "ARCH_TYPE") != NULL ||
            strstr(names[i], "MAX_CPU_ISA") != NULL) {
            remedy(r, "%s=%.60s pins the GEMM library to a kernel: unset it unless you mean it",
                   names[i], value);
        }
        if (strstr(names[i], "VERBOSE") != NULL && strcmp(value, "0") != 0) {
            remedy(r, "%s=%.60s prints from inside every product: unset it", names[i], value);
        }
        if (strcmp(names[i], "OMP_PROC_BIND") == 0 && strcmp(value, "false") != 0 && cores > 1) {
            remedy(r, "OMP_PROC_BIND=%.60s may bind all stages to one core: unset it", value);
        }
        if (strcmp(names[i], "OMP_WAIT_POLICY") == 0 && strcasecmp(value, "active") == 0) {
            remedy(r, "OMP_WAIT_POLICY=active makes waiting threads burn the cores other stages "
                      "need: unset it");
        }
    }
    if (!any) {
        row("(nothing set)", "no variable that changes threads or kernels");
    }
}

int rrfp_cli_doctor(int argc, char **argv)
{
    static report r;
    struct utsname system;
    long cores;

    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        rrfp_options_print_help(RRFP_COMMAND_DOCTOR, stdout);
        return RRFP_EXIT_OK;
    }
    if (argc > 0 && strcmp(argv[0], "--layout") == 0) {
        return rrfp_cli_doctor_layout(argc - 1, argv + 1);
    }
    if (argc > 0) {
        fprintf(stderr, "rrfp: 'doctor' takes --layout or nothing, not '%.80s'\n", argv[0]);
        return RRFP_EXIT_USAGE;
    }
    printf("Machine\n");
    if (uname(&system) == 0) {
        row("system", "%s %s %s", system.sysname, system.release, system.machine);
    }
    cores = report_cores(&r);
    report_memory(&r);
    report_limits(&r);
    report_clock(&r);
    printf("\nBuild\n");
    report_build(&r);
    printf("\nEnvironment\n");
    report_environment(&r, cores);
    printf("\nRemedies\n");
    for (size_t i = 0; i < r.remedy_count; i++) {
        printf("  - %s\n", r.remedies[i]);
    }
    if (r.remedy_count == 0) {
        printf("  none needed\n");
    }
    return RRFP_EXIT_OK;
}
