/* One-sided communication: put, get, accumulate, fetch-and-op, compare-and-swap, with fences, locks and
 * post/start. Checks every value. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

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

static void put_and_get(int n)
{
    int *window, *out = malloc(sizeof(int) * (size_t) n), *in = malloc(sizeof(int) * (size_t) n);
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Win win;
    MPI_Win_allocate((MPI_Aint) sizeof(int) * 2 * n, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    for (int i = 0; i < n; ++i) {
        window[i] = -1;
        window[n + i] = rank * 1000000 + i;
        out[i] = rank * 10 + i;
    }
    MPI_Win_fence(0, win);
    MPI_Put(out, n, MPI_INT, to, 0, n, MPI_INT, win);
    MPI_Get(in, n, MPI_INT, to, n, n, MPI_INT, win);
    MPI_Win_fence(0, win);
    for (int i = 0; i < n; ++i) {
        CHECK(window[i] == from * 10 + i);
        CHECK(in[i] == to * 1000000 + i);
    }
    MPI_Win_fence(0, win);
    /* Every other element. */
    MPI_Datatype every;
    MPI_Type_vector(n / 2, 1, 2, MPI_INT, &every);
    MPI_Type_commit(&every);
    for (int i = 0; i < n; ++i) {
        out[i] = -rank - i;
    }
    MPI_Put(out, 1, every, to, 0, 1, every, win);
    MPI_Win_fence(0, win);
    for (int i = 0; i < n / 2 * 2; ++i) {
        CHECK(window[i] == (i % 2 ? from * 10 + i : -from - i));
    }
    MPI_Type_free(&every);
    MPI_Win_free(&win);
    free(out);
    free(in);
}

static void atomics(int rounds)
{
    long counter[4] = {0, 0, 0, 0};
    MPI_Win win;
    MPI_Win_create(counter, sizeof counter, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    const long one = 1;
    long last = -1;
    for (int i = 0; i < rounds; ++i) {
        long old;
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, win);
        MPI_Win_unlock(0, win);
        CHECK(old > last && old < (long) rounds * size);
        last = old;
    }
    for (int i = 0; i < rounds; ++i) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        MPI_Accumulate(&one, 1, MPI_LONG, 0, 1, 1, MPI_LONG, MPI_SUM, win);
        MPI_Win_unlock(0, win);
    }
    /* A lock implemented by the program with compare and swap. */
    const long mine = rank + 1, unlocked = 0;
    for (int i = 0; i < 20; ++i) {
        long old = -1;
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        do {
            MPI_Compare_and_swap(&mine, &unlocked, &old, MPI_LONG, 0, 2, win);
            MPI_Win_flush(0, win);
        } while (old != 0);
        MPI_Accumulate(&one, 1, MPI_LONG, 0, 3, 1, MPI_LONG, MPI_SUM, win);
        MPI_Win_flush(0, win);
        MPI_Compare_and_swap(&unlocked, &mine, &old, MPI_LONG, 0, 2, win);
        MPI_Win_unlock(0, win);
        CHECK(old == mine);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (0 == rank) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        CHECK(counter[0] == (long) rounds * size);
        CHECK(counter[1] == (long) rounds * size);
        CHECK(counter[2] == 0 && counter[3] == 20L * size);
        MPI_Win_unlock(0, win);
    }
    MPI_Win_free(&win);
}

static void get_accumulate(void)
{
    double window[64], out[64], old[64];
    MPI_Win win;
    for (int i = 0; i < 64; ++i) {
        window[i] = i;
        out[i] = 1;
    }
    MPI_Win_create(window, sizeof window, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(0, win);
    MPI_Get_accumulate(out, 64, MPI_DOUBLE, old, 64, MPI_DOUBLE, 0, 0, 64, MPI_DOUBLE, MPI_SUM, win);
    MPI_Win_fence(0, win);
    for (int i = 0; i < 64; ++i) {
        CHECK(old[i] >= i && old[i] <= i + size - 1);
        CHECK(window[i] == (rank == 0 ? i + size : i));
    }
    MPI_Win_free(&win);
}

static void exposed(void)
{
    int window = -1, value = rank;
    MPI_Group all, to, from;
    MPI_Win win;
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &next, &to);
    MPI_Group_incl(all, 1, &before, &from);
    MPI_Win_create(&window, sizeof window, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    for (int round = 0; round < 50; ++round) {
        value = rank + round;
        MPI_Win_post(from, 0, win);
        MPI_Win_start(to, 0, win);
        MPI_Put(&value, 1, MPI_INT, next, 0, 1, MPI_INT, win);
        MPI_Win_complete(win);
        MPI_Win_wait(win);
        CHECK(window == before + round);
    }
    MPI_Win_free(&win);
    MPI_Group_free(&all);
    MPI_Group_free(&to);
    MPI_Group_free(&from);
}

/* A window of a single process, which is not registered, and one with no bytes in some ranks. */
static void alone_and_empty(void)
{
    long value = 5, old = 0, result[2] = {0, 0};
    const long nine = 9;
    MPI_Win win;
    MPI_Win_create(&value, sizeof value, sizeof value, MPI_INFO_NULL, MPI_COMM_SELF, &win);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
    old = 5;
    MPI_Compare_and_swap(&nine, &old, &result[0], MPI_LONG, 0, 0, win);
    MPI_Win_flush(0, win);
    MPI_Fetch_and_op(&nine, &result[1], MPI_LONG, 0, 0, MPI_SUM, win);
    MPI_Win_unlock(0, win);
    CHECK(result[0] == 5 && result[1] == 9 && value == 18);
    MPI_Win_free(&win);
    value = rank;
    MPI_Win_create(&value, 0 == rank ? sizeof value : 0, sizeof value, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(0, win);
    MPI_Get(&result[0], 1, MPI_LONG, 0, 0, 1, MPI_LONG, win);
    MPI_Win_fence(0, win);
    CHECK(result[0] == 0);
    MPI_Win_free(&win);
}

/* A rank that polls its own window with MPI_Get and calls nothing else of MPI receives a put: the window
 * is not locked all the time. */
static void poll_own_window(int rounds)
{
    long *window, seen, least = -1;
    MPI_Win win;
    MPI_Win_allocate(sizeof *window, sizeof *window, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    *window = -1;
    for (long round = 0; round < rounds; ++round) {
        long polls = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        if (size - 1 == rank) {
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
            MPI_Put(&round, 1, MPI_LONG, 0, 0, 1, MPI_LONG, win);
            MPI_Win_unlock(0, win);
        }
        if (0 == rank) {
            do {
                MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
                MPI_Get(&seen, 1, MPI_LONG, 0, 0, 1, MPI_LONG, win);
                MPI_Win_unlock(0, win);
                ++polls;
            } while (seen < round);
            CHECK(seen == round);
            least = least < 0 || polls < least ? polls : least;
        }
    }
    /* A peer may be slow in some rounds, but not in all. */
    CHECK(least < 1000);
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int n = 2; n <= 200000; n *= 10) {
        put_and_get(n);
    }
    atomics(200);
    get_accumulate();
    exposed();
    alone_and_empty();
    poll_own_window(100);
    int all[2], own[2] = {wrong, checks};
    MPI_Allreduce(own, all, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (0 == rank) {
        printf(all[0] ? "FAIL %d of %d checks, %d ranks\n" : "PASS %d wrong of %d checks, %d ranks\n", all[0], all[1], size);
    }
    MPI_Finalize();
    return all[0] != 0;
}
