/* Point-to-point and collective communication: many messages at once, derived types, MPI_ANY_SOURCE,
 * long messages, all send modes. Checks every byte. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size, wrong, checks;

#define CHECK(what)                                                        \
    do {                                                                   \
        ++checks;                                                          \
        if (!(what)) {                                                     \
            ++wrong;                                                       \
            if (wrong < 10) {                                              \
                fprintf(stderr, "rank %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #what); \
            }                                                              \
        }                                                                  \
    } while (0)

static int pattern(int from, int to, int number) { return from * 1000003 + to * 7919 + number; }

/* All ranks send to all at once; received in order, in reverse order, or from MPI_ANY_SOURCE. */
static void flood(int count)
{
    const int each = count * (size - 1);
    int *out = malloc(sizeof(int) * (size_t) each), *in = malloc(sizeof(int) * (size_t) each);
    MPI_Request *requests = malloc(sizeof(MPI_Request) * (size_t) each * 2);
    int n = 0, k = 0;
    for (int to = 0; to < size; ++to) {
        for (int i = 0; to != rank && i < count; ++i) {
            out[k] = pattern(rank, to, i);
            MPI_Isend(&out[k], 1, MPI_INT, to, i % 100, MPI_COMM_WORLD, &requests[n++]);
            ++k;
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    k = 0;
    for (int from = size - 1; from >= 0; --from) {
        for (int i = 0; from != rank && i < count; ++i) {
            MPI_Irecv(&in[k++], 1, MPI_INT, from, i % 100, MPI_COMM_WORLD, &requests[n++]);
        }
    }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    k = 0;
    for (int from = size - 1; from >= 0; --from) {
        for (int i = 0; from != rank && i < count; ++i) {
            CHECK(in[k] == pattern(from, rank, i));
            ++k;
        }
    }
    free(out);
    free(in);
    free(requests);
}

static void from_any_source(int count)
{
    int *next = calloc((size_t) size, sizeof(int));
    for (int i = 0; i < count; ++i) {
        for (int to = 0; to < size; ++to) {
            if (to != rank) {
                const int value[2] = {rank, i};
                MPI_Send(value, 2, MPI_INT, to, 77, MPI_COMM_WORLD);
            }
        }
    }
    for (int i = 0; i < count * (size - 1); ++i) {
        MPI_Status status;
        int value[2];
        MPI_Recv(value, 2, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        CHECK(status.MPI_SOURCE == value[0] && status.MPI_TAG == 77);
        CHECK(value[1] == next[value[0]]);
        ++next[value[0]];
    }
    /* A receive of the next phase must not match a message of this one. */
    MPI_Barrier(MPI_COMM_WORLD);
    free(next);
}

/* A column of a matrix is received as a row; short and long. */
static void derived(int n)
{
    MPI_Datatype column, row;
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    double *out = malloc(sizeof(double) * (size_t) n * 8), *in = calloc((size_t) n * 8, sizeof(double));
    for (int i = 0; i < n * 8; ++i) {
        out[i] = rank * 1e6 + i;
    }
    MPI_Type_vector(n, 3, 8, MPI_DOUBLE, &column);
    MPI_Type_contiguous(n * 3, MPI_DOUBLE, &row);
    MPI_Type_commit(&column);
    MPI_Type_commit(&row);
    MPI_Sendrecv(out, 1, column, to, 3, in, 1, row, from, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < n * 3; ++i) {
        CHECK(in[i] == from * 1e6 + (i / 3) * 8 + i % 3);
    }
    MPI_Sendrecv(out, 1, row, to, 4, in, 1, column, from, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < n * 3; ++i) {
        CHECK(in[(i / 3) * 8 + i % 3] == from * 1e6 + i);
    }
    MPI_Type_free(&column);
    MPI_Type_free(&row);
    free(out);
    free(in);
}

static void sized(size_t bytes, int kind)
{
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    unsigned char *out = malloc(bytes + 1), *in = calloc(bytes + 1, 1);
    MPI_Request request[2];
    MPI_Status status;
    int count;
    for (size_t i = 0; i < bytes; ++i) {
        out[i] = (unsigned char) (i * 13 + (i >> 9) + (size_t) rank);
    }
    MPI_Irecv(in, (int) bytes + 1, MPI_BYTE, from, 9, MPI_COMM_WORLD, &request[0]);
    if (0 == kind) {
        MPI_Isend(out, (int) bytes, MPI_BYTE, to, 9, MPI_COMM_WORLD, &request[1]);
    } else {
        MPI_Issend(out, (int) bytes, MPI_BYTE, to, 9, MPI_COMM_WORLD, &request[1]);
    }
    MPI_Wait(&request[1], MPI_STATUS_IGNORE);
    MPI_Wait(&request[0], &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == (int) bytes);
    int bad = 0;
    for (size_t i = 0; i < bytes; ++i) {
        bad += in[i] != (unsigned char) (i * 13 + (i >> 9) + (size_t) from);
    }
    CHECK(bad == 0);
    free(out);
    free(in);
}

static void collectives(void)
{
    int sum, own = rank + 1;
    MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == size * (size + 1) / 2);
    const int n = 5000;
    int *out = malloc(sizeof(int) * (size_t) (n * size)), *in = malloc(sizeof(int) * (size_t) (n * size));
    for (int i = 0; i < n * size; ++i) {
        out[i] = pattern(rank, i / n, i % n);
    }
    MPI_Alltoall(out, n, MPI_INT, in, n, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < n * size; ++i) {
        CHECK(in[i] == pattern(i / n, rank, i % n));
    }
    MPI_Allgather(out, n, MPI_INT, in, n, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < n * size; ++i) {
        CHECK(in[i] == pattern(i / n, 0, i % n));
    }
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    flood(2000);
    from_any_source(500);
    for (int n = 1; n <= 100000; n *= 10) {
        derived(n);
    }
    static const size_t sizes[] = {0, 1, 100, 4000, 65400, 65480, 65536, 65600, 131072, 200000, 1 << 20, 20000001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        sized(sizes[i], 0);
        sized(sizes[i], 1);
    }
    collectives();
    int all[2], own[2] = {wrong, checks};
    MPI_Allreduce(own, all, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (0 == rank) {
        printf(all[0] ? "FAIL %d of %d checks, %d ranks\n" : "PASS %d wrong of %d checks, %d ranks\n", all[0], all[1], size);
    }
    MPI_Finalize();
    return all[0] != 0;
}
