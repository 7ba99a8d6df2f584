/* Counts the calls that change files below one folder, and makes the n-th of them fail or kill the process.

   cc -shared -fPIC -o shim.so shim.c -ldl;  FAULT_STATE=a_file LD_PRELOAD=./shim.so python ...

   All processes with the same FAULT_STATE count together, so the n-th call is that of any of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, FAIL, FULL };

static struct state {
    long made, chosen;
    int armed, mode, full;
    char root[PATH_MAX], calls[1 << 16]; /* a letter for each call */
} nothing, *state = &nothing;

__attribute__((constructor)) static void share(void) {
    const char *path = getenv("FAULT_STATE");
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, sizeof *state)) return;
    void *shared = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) state = shared;
    close(file);
}

void fault_arm(const char *folder, long number, int what) {
    state->armed = 0;
    strncpy(state->root, folder, sizeof state->root - 1);
    memset(state->calls, 0, sizeof state->calls);
    state->made = state->full = 0, state->chosen = number, state->mode = what, state->armed = 1;
}
void fault_disarm(void) { state->armed = state->full = 0; }
const char *fault_calls(void) { return state->calls; }

static int starts(const char *path) { return !strncmp(path, state->root, strlen(state->root)); }

static int below(int folder, const char *path) {
    char link[64], base[PATH_MAX] = "";
    if (!state->armed || (path && path[0] == '/')) return state->armed && starts(path);
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, base, sizeof base - 1);
    return length > 0 && starts(base);
}

/* 0: go on. 1: fail, errno is set. 2: a write that is to be cut in half. */
static int hit(char kind) {
    long number = __sync_add_and_fetch(&state->made, 1);
    if (number < (long)sizeof state->calls) state->calls[number - 1] = kind;
    int now = number == state->chosen;
    if (now && state->mode == KILL) {
        if (kind == 'w') return 2;
        kill(getpid(), SIGKILL);
    }
    if (now && state->mode == FULL) state->full = 1;
    if (state->full && (kind == 'w' || kind == 'm')) return errno = ENOSPC, 1;
    if (now && state->mode == FAIL) return errno = EIO, 1;
    return 0;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define OPEN(name, at)                                                                                               \
    int name(const char *path, int flags, ...) {                                                                     \
        va_list rest; va_start(rest, flags); mode_t bits = va_arg(rest, mode_t); va_end(rest);                         \
        REAL(name);                                                                                                  \
        return below(at, path) && hit('o') ? -1 : real(path, flags, bits);                                            \
    }
OPEN(open, AT_FDCWD)
OPEN(open64, AT_FDCWD)
#define OPENAT(name)                                                                                                 \
    int name(int folder, const char *path, int flags, ...) {                                                         \
        va_list rest; va_start(rest, flags); mode_t bits = va_arg(rest, mode_t); va_end(rest);                         \
        REAL(name);                                                                                                  \
        return below(folder, path) && hit('o') ? -1 : real(folder, path, flags, bits);                                \
    }
OPENAT(openat)
OPENAT(openat64)
#define FOPEN(name)                                                                                                  \
    FILE *name(const char *path, const char *how) {                                                                  \
        REAL(name);                                                                                                  \
        return below(AT_FDCWD, path) && hit('o') ? NULL : real(path, how);                                            \
    }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int file, const void *bytes, size_t count) {
    REAL(write);
    int what = below(file, NULL) ? hit('w') : 0;
    if (what == 2) real(file, bytes, count / 2), kill(getpid(), SIGKILL);
    return what ? -1 : real(file, bytes, count);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    int what = below(file, NULL) ? hit('w') : 0;
    if (what == 2) real(file, parts, count / 2), kill(getpid(), SIGKILL);
    return what ? -1 : real(file, parts, count);
}
#define PWRITE(name)                                                                                                 \
    ssize_t name(int file, const void *bytes, size_t count, off_t place) {                                            \
        REAL(name);                                                                                                  \
        int what = below(file, NULL) ? hit('w') : 0;                                                                  \
        if (what == 2) real(file, bytes, count / 2, place), kill(getpid(), SIGKILL);                                   \
        return what ? -1 : real(file, bytes, count, place);                                                           \
    }
PWRITE(pwrite)
PWRITE(pwrite64)
#define ON_FILE(name, kind)                                                                                          \
    int name(int file) { REAL(name); return below(file, NULL) && hit(kind) ? -1 : real(file); }
ON_FILE(fsync, 'f')
ON_FILE(fdatasync, 'f')
#define ON_PATH(name, kind)                                                                                          \
    int name(const char *path) { REAL(name); return below(AT_FDCWD, path) && hit(kind) ? -1 : real(path); }
ON_PATH(unlink, 'u')
ON_PATH(rmdir, 'u')
int mkdir(const char *path, mode_t bits) {
    REAL(mkdir);
    return below(AT_FDCWD, path) && hit('m') ? -1 : real(path, bits);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    return below(folder, path) && hit('u') ? -1 : real(folder, path, flags);
}
int rename(const char *from, const char *to) {
    REAL(rename);
    return below(AT_FDCWD, to) && hit('r') ? -1 : real(from, to);
}
int renameat(int folder, const char *from, int other, const char *to) {
    REAL(renameat);
    return below(other, to) && hit('r') ? -1 : real(folder, from, other, to);
}
