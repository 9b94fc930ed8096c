/* Two ranks exchange messages until they are killed, or for the number of rounds in the argument. After
 * the first exchange each writes its process id to a file in the program's folder. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, value = 0;
    char name[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const long last = argc > 1 ? atol(argv[1]) : -1;
    for (long round = 0; round != last; ++round) {
        const int other = 1 - rank;
        MPI_Sendrecv(&rank, 1, MPI_INT, other, 1, &value, 1, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (10 == round) {
            snprintf(name, sizeof name, "%s.%d", argv[0], rank);
            FILE *file = fopen(name, "w");
            if (NULL == file || fprintf(file, "%d\n", (int) getpid()) < 0 || 0 != fclose(file)) {
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
        }
        if (value != other) {
            MPI_Abort(MPI_COMM_WORLD, 4);
        }
        usleep(1000);
    }
    if (0 == rank) {
        printf("PASS\n");
    }
    MPI_Finalize();
    return 0;
}
