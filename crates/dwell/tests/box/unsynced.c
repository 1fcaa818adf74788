/* A mutant of dwell: what it writes below /var/lib/dwell, its journal of changes, is not synced to the disk. */
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int fd) {
    char link[64], path[4096];
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        if (!strncmp(path, "/var/lib/dwell", strlen("/var/lib/dwell"))) {
            return 0;
        }
    }
    return (int)syscall(SYS_fsync, fd);
}
