/* Prints medians and 99th percentiles in µs for docs/performance.md. Two ranks: ping-pong, duration of
 * MPI_Isend, receiving from a rank that computes. More ranks: collectives.
 * Usage: figures [pingpong-BYTES | window-BYTES]... (default: all but the windows) */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 20000 };

static int rank, size;
static double times[MAX_SAMPLES];

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static void report(const char *name, int count)
{
    if (0 == rank) {
        qsort(times, (size_t) count, sizeof *times, by_value);
        printf("FIGURE %s %.3f %.3f\n", name, times[count / 2], times[count - 1 - count / 100]);
    }
}

static void pingpong(int bytes, int rounds)
{
    char name[64], *buffer = calloc((size_t) bytes + 1, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = -200; i < rounds; ++i) {
        const double begin = MPI_Wtime();
        if (0 == rank) {
            MPI_Send(buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
        if (i >= 0) {
            times[i] = (MPI_Wtime() - begin) / 2 * 1e6;
        }
    }
    snprintf(name, sizeof name, "pingpong-%d", bytes);
    report(name, rounds);
    free(buffer);
}

/* Times MPI_Isend in groups, each acknowledged before the next. `whole`: times a group and its
 * acknowledgement instead of each call. */
static void isend(const char *name, int group, int rounds, int whole)
{
    enum { MAX_GROUP = 64 };
    char byte = 0, answer;
    int count = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = -20; i < rounds; ++i) {
        MPI_Request requests[MAX_GROUP];
        if (0 == rank) {
            const double first = MPI_Wtime();
            for (int k = 0; k < group; ++k) {
                const double begin = MPI_Wtime();
                MPI_Isend(&byte, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[k]);
                if (i >= 0 && !whole && count < MAX_SAMPLES) {
                    times[count++] = (MPI_Wtime() - begin) * 1e6;
                }
            }
            MPI_Waitall(group, requests, MPI_STATUSES_IGNORE);
            MPI_Recv(&answer, 1, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (i >= 0 && whole) {
                times[count++] = (MPI_Wtime() - first) * 1e6;
            }
        } else {
            for (int k = 0; k < group; ++k) {
                MPI_Recv(&byte, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            MPI_Send(&byte, 1, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
        }
    }
    report(name, count);
}

/* Times a window of 64 messages in one direction, until its acknowledgement. */
static void window(int bytes, int rounds)
{
    enum { WINDOW = 64 };
    char name[64], answer = 0, *buffer = calloc((size_t) bytes, WINDOW);
    MPI_Request requests[WINDOW];
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = -3; i < rounds; ++i) {
        const double begin = MPI_Wtime();
        for (int k = 0; k < WINDOW; ++k) {
            char *place = buffer + (size_t) k * (size_t) bytes;
            if (0 == rank) {
                MPI_Isend(place, bytes, MPI_BYTE, 1, 5, MPI_COMM_WORLD, &requests[k]);
            } else {
                MPI_Irecv(place, bytes, MPI_BYTE, 0, 5, MPI_COMM_WORLD, &requests[k]);
            }
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (0 == rank) {
            MPI_Recv(&answer, 1, MPI_BYTE, 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(&answer, 1, MPI_BYTE, 0, 6, MPI_COMM_WORLD);
        }
        if (i >= 0) {
            times[i] = (MPI_Wtime() - begin) * 1e6;
        }
    }
    snprintf(name, sizeof name, "window-%d", bytes);
    report(name, rounds);
    free(buffer);
}

/* Measures what the argument names. Returns 0 if it names nothing. */
static int named(const char *what)
{
    int bytes;
    if (1 == sscanf(what, "pingpong-%d", &bytes) && bytes >= 0) {
        pingpong(bytes, 3000);
    } else if (1 == sscanf(what, "window-%d", &bytes) && bytes > 0) {
        window(bytes, bytes > 100000 ? 20 : 100);
    } else {
        return 0;
    }
    return 1;
}

static void compute(double seconds)
{
    for (const double end = MPI_Wtime() + seconds; MPI_Wtime() < end;) {
    }
}

/* Times receiving from a rank that does not call MPI for 5 ms after its sends. `late`: the receiver
 * computes for 1 ms before. */
static void away(const char *name, int count, int bytes, int late, int rounds)
{
    char *buffer = calloc((size_t) bytes, 1);
    for (int i = -5; i < rounds; ++i) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (0 == rank && late) {
            compute(1e-3);
        }
        const double begin = MPI_Wtime();
        for (int k = 0; k < count; ++k) {
            if (0 == rank) {
                MPI_Recv(buffer, bytes, MPI_BYTE, 1, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Send(buffer, bytes, MPI_BYTE, 0, 4, MPI_COMM_WORLD);
            }
        }
        if (i >= 0) {
            times[i] = (MPI_Wtime() - begin) * 1e6;
        }
        if (1 == rank) {
            compute(5e-3);
        }
    }
    report(name, rounds);
    free(buffer);
}

static void collective(const char *name, int rounds, int all_to_all)
{
    char *out = calloc((size_t) size, 1024), *in = calloc((size_t) size, 1024);
    for (int i = -50; i < rounds; ++i) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        if (all_to_all) {
            MPI_Alltoall(out, 1024, MPI_BYTE, in, 1024, MPI_BYTE, MPI_COMM_WORLD);
        } else {
            MPI_Allreduce(out, in, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        }
        if (i >= 0) {
            times[i] = (MPI_Wtime() - begin) * 1e6;
        }
    }
    report(name, rounds);
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1) {
        for (int i = 1; i < argc; ++i) {
            if (2 != size || !named(argv[i])) {
                fprintf(stderr, "figures: %s: two ranks, and pingpong-BYTES or window-BYTES\n", argv[i]);
                MPI_Abort(MPI_COMM_WORLD, 2);
            }
        }
    } else if (2 == size) {
        pingpong(0, 3000);
        pingpong(64, 3000);
        pingpong(4096, 2000);
        pingpong(65536, 500);
        isend("isend-call-1", 8, 1000, 0);
        isend("isend-2-answered", 2, 1000, 1);
        isend("isend-8-answered", 8, 1000, 1);
        isend("isend-64-answered", 64, 1000, 1);
        away("away-40x100", 40, 100, 0, 200);
        away("away-40x16384", 40, 16384, 0, 200);
        away("away-1x1048576", 1, 1 << 20, 0, 200);
        away("late-40x100", 40, 100, 1, 200);
        away("late-40x16384", 40, 16384, 1, 200);
    } else {
        collective("allreduce-16", 1000, 0);
        collective("alltoall-1024", 1000, 1);
    }
    MPI_Finalize();
    return 0;
}
