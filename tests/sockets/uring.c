/* Uses sockets by io_uring, of which the C library knows nothing: `uring HOST PORT`, with the
 * server of tcp.c there. Has to print the same without ESP. Prints PASS at the end, or why the
 * kernel has no io_uring. */
#define _GNU_SOURCE
#include "tcp.h"
#include <linux/io_uring.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { ENTRIES = 8 };

static int ring;
static struct io_uring_sqe *entries;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_cqe *completions;

static char *map(size_t length, off_t at) {
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, at);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Makes the ring; false where the kernel refuses. */
static int set_up(void) {
    struct io_uring_params params = {0};
    ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring < 0) return 0;
    char *sq = map(params.sq_off.array + ENTRIES * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq =
        map(params.cq_off.cqes + params.cq_entries * sizeof *completions, IORING_OFF_CQ_RING);
    entries = (void *)map(ENTRIES * sizeof *entries, IORING_OFF_SQES);
    sq_tail = (void *)(sq + params.sq_off.tail);
    sq_mask = (void *)(sq + params.sq_off.ring_mask);
    sq_array = (void *)(sq + params.sq_off.array);
    cq_head = (void *)(cq + params.cq_off.head);
    cq_tail = (void *)(cq + params.cq_off.tail);
    cq_mask = (void *)(cq + params.cq_off.ring_mask);
    completions = (void *)(cq + params.cq_off.cqes);
    return 1;
}

/* Starts an operation. `offset` is the one of a file, or the length of an address. */
static void start(int operation, int fd, const void *memory, unsigned length, uint64_t offset) {
    unsigned at = *sq_tail & *sq_mask;
    entries[at] = (struct io_uring_sqe){.opcode = (uint8_t)operation, .fd = fd, .off = offset};
    entries[at].addr = (uint64_t)(uintptr_t)memory;
    entries[at].len = length;
    entries[at].user_data = (uint64_t)operation;
    if (operation == IORING_OP_POLL_ADD) entries[at].poll32_events = POLLIN;
    sq_array[at] = at;
    __atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
}

/* Waits for the end of this operation, which is the next one to end; returns its result. */
static int ended(int operation) {
    while (__atomic_load_n(cq_tail, __ATOMIC_ACQUIRE) == *cq_head)
        CHECK(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0);
    struct io_uring_cqe done = completions[*cq_head & *cq_mask];
    __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
    CHECK(done.user_data == (uint64_t)operation);
    return done.res;
}

static int done(int operation, int fd, const void *memory, unsigned length, uint64_t offset) {
    start(operation, fd, memory, length, offset);
    return ended(operation);
}

/* Sends and gets back by the ring alone. */
static void echoes_by_ring(int fd) {
    char back[100] = {0};
    start(IORING_OP_RECV, fd, back, sizeof back, 0);
    CHECK(done(IORING_OP_SEND, fd, "by ring", 7, 0) == 7);
    CHECK(ended(IORING_OP_RECV) == 7 && memcmp(back, "by ring", 7) == 0);
    start(IORING_OP_POLL_ADD, fd, NULL, 0, 0);
    CHECK(done(IORING_OP_WRITE, fd, "once more", 9, (uint64_t)-1) == 9);
    CHECK(ended(IORING_OP_POLL_ADD) == POLLIN);
    CHECK(done(IORING_OP_READ, fd, back, sizeof back, (uint64_t)-1) == 9);
    CHECK(memcmp(back, "once more", 9) == 0);
    CHECK(done(IORING_OP_SHUTDOWN, fd, NULL, SHUT_WR, 0) == 0);
    CHECK(done(IORING_OP_RECV, fd, back, sizeof back, 0) == 0);
    CHECK(done(IORING_OP_CLOSE, fd, NULL, 0, 0) == 0);
    CHECK(close(fd) == -1 && errno == EBADF);
}

int main(int argc, char **argv) {
    char byte = 0;
    CHECK(argc == 3);
    set_server(argv[1], argv[2]);
    if (!set_up()) {
        printf("no io_uring: %s\n", strerror(errno));
        return 0;
    }
    echoes_by_ring(connected('e'));
    int listener = listen_at(0), asks = calls_back(port_of(listener));
    int fd = done(IORING_OP_ACCEPT, listener, NULL, 0, 0);
    CHECK(fd >= 0);
    print_peer("accepted by ring", fd);
    echoes_by_ring(fd);
    close(asks);
    fd = connected('r');
    CHECK(done(IORING_OP_RECV, fd, &byte, 1, 0) == -ECONNRESET);
    /* The library does not see this connection. */
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(done(IORING_OP_CONNECT, fd, &server, 0, sizeof server) == 0);
    print_peer("connected by ring", fd);
    CHECK(done(IORING_OP_SEND, fd, "e", 1, 0) == 1);
    echoes_by_ring(fd);
    printf("PASS\n");
    return 0;
}
