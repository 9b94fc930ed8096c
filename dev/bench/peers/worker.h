// Code of all measured programs: each rank connects to the benchmark's socket, takes one line of work at a time and
// answers with the nanoseconds it measured. Between two lines it sleeps in read(), so that it disturbs no other process.
#ifndef WORKER_H
#define WORKER_H

#define _GNU_SOURCE
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static FILE *benchmark_in, *benchmark_out;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

// Binds this process to the rank's core; `cores` is a list by rank: 0,1,0,1.
static void pin(const char *cores, int rank) {
    cpu_set_t set;
    for (int i = 0; i < rank && cores; i++) {
        cores = strchr(cores, ',');
        if (cores) cores++;
    }
    if (!cores) return;
    CPU_ZERO(&set);
    CPU_SET(atoi(cores), &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("sched_setaffinity");
}

static void say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(benchmark_out, format, args);
    va_end(args);
    if (fflush(benchmark_out)) die("answering");
}

static void join_benchmark(const char *path, int rank) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&address, sizeof address)) die(path);
    benchmark_in = fdopen(s, "r");
    benchmark_out = fdopen(dup(s), "w");
    if (!benchmark_in || !benchmark_out) die("fdopen");
    say("rank %d\n", rank);
}

// Reads the next line of work; returns 0 at the end of the input.
static int next_work(char *line, int room) {
    return fgets(line, room, benchmark_in) != NULL;
}

static void tell(const char *name, const uint64_t *values, size_t count) {
    fprintf(benchmark_out, "%s", name);
    for (size_t i = 0; i < count; i++) fprintf(benchmark_out, " %llu", (unsigned long long)values[i]);
    say("\n");
}

// Allocates memory and writes it once, so that its pages exist.
static char *memory(size_t length) {
    char *p = aligned_alloc(4096, (length + 4095) / 4096 * 4096 + 4096);
    if (!p) die("memory");
    memset(p, 1, length);
    return p;
}

static uint64_t *numbers(size_t count) {
    return (uint64_t *)memory((count + 1) * sizeof(uint64_t));
}

static size_t warm_up(size_t count) {
    return count / 10 > 10 ? count / 10 : 10;
}

#endif
