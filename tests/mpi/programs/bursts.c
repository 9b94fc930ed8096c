/* Bursts of short messages, each acknowledged before the next. After some bursts the sender computes
 * and does not call MPI until the receiver has the whole burst, which it signals by a file. Checks
 * every message. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BURSTS = 600, BURST = 64, MAX_LENGTH = 40, EVERY = 100 };

static char messages[BURST][MAX_LENGTH];

static int length(int burst, int k) { return 1 + (burst + 7 * k) % MAX_LENGTH; }

static void fill(char *message, int burst, int k)
{
    for (int i = 0; i < MAX_LENGTH; ++i) {
        message[i] = (char) (burst * 31 + k * 7 + i);
    }
}

int main(int argc, char **argv)
{
    int rank, wrong = 0;
    char all_there[64], answer = 0;
    MPI_Request requests[BURST];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(all_there, sizeof all_there, "/tmp/esp-bursts-%d-%ld", rank, (long) getpid());
    MPI_Bcast(all_there, sizeof all_there, MPI_CHAR, 1, MPI_COMM_WORLD);
    for (int burst = 0; burst < BURSTS; ++burst) {
        const int computes = EVERY - 1 == burst % EVERY;
        if (0 == rank) {
            for (int k = 0; k < BURST; ++k) {
                fill(messages[k], burst, k);
                MPI_Isend(messages[k], length(burst, k), MPI_CHAR, 1, 1, MPI_COMM_WORLD, &requests[k]);
            }
            for (int i = 0; computes && i < 20000 && 0 != access(all_there, F_OK); ++i) {
                usleep(1000);
            }
            wrong += computes && 0 != access(all_there, F_OK);
            MPI_Waitall(BURST, requests, MPI_STATUSES_IGNORE);
            MPI_Recv(&answer, 1, MPI_CHAR, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int k = 0; k < BURST; ++k) {
                char message[MAX_LENGTH], expected[MAX_LENGTH];
                MPI_Status status;
                int got;
                MPI_Recv(message, MAX_LENGTH, MPI_CHAR, 0, 1, MPI_COMM_WORLD, &status);
                MPI_Get_count(&status, MPI_CHAR, &got);
                fill(expected, burst, k);
                wrong += got != length(burst, k) || 0 != memcmp(message, expected, (size_t) got);
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
