/* Rows of short messages, each row answered before the next; now and then the sender computes behind one, and calls no MPI until the receiver
 * has it all, which it says by a file. Checks every message. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 600, ROW = 64, LONGEST = 40, EVERY = 100 };

static char messages[ROW][LONGEST];

static int length(int row, int k) { return 1 + (row + 7 * k) % LONGEST; }

static void fill(char *message, int row, int k)
{
    for (int i = 0; i < LONGEST; ++i) {
        message[i] = (char) (row * 31 + k * 7 + i);
    }
}

int main(int argc, char **argv)
{
    int rank, wrong = 0;
    char all_there[64], answer = 0;
    MPI_Request requests[ROW];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(all_there, sizeof all_there, "/tmp/esp-rows-%d-%ld", rank, (long) getpid());
    MPI_Bcast(all_there, sizeof all_there, MPI_CHAR, 1, MPI_COMM_WORLD);
    for (int row = 0; row < ROWS; ++row) {
        const int computes = EVERY - 1 == row % EVERY;
        if (0 == rank) {
            for (int k = 0; k < ROW; ++k) {
                fill(messages[k], row, k);
                MPI_Isend(messages[k], length(row, k), MPI_CHAR, 1, 1, MPI_COMM_WORLD, &requests[k]);
            }
            for (int i = 0; computes && i < 20000 && 0 != access(all_there, F_OK); ++i) {
                usleep(1000);
            }
            wrong += computes && 0 != access(all_there, F_OK);
            MPI_Waitall(ROW, requests, MPI_STATUSES_IGNORE);
            MPI_Recv(&answer, 1, MPI_CHAR, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int k = 0; k < ROW; ++k) {
                char message[LONGEST], expected[LONGEST];
                MPI_Status status;
                int got;
                MPI_Recv(message, LONGEST, MPI_CHAR, 0, 1, MPI_COMM_WORLD, &status);
                MPI_Get_count(&status, MPI_CHAR, &got);
                fill(expected, row, k);
                wrong += got != length(row, k) || 0 != memcmp(message, expected, (size_t) got);
            }
            FILE *file = computes ? fopen(all_there, "w") : NULL;
            if (NULL != file) {
                fclose(file);
            }
            MPI_Send(&answer, 1, MPI_CHAR, 0, 2, MPI_COMM_WORLD);
        }
        if (computes) {
            MPI_Barrier(MPI_COMM_WORLD);
            unlink(all_there);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    printf("rank %d: %s\n", rank, 0 == wrong ? "PASS" : "FAIL");
    MPI_Finalize();
    return 0 != wrong;
}
