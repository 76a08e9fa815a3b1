/* Runs a command and reports its wall time, its CPU time and the largest resident size it reached, as the kernel counted it.
 * usage: child OUT_FILE COMMAND [ARGUMENTS...]   Writes "seconds S", "cpu S" and "kib N" to OUT_FILE; exits as the command did. */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: child OUT_FILE COMMAND [ARGUMENTS...]\n");
        return 2;
    }
    double t = now();
    pid_t pid = fork();
    if (pid < 0) return 3;
    if (pid == 0) {
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    int status;
    struct rusage u;
    if (wait4(pid, &status, 0, &u) != pid) return 3;
    t = now() - t;
    double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    FILE *f = fopen(argv[1], "w");
    if (!f || fprintf(f, "seconds %.9g\ncpu %.9g\nkib %ld\n", t, cpu, u.ru_maxrss) < 0 || fclose(f) != 0) return 3;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
