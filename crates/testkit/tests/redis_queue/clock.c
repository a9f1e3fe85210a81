/* The clock of a server under test: the real one, shifted by as many seconds as the file says that
   CLOCK_SHIFT names. Preloaded; see clock.rs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
  char text[32] = {0};
  const char *path = getenv("CLOCK_SHIFT");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return 0;
  long read_bytes = read(file, text, sizeof text - 1);
  close(file);
  return read_bytes > 0 ? strtol(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t id, struct timespec *time) {
  long failed = syscall(SYS_clock_gettime, id, time);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) time->tv_sec += shift();
  return (int)failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return (time_t)-1;
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
