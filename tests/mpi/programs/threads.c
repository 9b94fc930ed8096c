/* MPI_THREAD_MULTIPLE: several threads of each rank exchange messages with their counterparts, with and
 * without acknowledgements. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 300 };

static int rank, size, wrong;

static void *talk(void *number)
{
    const int me = (int) (long) number, to = (rank + 1) % size, from = (rank + size - 1) % size;
    const int bytes = me == 3 ? 300000 : me * 3000 + 8, rounds = me == 3 ? 30 : ROUNDS;
    unsigned char *out = malloc((size_t) bytes), *in = malloc((size_t) bytes);
    for (int round = 0; round < rounds; ++round) {
        MPI_Request requests[2];
        for (int i = 0; i < bytes; ++i) {
            out[i] = (unsigned char) (rank + me + round + i);
        }
        MPI_Irecv(in, bytes, MPI_BYTE, from, me, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, bytes, MPI_BYTE, to, me, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < bytes; ++i) {
            if (in[i] != (unsigned char) (from + me + round + i)) {
                __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
            }
        }
    }
    free(out);
    free(in);
    return NULL;
}

int main(int argc, char **argv)
{
    int given, all;
    pthread_t threads[THREADS];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (given != MPI_THREAD_MULTIPLE) {
        fprintf(stderr, "threads: this MPI gives level %d only\n", given);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (long i = 0; i < THREADS; ++i) {
        pthread_create(&threads[i], NULL, talk, (void *) i);
    }
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (0 == rank) {
        printf(all ? "FAIL %d bytes, %d ranks\n" : "PASS %d wrong, %d ranks\n", all, size);
    }
    MPI_Finalize();
    return all != 0;
}
