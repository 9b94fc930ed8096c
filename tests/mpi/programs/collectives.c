/* Measures collectives as job/examples/collectives.rs does, by MPI: prints for each operation and length
 * the median and the 99th percentile of its time on rank 0, in microseconds. Lengths are those of the
 * data, of an allgather and an alltoall those of all ranks together. Usage: collectives */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_SAMPLES = 3000, LENGTHS = 4 };
static const double SECONDS = 0.3;
static const int lengths[LENGTHS] = {8, 1024, 16384, 262144};

static int rank, size;
static double times[MAX_SAMPLES];
static long *out, *into;

enum operation { BARRIER, BCAST, REDUCE, ALLREDUCE, ALLGATHER, ALLTOALL };
static const char *const names[] = {"Barrier", "Bcast", "Reduce", "Allreduce", "Allgather", "Alltoall"};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static double once(enum operation operation, int count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    switch (operation) {
    case BARRIER:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    case BCAST: /* so that rank 0 sees the arrival */
        MPI_Bcast(out, count, MPI_LONG, size - 1, MPI_COMM_WORLD);
        break;
    case REDUCE:
        MPI_Reduce(out, into, count, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
        break;
    case ALLREDUCE:
        MPI_Allreduce(out, into, count, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
        break;
    case ALLGATHER:
        MPI_Allgather(out, count, MPI_LONG, into, count, MPI_LONG, MPI_COMM_WORLD);
        break;
    case ALLTOALL:
        MPI_Alltoall(out, count, MPI_LONG, into, count, MPI_LONG, MPI_COMM_WORLD);
        break;
    }
    return MPI_Wtime() - begin;
}

static void row(enum operation operation, int bytes)
{
    const int values = bytes / (int) sizeof(long);
    double first = once(operation, values);
    for (int i = 0; i < 3; ++i) {
        const double time = once(operation, values);
        first = time < first ? time : first;
    }
    int count = (int) (SECONDS / (first < 1e-6 ? 1e-6 : first));
    count = count < 20 ? 20 : count > MAX_SAMPLES ? MAX_SAMPLES : count;
    MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD); /* all run as often as rank 0 chooses */
    for (int i = 0; i < count; ++i) {
        times[i] = once(operation, values) * 1e6;
    }
    if (0 == rank) {
        qsort(times, (size_t) count, sizeof *times, by_value);
        const int total = operation >= ALLGATHER ? bytes * size : bytes;
        printf("%-10s %8d %10.1f %10.1f\n", names[operation], total, times[count / 2], times[count * 99 / 100]);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    out = calloc((size_t) lengths[LENGTHS - 1] * (size_t) size, 1);
    into = calloc((size_t) lengths[LENGTHS - 1] * (size_t) size, 1);
    if (!out || !into) {
        fprintf(stderr, "collectives: out of memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    row(BARRIER, 0);
    for (int i = 0; i < LENGTHS; ++i) {
        for (int operation = BCAST; operation <= ALLTOALL; ++operation) {
            row((enum operation) operation, lengths[i]);
        }
    }
    free(out);
    free(into);
    MPI_Finalize();
    return 0;
}
