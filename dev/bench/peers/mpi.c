// The same work over an MPI library. Each rank of the lower half sends to the rank half of the size above it.
#include "worker.h"
#include <mpi.h>

enum { DATA = 1, ACK = 2, READY = 3, GO = 4, FIRST = 100 };

static int rank, size;

static void send_to(const void *p, size_t n, int peer, int tag) {
    MPI_Send(p, (int)n, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
}

static void recv_from(void *p, size_t n, int peer, int tag) {
    MPI_Recv(p, (int)n, MPI_BYTE, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// A barrier made of messages, so that it is the same in all libraries.
static void meet(void) {
    if (rank == 0) {
        for (int i = 1; i < size; i++) recv_from(NULL, 0, i, READY);
        for (int i = 1; i < size; i++) send_to(NULL, 0, i, GO);
    } else {
        send_to(NULL, 0, 0, READY);
        recv_from(NULL, 0, 0, GO);
    }
}

static void pings(char *p, size_t n, size_t rounds) {
    int pairs = size / 2, begins = rank < pairs, peer = begins ? rank + pairs : rank - pairs;
    for (size_t i = 0; i < rounds; i++) {
        if (begins) {
            send_to(p, n, peer, DATA);
            recv_from(p, n, peer, DATA);
        } else {
            recv_from(p, n, peer, DATA);
            send_to(p, n, peer, DATA);
        }
    }
}

static void timed_pings(char *p, size_t n, size_t count, size_t batch) {
    size_t batches = count / batch;
    pings(p, n, warm_up(count));
    if (rank) {
        pings(p, n, count + batches * batch);
        return;
    }
    uint64_t *times = numbers(count);
    for (size_t i = 0; i < count; i++) {
        uint64_t start = now_ns();
        pings(p, n, 1);
        times[i] = now_ns() - start;
    }
    tell("times", times, count);
    for (size_t i = 0; i < batches; i++) {
        uint64_t start = now_ns();
        pings(p, n, batch);
        times[i] = now_ns() - start;
    }
    tell("batches", times, batches);
    free(times);
}

static void pingpong(size_t n, size_t count, size_t batch) {
    char *p = memory(n);
    meet();
    timed_pings(p, n, count, batch);
    free(p);
}

static void windows(size_t n, size_t window, size_t row, size_t count, size_t slots, size_t at_once, int rewrite) {
    int pairs = size / 2, sender = rank < pairs, peer = sender ? rank + pairs : rank - pairs;
    char *p = memory(n * slots);
    uint64_t *times = numbers(count);
    MPI_Request *requests = calloc(window, sizeof *requests);
    if (!requests) die("memory");
    size_t slot = 0;
    for (size_t i = 0; i < count + 1; i++) {
        if (rewrite && sender) memset(p, (int)i, n * slots);
        meet();
        uint64_t start = now_ns();
        for (size_t turn = 0; turn < row; turn++) {
            for (size_t j = 0; j < window && slots < window; j++) {
                if (!sender) recv_from(p, n, peer, DATA);
                else if (at_once > 1) MPI_Isend(p, (int)n, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &requests[j]);
                else send_to(p, n, peer, DATA);
            }
            for (size_t j = 0; j < window && slots >= window; j++) {
                char *at = p + slot * n;
                if (sender) MPI_Isend(at, (int)n, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &requests[j]);
                else MPI_Irecv(at, (int)n, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &requests[j]);
                slot = (slot + 1) % slots;
            }
            if (slots >= window || (sender && at_once > 1)) MPI_Waitall((int)window, requests, MPI_STATUSES_IGNORE);
            if (sender) recv_from(NULL, 0, peer, ACK);
            else send_to(NULL, 0, peer, ACK);
        }
        if (size > 2) meet();
        if (i > 0) times[i - 1] = now_ns() - start;
    }
    if (rank == 0) tell("times", times, count);
    free(requests);
    free(times);
    free(p);
}

static void compute(uint64_t ns) {
    uint64_t end = now_ns() + ns;
    while (now_ns() < end) {}
}

// Producer and consumer of the skew experiment: measures the time in which the producer completes a window.
static void skew(size_t n, uint64_t produce, uint64_t consume, size_t window, size_t count) {
    char *p = memory(n * window);
    uint64_t *times = numbers(count);
    MPI_Request *requests = calloc(window, sizeof *requests);
    if (!requests) die("memory");
    meet();
    for (size_t i = 0; rank < 2 && i < count + 1; i++) {
        if (rank == 0) {
            uint64_t start = now_ns();
            for (size_t j = 0; j < window; j++) {
                compute(produce);
                MPI_Isend(p + j * n, (int)n, MPI_BYTE, 1, DATA, MPI_COMM_WORLD, &requests[j]);
            }
            MPI_Waitall((int)window, requests, MPI_STATUSES_IGNORE);
            if (i > 0) times[i - 1] = now_ns() - start;
            recv_from(NULL, 0, 1, ACK);
        } else {
            for (size_t j = 0; j < window; j++) {
                recv_from(p + j * n, n, 0, DATA);
                compute(consume);
            }
            send_to(NULL, 0, 0, ACK);
        }
    }
    if (rank == 0) tell("times", times, count);
    free(requests);
    free(times);
    free(p);
}

// Rank 1 has `backlog` unexpected messages that stay queued; each sample takes `depth` further ones, the last first.
static void unexpected(size_t backlog, size_t count, size_t depth) {
    char p[8] = {0};
    uint64_t *times = numbers(count);
    if (rank == 0)
        for (size_t i = 0; i < backlog; i++) send_to(p, sizeof p, 1, FIRST + (int)i);
    for (size_t i = 0; rank < 2 && i < count + 10; i++) {
        if (rank == 0) {
            for (size_t j = 0; j < depth; j++) send_to(p, sizeof p, 1, FIRST + (int)(backlog + j));
            send_to(p, sizeof p, 1, READY);
            recv_from(p, sizeof p, 1, GO);
            continue;
        }
        recv_from(p, sizeof p, 0, READY);
        uint64_t start = now_ns();
        for (size_t j = depth; j-- > 0;) recv_from(p, sizeof p, 0, FIRST + (int)(backlog + j));
        if (i >= 10) times[i - 10] = now_ns() - start;
        send_to(p, sizeof p, 0, GO);
    }
    if (rank == 1) {
        for (size_t i = 0; i < backlog; i++) recv_from(p, sizeof p, 0, FIRST + (int)i);
        tell("times", times, count);
    }
    free(times);
}

// Rank 1 has posted `backlog` receives that stay queued; a ping-pong goes past them.
static void posted(size_t backlog, size_t count, size_t batch) {
    char p[8] = {0}, *held = memory(8 * backlog);
    MPI_Request *requests = calloc(backlog + 1, sizeof *requests);
    if (!requests) die("memory");
    if (rank == 1)
        for (size_t i = 0; i < backlog; i++)
            MPI_Irecv(held + 8 * i, 8, MPI_BYTE, 0, FIRST + (int)i, MPI_COMM_WORLD, &requests[i]);
    meet();
    timed_pings(p, sizeof p, count, batch);
    if (rank == 0)
        for (size_t i = 0; i < backlog; i++) send_to(p, sizeof p, 1, FIRST + (int)i);
    if (rank == 1) MPI_Waitall((int)backlog, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(held);
}

// Collective operations by the names of their work. `n` are the bytes of one part.
static void collective(const char *name, size_t n, size_t count) {
    char *out = memory(n * (size_t)size), *in = memory(n * (size_t)size);
    uint64_t *times = numbers(count);
    for (size_t i = 0; i < count + warm_up(count); i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        uint64_t start = now_ns();
        if (!strcmp(name, "alltoall")) MPI_Alltoall(out, (int)n, MPI_BYTE, in, (int)n, MPI_BYTE, MPI_COMM_WORLD);
        else if (!strcmp(name, "allgather")) MPI_Allgather(out, (int)n, MPI_BYTE, in, (int)n, MPI_BYTE, MPI_COMM_WORLD);
        else MPI_Allreduce(out, in, (int)(n / 8), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (i >= warm_up(count)) times[i - warm_up(count)] = now_ns() - start;
    }
    if (rank == 0) tell("times", times, count);
    free(out);
    free(in);
    free(times);
}

enum { BUCKETS = 1024, KEY_BITS = 19 };

// The exchange of an integer sort, as in `collectives.rs`.
static void sort(size_t keys, size_t count) {
    size_t mine = keys / (size_t)size;
    uint32_t *key = (uint32_t *)memory(mine * 4), *sorted = (uint32_t *)memory(mine * 4);
    uint32_t *got = (uint32_t *)memory((2 * mine + 4096) * 4), *ranked = (uint32_t *)memory(4u << KEY_BITS);
    uint64_t *times = numbers(count), state = (uint64_t)rank + 1;
    int to[64], from[64], at[64], after[64];
    if (size > 64) die("more than 64 ranks");
    for (size_t i = 0; i < mine; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        key[i] = (uint32_t)(state >> (64 - KEY_BITS));
    }
    for (size_t sample = 0; sample < count + 1; sample++) {
        MPI_Barrier(MPI_COMM_WORLD);
        uint64_t start = now_ns();
        uint32_t counts[BUCKETS] = {0}, all[BUCKETS];
        for (size_t i = 0; i < mine; i++) counts[key[i] >> (KEY_BITS - 10)]++;
        MPI_Allreduce(counts, all, BUCKETS, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD);
        uint64_t sum = 0;
        size_t next[BUCKETS], place = 0;
        for (int r = 0; r < size; r++) to[r] = 0;
        for (size_t b = 0; b < BUCKETS; b++) {
            int owner = (int)(sum * (uint64_t)size / (mine * (size_t)size));
            sum += all[b];
            next[b] = place;
            place += counts[b];
            to[owner < size ? owner : size - 1] += (int)counts[b];
        }
        for (size_t i = 0; i < mine; i++) sorted[next[key[i] >> (KEY_BITS - 10)]++] = key[i];
        MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD);
        int received = 0, sent = 0;
        for (int r = 0; r < size; r++) {
            at[r] = sent, after[r] = received;
            sent += to[r], received += from[r];
        }
        if ((size_t)received > 2 * mine + 4096) die("keys");
        MPI_Alltoallv(sorted, to, at, MPI_UINT32_T, got, from, after, MPI_UINT32_T, MPI_COMM_WORLD);
        memset(ranked, 0, 4u << KEY_BITS);
        for (int i = 0; i < received; i++) ranked[got[i]]++;
        if (sample > 0) times[sample - 1] = now_ns() - start;
    }
    if (rank == 0) tell("times", times, count);
    free(key), free(sorted), free(got), free(ranked), free(times);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    // Binds the process before the library inspects the machine: each launcher passes the rank in its own variable.
    const char *early = getenv("OMPI_COMM_WORLD_RANK");
    if (!early) early = getenv("PMI_RANK");
    if (early) pin(argv[2], atoi(early));
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (!early) pin(argv[2], rank);
    join_benchmark(argv[1], rank);
    char work[256];
    while (next_work(work, sizeof work)) {
        size_t a, b, c, d, e, f, g;
        char name[16];
        if (sscanf(work, "keys %zu %zu", &a, &b) == 2) {
            sort(a, b);
        } else if (sscanf(work, "all%*s %zu %zu", &a, &b) == 2 && sscanf(work, "%15s", name) == 1) {
            collective(name, a, b);
        } else if (sscanf(work, "pingpong %zu %zu %zu", &a, &b, &c) == 3) {
            pingpong(a, b, c);
        } else if (sscanf(work, "window %zu %zu %zu %zu %zu %zu %zu", &a, &b, &c, &d, &e, &f, &g) == 7) {
            windows(a, b, c, d, e, f, g != 0);
        } else if (sscanf(work, "skew %zu %zu %zu %zu %zu", &a, &b, &c, &d, &e) == 5) {
            skew(a, b, c, d, e);
        } else if (sscanf(work, "unexpected %zu %zu %zu", &a, &b, &c) == 3) {
            unexpected(a, b, c);
        } else if (sscanf(work, "posted %zu %zu %zu", &a, &b, &c) == 3) {
            posted(a, b, c);
        } else {
            say("error unknown work: %s", work);
            continue;
        }
        say("done\n");
    }
    MPI_Finalize();
    return 0;
}
