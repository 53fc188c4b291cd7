/* For LD_PRELOAD: the time of day jumps an hour back and forth each half second, as it does where it is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

typedef int (*clock_function)(clockid_t, struct timespec *);

static int real(clockid_t clock, struct timespec *time) {
    static clock_function next;
    if (!next)
        next = (clock_function)dlsym(RTLD_NEXT, "clock_gettime");
    return next(clock, time);
}

static long jump(void) {
    struct timespec since_boot = {0, 0};
    real(CLOCK_MONOTONIC, &since_boot);
    return since_boot.tv_nsec < 500000000 ? 3600 : -3600;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = real(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now = {0, 0};
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *result) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}
