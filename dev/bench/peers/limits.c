// Limits of the machine: a cache line handed between two cores, memcpy, the kernel's copy from another process.
#include "worker.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

// Two lines, each written by one side only.
struct page {
    _Alignas(128) _Atomic uint64_t ping;
    _Alignas(128) _Atomic uint64_t pong;
    // Address of rank 1's memory, and whether rank 0 no longer needs it.
    _Alignas(128) _Atomic uintptr_t theirs;
    _Atomic int copied;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void line_rounds(struct page *page, int rank, uint64_t *turn, size_t rounds) {
    for (size_t i = 0; i < rounds; i++) {
        uint64_t n = ++*turn;
        if (rank == 0) {
            atomic_store_explicit(&page->ping, n, memory_order_release);
            while (atomic_load_explicit(&page->pong, memory_order_acquire) != n) relax();
        } else {
            while (atomic_load_explicit(&page->ping, memory_order_acquire) != n) relax();
            atomic_store_explicit(&page->pong, n, memory_order_release);
        }
    }
}

static void line(struct page *page, int rank, uint64_t *turn, size_t count, size_t batch) {
    size_t batches = count / batch;
    line_rounds(page, rank, turn, warm_up(count));
    if (rank) {
        line_rounds(page, rank, turn, count + batches * batch);
        return;
    }
    uint64_t *times = numbers(count);
    for (size_t i = 0; i < count; i++) {
        uint64_t start = now_ns();
        line_rounds(page, rank, turn, 1);
        times[i] = now_ns() - start;
    }
    tell("times", times, count);
    for (size_t i = 0; i < batches; i++) {
        uint64_t start = now_ns();
        line_rounds(page, rank, turn, batch);
        times[i] = now_ns() - start;
    }
    tell("batches", times, batches);
    free(times);
}

// `window` copies, each of another slot.
static void copy(size_t size, size_t window, size_t count, size_t slots) {
    char *from = memory(size * slots), *to = memory(size * slots);
    uint64_t *times = numbers(count);
    size_t slot = 0;
    for (size_t i = 0; i < count + 1; i++) {
        uint64_t start = now_ns();
        for (size_t j = 0; j < window; j++) {
            memcpy(to + slot * size, from + slot * size, size);
            __asm__ volatile("" : : "r"(to) : "memory");
            slot = (slot + 1) % slots;
        }
        if (i > 0) times[i - 1] = now_ns() - start;
    }
    tell("times", times, count);
    free(from);
    free(to);
    free(times);
}

// Likewise, but the kernel copies from the other process's memory.
static void cross_copy(struct page *page, int rank, pid_t other, uint64_t *turn, size_t size, size_t window,
                       size_t count, size_t slots) {
    char *mine = memory(size * slots);
    if (rank) {
        atomic_store(&page->copied, 0);
        atomic_store(&page->theirs, (uintptr_t)mine);
        line_rounds(page, rank, turn, 1); // Rank 0 may read the address.
        while (!atomic_load(&page->copied)) usleep(1000);
        free(mine);
        return;
    }
    line_rounds(page, rank, turn, 1);
    char *theirs = (char *)atomic_load(&page->theirs);
    uint64_t *times = numbers(count);
    size_t slot = 0;
    for (size_t i = 0; i < count + 1; i++) {
        uint64_t start = now_ns();
        for (size_t j = 0; j < window; j++) {
            struct iovec local = {mine + slot * size, size}, remote = {theirs + slot * size, size};
            if (process_vm_readv(other, &local, 1, &remote, 1, 0) != (ssize_t)size) {
                say("error process_vm_readv is refused\n");
                exit(1);
            }
            slot = (slot + 1) % slots;
        }
        if (i > 0) times[i - 1] = now_ns() - start;
    }
    atomic_store(&page->copied, 1);
    tell("times", times, count);
    free(times);
    free(mine);
}

// System calls that do nothing.
static void trap(size_t count, size_t batch) {
    uint64_t *times = numbers(count);
    for (size_t i = 0; i < count; i++) {
        uint64_t start = now_ns();
        for (size_t j = 0; j < batch; j++) syscall(SYS_getppid);
        times[i] = now_ns() - start;
    }
    tell("times", times, count);
    free(times);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    struct page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) die("mmap");
    pid_t parent = getpid();
    pid_t child = fork();
    if (child < 0) die("fork");
    int rank = child == 0;
    if (rank == 1 && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)) return 1;
    pin(argv[2], rank);
    join_benchmark(argv[1], rank);
    char work[256];
    uint64_t turn = 0;
    while (next_work(work, sizeof work)) {
        size_t a, b, c, d;
        if (sscanf(work, "line %zu %zu", &a, &b) == 2) {
            line(page, rank, &turn, a, b);
        } else if (sscanf(work, "memcpy %zu %zu %zu %zu", &a, &b, &c, &d) == 4) {
            if (rank == 0) copy(a, b, c, d);
        } else if (sscanf(work, "crosscopy %zu %zu %zu %zu", &a, &b, &c, &d) == 4) {
            cross_copy(page, rank, child, &turn, a, b, c, d);
        } else if (sscanf(work, "trap %zu %zu", &a, &b) == 2) {
            if (rank == 0) trap(a, b);
        } else {
            say("error unknown work: %s", work);
            continue;
        }
        say("done\n");
    }
    return 0;
}
