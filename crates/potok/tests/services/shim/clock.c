/* A wall clock that is wrong by CLOCK_OFF_SECONDS. Clocks that only measure stay right, and whoever
   waits until a wall time waits as long as it meant to. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static time_t off(void) {
    static time_t seconds;
    static int known;
    if (!known) {
        const char *text = getenv("CLOCK_OFF_SECONDS");
        seconds = text ? (time_t)atol(text) : 0;
        known = 1;
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        at->tv_sec += off();
    }
    return result;
}

int timespec_get(struct timespec *at, int base) {
    return clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                           const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec truly = {until->tv_sec - off(), until->tv_nsec};
    return real(cond, mutex, &truly);
}

int cnd_timedwait(cnd_t *cond, mtx_t *mutex, const struct timespec *until) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec truly = {until->tv_sec - off(), until->tv_nsec};
    return real(cond, mutex, &truly);
}
