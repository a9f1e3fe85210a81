/* A disk that forgets what was never synced, and that can be full. Preloaded into potok by the
 * tests; needs only a C compiler.
 *
 * DISK_DIR     the folder on this disk (canonical path)
 * DISK_SHADOW  where the durable state is kept, outside DISK_DIR:
 *   i.INODE.BIRTH   content of a file as of its last completed sync
 *   d.PATH          entries of a folder as of its last completed sync, one per line:
 *                   "f INODE.BIRTH NAME" or "d - NAME"; PATH relative to DISK_DIR with / as %
 *   off             while this exists the power is gone: no sync completes any more
 *   full            while this exists nothing more fits: writes stop half-way with ENOSPC
 *
 * A file's content becomes durable when the file is synced, its name when its folder is: no more
 * than what POSIX promises. Content is copied before the real sync and published after it, so
 * the shadow never holds a byte that the program could not count on.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t syncing = PTHREAD_MUTEX_INITIALIZER;
static char block[1 << 20];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Path of an open file below DISK_DIR, "" for DISK_DIR itself; NULL for any other file. */
static const char *below(int fd, char *path) {
    const char *dir = getenv("DISK_DIR");
    char link[64];
    if (!dir) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, PATH_MAX - 1);
    if (len < 0) return NULL;
    path[len] = 0;
    size_t prefix = strlen(dir);
    if (strncmp(path, dir, prefix) != 0) return NULL;
    if (path[prefix] == 0) return path + prefix;
    return path[prefix] == '/' ? path + prefix + 1 : NULL;
}

static void shadow(char *out, const char *kind, const char *name) {
    snprintf(out, PATH_MAX, "%s/%s%s", getenv("DISK_SHADOW"), kind, name);
}

static int flagged(const char *flag) {
    char path[PATH_MAX];
    int before = errno;
    shadow(path, flag, "");
    int yes = access(path, F_OK) == 0;
    errno = before;
    return yes;
}

/* Names a file for ever: an inode number alone comes again after an unlink. */
static int identity(int folder, const char *name, int flags, char *out) {
    struct statx stat;
    if (statx(folder, name, flags | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME | STATX_TYPE, &stat))
        return -1;
    snprintf(out, 96, "%llu.%lld-%u", (unsigned long long)stat.stx_ino,
             (long long)stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    return S_ISDIR(stat.stx_mode);
}

static int copy_content(int fd, const char *path, const char *to) {
    /* Closing a second descriptor would drop POSIX locks, so the one at hand is read if it can be. */
    int own = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY;
    int from = own ? open(path, O_RDONLY) : fd;
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    off_t at = 0;
    ssize_t got = -1;
    if (from >= 0 && out >= 0)
        while ((got = pread(from, block, sizeof block, at)) > 0) {
            if (REAL(write)(out, block, got) != got) { got = -1; break; }
            at += got;
        }
    if (own && from >= 0) close(from);
    if (out >= 0) close(out);
    return got == 0 ? 0 : -1;
}

static int copy_entries(const char *path, const char *to) {
    char id[96];
    DIR *folder = opendir(path);
    FILE *out = fopen(to, "w");
    struct dirent *entry;
    while (folder && out && (entry = readdir(folder))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        int is_dir = identity(dirfd(folder), entry->d_name, 0, id);
        if (is_dir < 0) continue; /* gone meanwhile */
        fprintf(out, "%s %s %s\n", is_dir ? "d" : "f", is_dir ? "-" : id, entry->d_name);
    }
    int ok = folder && out ? 0 : -1;
    if (out) fclose(out);
    if (folder) closedir(folder);
    return ok;
}

static int sync_through(int fd, int (*real)(int)) {
    char path[PATH_MAX], to[PATH_MAX], copy[PATH_MAX], name[PATH_MAX];
    const char *rel = below(fd, path);
    struct stat stat;
    if (!rel || fstat(fd, &stat) || stat.st_nlink == 0) return real(fd);
    pthread_mutex_lock(&syncing);
    while (flagged("off")) pause();
    shadow(copy, "copying", "");
    int copied;
    if (S_ISDIR(stat.st_mode)) {
        snprintf(name, sizeof name, "%s", rel);
        for (char *c = name; *c; c++) if (*c == '/') *c = '%';
        shadow(to, "d.", name);
        copied = copy_entries(path, copy);
    } else {
        identity(fd, "", AT_EMPTY_PATH, name);
        shadow(to, "i.", name);
        copied = copy_content(fd, path, copy);
    }
    int result = real(fd), why = errno;
    while (flagged("off")) pause();
    if (copied || (result == 0 && rename(copy, to))) {
        fprintf(stderr, "disk.c: cannot keep %s: %s\n", path, strerror(errno));
        abort();
    }
    pthread_mutex_unlock(&syncing);
    errno = why;
    return result;
}

int fsync(int fd) { return sync_through(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_through(fd, REAL(fdatasync)); }

static int is_full(int fd) {
    char path[PATH_MAX];
    return flagged("full") && below(fd, path);
}

/* Half of it still fits, then nothing: a torn write, as on a real disk. */
static size_t fits(size_t len) {
    static __thread int torn;
    torn = !torn;
    return torn ? len / 2 : 0;
}

static ssize_t no_space(void) { errno = ENOSPC; return -1; }

ssize_t write(int fd, const void *bytes, size_t len) {
    if (is_full(fd) && !(len = fits(len))) return no_space();
    return REAL(write)(fd, bytes, len);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) {
    if (is_full(fd) && !(len = fits(len))) return no_space();
    return REAL(pwrite)(fd, bytes, len, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) {
    if (is_full(fd) && !(len = fits(len))) return no_space();
    return REAL(pwrite64)(fd, bytes, len, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (is_full(fd)) return no_space();
    return REAL(writev)(fd, parts, count);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    if (is_full(fd)) return no_space();
    return REAL(pwritev64)(fd, parts, count, at);
}

int fallocate(int fd, int mode, off_t at, off_t len) {
    if (is_full(fd)) return no_space();
    return REAL(fallocate)(fd, mode, at, len);
}

int fallocate64(int fd, int mode, off64_t at, off64_t len) {
    if (is_full(fd)) return no_space();
    return REAL(fallocate64)(fd, mode, at, len);
}

int posix_fallocate(int fd, off_t at, off_t len) {
    if (is_full(fd)) return ENOSPC;
    return REAL(posix_fallocate)(fd, at, len);
}

int posix_fallocate64(int fd, off64_t at, off64_t len) {
    if (is_full(fd)) return ENOSPC;
    return REAL(posix_fallocate64)(fd, at, len);
}
