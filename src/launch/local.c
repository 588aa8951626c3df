/* local.c - see local.h. */
#include "launch/local.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECRET_BYTES = 32, EXIT_PEER = 3, GRACE_S = 5 };

static volatile sig_atomic_t signal_to_pass;

/* What the terminal sends reaches the children by itself. */
static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    signal_to_pass = info->si_code == SI_KERNEL ? -number : number;
}

static rrfp_status open_listener(int *fd, unsigned *port, rrfp_error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    *fd = socket(AF_INET, SOCK_STREAM, 0); /* rank 0 inherits it */
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(*fd, (struct sockaddr *)&address, &length) != 0 || listen(*fd, 1024) != 0) {
        rrfp_status status = rrfp_error_set(error, RRFP_ERR_IO,
                                            "cannot listen on 127.0.0.1 for the ranks: %s",
                                            strerror(errno));
        if (*fd >= 0) {
            close(*fd);
        }
        return status;
    }
    *port = ntohs(address.sin_port);
    return RRFP_OK;
}

static void set_number(const char *name, unsigned value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

/* In the child; does not come back. */
static void become_rank(const rrfp_local_launch *launch, char *const *arguments, unsigned rank,
                        unsigned port, int listener, const char *secret, pid_t parent)
{
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", launch->processes);
    set_number("LOCAL_WORLD_SIZE", launch->processes);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", port);
    setenv("RRFP_SECRET", secret, 1);
    if (rank == 0) {
        set_number("RRFP_LISTEN_FD", (unsigned)listener);
    } else {
        close(listener);
        unsetenv("RRFP_LISTEN_FD");
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) {
        _exit(1); /* it was faster */
    }
    execv("/proc/self/exe", arguments);
    fprintf(stderr, "rrfp: cannot start rank %u: %s\n", rank, strerror(errno));
    _exit(1);
}

static void kill_all(const pid_t *children, unsigned count, int number)
{
    for (unsigned r = 0; r < count; r++) {
        if (children[r] > 0) {
            kill(children[r], number);
        }
    }
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Notes the end of a child; `code` becomes what the run ends with. */
static void bury(pid_t *children, unsigned count, pid_t child, int how, int *code)
{
    for (unsigned r = 0; r < count; r++) {
        if (children[r] != child) {
            continue;
        }
        children[r] = 0;
        if (WIFSIGNALED(how)) {
            fprintf(stderr, "rrfp: rank %u was killed by signal %d (%s)\n", r, WTERMSIG(how),
                    strsignal(WTERMSIG(how)));
            *code = EXIT_PEER;
        } else if (WEXITSTATUS(how) != 0 && (*code == 0 || WEXITSTATUS(how) == EXIT_PEER)) {
            *code = WEXITSTATUS(how);
        }
    }
}

/* Waits for all; once one has failed the others have `patience_s` left. */
static int wait_for_all(pid_t *children, unsigned count, double patience_s)
{
    const struct timespec nap = {0, 20000000};
    double deadline = 0.0;
    int code = 0, how;
    for (;;) {
        pid_t child = waitpid(-1, &how, WNOHANG);
        if (child < 0 && errno == ECHILD) {
            return code;
        }
        if (child > 0) {
            bury(children, count, child, how, &code);
            if (code != 0 && deadline == 0.0) {
                deadline = seconds_now() + patience_s;
            }
            continue;
        }
        if (signal_to_pass > 0) {
            kill_all(children, count, signal_to_pass);
        }
        signal_to_pass = 0;
        if (deadline > 0.0 && seconds_now() > deadline) {
            kill_all(children, count, SIGCONT);
            kill_all(children, count, SIGKILL);
            deadline += GRACE_S;
        }
        nanosleep(&nap, NULL);
    }
}

static rrfp_status run_once(const rrfp_local_launch *launch, char *const *arguments, int *code,
                            rrfp_error *error)
{
    uint8_t raw[SECRET_BYTES];
    char secret[2 * SECRET_BYTES + 1];
    unsigned port = 0;
    int listener = -1;
    pid_t *children = calloc(launch->processes, sizeof *children);
    if (children == NULL || getrandom(raw, sizeof raw, 0) != sizeof raw) {
        free(children);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "cannot prepare %u processes",
                              launch->processes);
    }
    for (size_t i = 0; i < sizeof raw; i++) {
        snprintf(secret + 2 * i, 3, "%02x", raw[i]);
    }
    rrfp_status status = open_listener(&listener, &port, error);
    fflush(NULL);
    for (unsigned r = 0; status == RRFP_OK && r < launch->processes; r++) {
        pid_t parent = getpid();
        children[r] = fork();
        if (children[r] == 0) {
            become_rank(launch, arguments, r, port, listener, secret, parent);
        }
        if (children[r] < 0) {
            status = rrfp_error_set(error, RRFP_ERR_IO,
                                    "cannot start process %u of %u: %s; raise the limit on "
                                    "processes (ulimit -u)",
                                    r, launch->processes, strerror(errno));
            children[r] = 0;
            kill_all(children, r, SIGKILL);
        }
    }
    if (listener >= 0) {
        close(listener);
    }
    *code = wait_for_all(children, launch->processes, launch->peer_timeout_s + GRACE_S);
    free(children);
    return status;
}

static bool has_checkpoint(const char *save)
{
    char path[1200];
    int length = snprintf(path, sizeof path, "%s/latest_checkpointed_iteration.txt", save);
    return save[0] != '\0' && length < (int)sizeof path && access(path, R_OK) == 0;
}

/* The arguments without any --load, with --load SAVE; the caller frees the array. */
static char **arguments_of_restart(const rrfp_local_launch *launch)
{
    static char load[] = "--load";
    size_t count = 0, used = 0;
    while (launch->arguments[count] != NULL) {
        count++;
    }
    char **made = calloc(count + 3, sizeof *made);
    for (size_t i = 0; made != NULL && i < count; i++) {
        char *word = launch->arguments[i];
        if (strcmp(word, "--load") == 0) {
            i++;
        } else if (strncmp(word, "--load=", 7) != 0 && strcmp(word, "--finetune") != 0) {
            made[used++] = word;
        }
    }
    if (made != NULL) {
        made[used++] = load;
        made[used++] = (char *)(uintptr_t)launch->save;
    }
    return made;
}

rrfp_status rrfp_launch_local(const rrfp_local_launch *launch, int *exit_code, rrfp_error *error)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO}, old[2];
    rrfp_status status = RRFP_OK;
    sigemptyset(&action.sa_mask);
    signal_to_pass = 0;
    sigaction(SIGTERM, &action, &old[0]);
    sigaction(SIGINT, &action, &old[1]);
    status = run_once(launch, launch->arguments, exit_code, error);
    for (unsigned left = launch->restarts; status == RRFP_OK && *exit_code == EXIT_PEER && left > 0;
         left--) {
        char **arguments = has_checkpoint(launch->save) ? arguments_of_restart(launch) : NULL;
        fprintf(stderr, "rrfp: starting again %s%s (%u more after this)\n",
                arguments != NULL ? "from " : "from the beginning",
                arguments != NULL ? launch->save : "", left - 1);
        status = run_once(launch, arguments != NULL ? arguments : launch->arguments, exit_code,
                          error);
        free(arguments);
    }
    sigaction(SIGTERM, &old[0], NULL);
    sigaction(SIGINT, &old[1], NULL);
    return status;
}
