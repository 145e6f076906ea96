/* Calls of libc that do not return while a file of their name lies in $HANG; what is in it is the path (its beginning)
   for which they hang, all paths where it is empty. Built and preloaded by tests/faults/hanging.py. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int hangs(const char *name, const char *path) {
    const char *directory = getenv("HANG");
    char file[512], wanted[512];
    if (directory == NULL) return 0;
    snprintf(file, sizeof file, "%s/%s", directory, name);
    int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = syscall(SYS_read, fd, wanted, sizeof wanted - 1);
    syscall(SYS_close, fd);
    wanted[got > 0 ? got : 0] = 0;
    return wanted[0] == 0 || (path != NULL && strncmp(path, wanted, strlen(wanted)) == 0);
}

static void hang(const char *name, const char *path) {
    struct timespec moment = {0, 20000000};
    int before = errno;
    if (hangs(name, path)) {
        char met[512];
        snprintf(met, sizeof met, "%s/%s.met", getenv("HANG"), name);
        syscall(SYS_close, (int)syscall(SYS_openat, AT_FDCWD, met, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    }
    while (hangs(name, path)) syscall(SYS_nanosleep, &moment, NULL);
    errno = before;
}

static void hang_at(const char *name, int fd) {
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    path[got > 0 ? got : 0] = 0;
    hang(name, path);
}

#define REAL(name) ((__typeof__(&name)) dlsym(RTLD_NEXT, #name))

int fsync(int fd) { hang_at("fsync", fd); return REAL(fsync)(fd); }
int fdatasync(int fd) { hang_at("fsync", fd); return REAL(fdatasync)(fd); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) { hang_at("write", fd); return REAL(pwrite64)(fd, b, n, o); }
ssize_t write(int fd, const void *b, size_t n) { hang_at("write", fd); return REAL(write)(fd, b, n); }
int flock(int fd, int how) { hang_at("flock", fd); return REAL(flock)(fd, how); }
int close(int fd) { hang_at("close", fd); return REAL(close)(fd); }

int open64(const char *path, int flags, ...) {
    __builtin_va_list rest; __builtin_va_start(rest, flags);
    mode_t mode = __builtin_va_arg(rest, mode_t); __builtin_va_end(rest);
    hang("path", path); return REAL(open64)(path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    __builtin_va_list rest; __builtin_va_start(rest, flags);
    mode_t mode = __builtin_va_arg(rest, mode_t); __builtin_va_end(rest);
    hang("path", path); return REAL(openat64)(at, path, flags, mode);
}
int stat64(const char *path, struct stat64 *to) { hang("path", path); return REAL(stat64)(path, to); }
int lstat64(const char *path, struct stat64 *to) { hang("path", path); return REAL(lstat64)(path, to); }
int fstatat64(int at, const char *path, struct stat64 *to, int flags) {
    hang("path", path); return REAL(fstatat64)(at, path, to, flags);
}
int statvfs64(const char *path, struct statvfs64 *to) { hang("path", path); return REAL(statvfs64)(path, to); }
int mkdir(const char *path, mode_t mode) { hang("path", path); return REAL(mkdir)(path, mode); }
int unlink(const char *path) { hang("path", path); return REAL(unlink)(path); }
int rename(const char *from, const char *to) { hang("path", from); return REAL(rename)(from, to); }
int chmod(const char *path, mode_t mode) { hang("path", path); return REAL(chmod)(path, mode); }
int access(const char *path, int how) { hang("path", path); return REAL(access)(path, how); }
DIR *opendir(const char *path) { hang("path", path); return REAL(opendir)(path); }
int bind(int fd, const struct sockaddr *to, socklen_t size) {
    if (to->sa_family == AF_UNIX) hang("path", ((const struct sockaddr_un *)to)->sun_path);
    return REAL(bind)(fd, to, size);
}

int epoll_wait(int fd, struct epoll_event *to, int most, int timeout) {
    int got = REAL(epoll_wait)(fd, to, most, timeout); hang("loop", NULL); return got;
}

int execve(const char *path, char *const argv[], char *const envp[]) { hang("exec", path); return REAL(execve)(path, argv, envp); }

int execv(const char *path, char *const argv[]) { hang("exec", path); return REAL(execv)(path, argv); }

int getpwuid_r(uid_t u, struct passwd *p, char *b, size_t n, struct passwd **r) { hang("nss", NULL); return REAL(getpwuid_r)(u, p, b, n, r); }
int getpwnam_r(const char *u, struct passwd *p, char *b, size_t n, struct passwd **r) { hang("nss", NULL); return REAL(getpwnam_r)(u, p, b, n, r); }
int getgrnam_r(const char *g, struct group *p, char *b, size_t n, struct group **r) { hang("nss", NULL); return REAL(getgrnam_r)(g, p, b, n, r); }
int getgrouplist(const char *u, gid_t g, gid_t *to, int *n) { hang("nss", NULL); hang("groups", NULL); return REAL(getgrouplist)(u, g, to, n); }
int getaddrinfo(const char *h, const char *s, const struct addrinfo *i, struct addrinfo **r) { hang("nss", NULL); return REAL(getaddrinfo)(h, s, i, r); }
