/* The wall clock of a process, moved by as many seconds as a file says: for LD_PRELOAD.
 *
 * CARDINAL_CLOCK_SHIFT names the file: eight bytes, a signed number of seconds in the machine's order, read at every
 * look at the clock, so that whoever writes it moves the clock of all processes that were started with it. Only the
 * wall clock is moved; monotonic clocks go on, as they do when an administrator sets the time. A deadline that was
 * made from a moved clock is moved back before the kernel, which knows nothing of this, waits for it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define NEAR 3600

static const volatile int64_t *shift_file;

static __attribute__((constructor)) void open_shift(void) {
    const char *name = getenv("CARDINAL_CLOCK_SHIFT");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *at = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) shift_file = at;
        close(file);
    }
}

static int64_t shift(void) { return shift_file ? *shift_file : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now) *now = at.tv_sec;
    return at.tv_sec;
}

int timespec_get(struct timespec *now, int base) { return clock_gettime(CLOCK_REALTIME, now) ? 0 : base; }

/* Only deadlines near the moved wall clock are wall-clock deadlines that were made from it; others are monotonic. */
static struct timespec moved_back(const struct timespec *deadline) {
    struct timespec back = *deadline, now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (llabs((long long)(deadline->tv_sec - now.tv_sec)) < NEAR) back.tv_sec -= shift();
    return back;
}

#define WAITS(name, what, with)                                                               \
    int name(what *condition, with *lock, const struct timespec *deadline) {                  \
        static int (*real)(what *, with *, const struct timespec *);                          \
        struct timespec back = moved_back(deadline);                                          \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                 \
        return real(condition, lock, &back);                                                  \
    }

WAITS(pthread_cond_timedwait, pthread_cond_t, pthread_mutex_t)
WAITS(cnd_timedwait, cnd_t, mtx_t)

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec back = moved_back(deadline);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "sem_timedwait");
    return real(semaphore, &back);
}
