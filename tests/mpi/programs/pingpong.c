/* Ping-pong: checks every byte and prints half the best, median and mean round trip of each size.
 * Usage: pingpong [ROUNDS [SIZE ...]] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static unsigned char byte(size_t at, int round) { return (unsigned char) (at * 31 + (size_t) round * 7 + (at >> 8)); }

int main(int argc, char **argv)
{
    static const int usual[] = {0, 1, 64, 1024, 4096, 65536, 1048576};
    int rank, size, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size < 2) {
        fprintf(stderr, "pingpong: two ranks at least\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    const int sizes = argc > 2 ? argc - 2 : (int) (sizeof usual / sizeof *usual);
    double *times = malloc((size_t) rounds * sizeof *times);
    for (int s = 0; s < sizes && rank < 2; ++s) {
        const int bytes = argc > 2 ? atoi(argv[s + 2]) : usual[s];
        const int count = bytes > 100000 ? rounds / 10 + 1 : rounds;
        unsigned char *buffer = malloc((size_t) bytes + 1);
        for (int round = -20; round < count; ++round) {
            /* Every byte is checked in the first rounds, the ends in all. */
            const int all = round < -10;
            if (0 == rank) {
                for (int i = 0; all && i < bytes; ++i) {
                    buffer[i] = byte((size_t) i, round);
                }
            }
            const double begin = MPI_Wtime();
            if (0 == rank) {
                MPI_Send(buffer, bytes, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
                MPI_Recv(buffer, bytes, MPI_BYTE, 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(buffer, bytes, MPI_BYTE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(buffer, bytes, MPI_BYTE, 0, 6, MPI_COMM_WORLD);
            }
            if (round >= 0) {
                times[round] = (MPI_Wtime() - begin) / 2 * 1e6;
            }
            for (int i = 0; all && i < bytes; ++i) {
                wrong += buffer[i] != byte((size_t) i, round);
            }
        }
        if (0 == rank && count > 0) {
            double sum = 0;
            for (int i = 0; i < count; ++i) {
                sum += times[i];
            }
            qsort(times, (size_t) count, sizeof *times, by_value);
            printf("pingpong %d bytes: best %.2f p50 %.2f p99 %.2f mean %.2f us\n", bytes, times[0], times[count / 2],
                   times[count - 1 - count / 100], sum / count);
        }
        free(buffer);
    }
    free(times);
    int all_wrong;
    MPI_Allreduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (0 == rank) {
        printf(all_wrong ? "FAIL %d bytes\n" : "PASS\n", all_wrong);
    }
    MPI_Finalize();
    return all_wrong != 0;
}
