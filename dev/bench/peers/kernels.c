// Kernels of the ESP paper's experiments (docs/papers.md). Prints for each
//   FIGURE NAME BYTES P50 P99      microseconds
//   RATE NAME BYTES STEPS-PER-SECOND
// and 0 bytes where there is no size. Usage: kernels SCALE WORD..., where a word is
//   pingpong:BYTES alltoall:BYTES allgather:BYTES allreduce:BYTES barrier lu:N sp:N
// SCALE multiplies the numbers of samples, in percent.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 20000, PARTS = 5 };

static int rank, size, scale;
static double times[MAX_SAMPLES];

static void stop(const char *why) {
    fprintf(stderr, "kernels: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static void *memory(size_t bytes) {
    void *p = calloc(bytes + 64, 1);
    if (!p) stop("no memory");
    return p;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, int bytes, int count) {
    if (rank) return;
    qsort(times, (size_t)count, sizeof *times, by_value);
    const double p99 = times[count - 1 - count / 100];
    printf("FIGURE %s %d %.3f %.3f\n", name, bytes, times[count / 2], p99);
}

// Returns a number of samples, of at least ten: fewer of long messages.
static int samples(int most, int bytes) {
    long n = (long)most * scale / 100;
    if (bytes > 4096) n = n * 4096 / bytes;
    return n < 10 ? 10 : n > MAX_SAMPLES ? MAX_SAMPLES : (int)n;
}

static void pingpong(int bytes) {
    if (rank > 1) return;
    char *buffer = memory((size_t)bytes);
    const int count = samples(3000, bytes), peer = 1 - rank;
    for (int i = -count / 10 - 10; i < count; i++) {
        const double begin = MPI_Wtime();
        if (rank == 0) {
            MPI_Send(buffer, bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
            MPI_Recv(buffer, bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        }
        if (i >= 0) times[i] = (MPI_Wtime() - begin) / 2 * 1e6;
    }
    report("pingpong", bytes, count);
    free(buffer);
}

// `bytes` is the length of one part, which a rank sends to each other rank.
static void collective(const char *name, int bytes) {
    const size_t whole = (size_t)bytes * (size_t)size;
    char *out = memory(whole), *in = memory(whole);
    const int count = samples(size > 2 ? 400 : 2000, bytes);
    for (int i = -count / 10 - 10; i < count; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        if (!strcmp(name, "alltoall"))
            MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
        else if (!strcmp(name, "allgather"))
            MPI_Allgather(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
        else if (!strcmp(name, "allreduce"))
            MPI_Allreduce(out, in, (bytes + 7) / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        else
            MPI_Barrier(MPI_COMM_WORLD);
        if (i >= 0) times[i] = (MPI_Wtime() - begin) * 1e6;
    }
    report(name, bytes, count);
    free(out);
    free(in);
}

static void rate(const char *name, int steps, double seconds) {
    double longest;
    MPI_Reduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("RATE %s 0 %.4f\n", name, steps / longest);
}

// One 5 x 5 matrix times the sum of four vectors, three times: about 200 operations.
static void relax(double *v, const double *a, const double *b,
                  const double *c) {
    double x[PARTS], y[PARTS];
    for (int m = 0; m < PARTS; m++) x[m] = v[m] + a[m] + b[m] + c[m] + 1.0;
    for (int turn = 0; turn < 3; turn++) {
        for (int m = 0; m < PARTS; m++) {
            y[m] = 0;
            for (int l = 0; l < PARTS; l++) y[m] += 0.04 * (m + l + 1) * x[l];
        }
        for (int m = 0; m < PARTS; m++) x[m] = 0.3 * y[m];
    }
    for (int m = 0; m < PARTS; m++) v[m] = 0.2 * x[m];
}

static void receive(void *p, int numbers, int from) {
    MPI_Recv(p, numbers, MPI_DOUBLE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void swap(const void *out, int to, void *in, int from, int numbers) {
    MPI_Sendrecv(out, numbers, MPI_DOUBLE, to, 3, in, numbers, MPI_DOUBLE, from, 3, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

// Wavefronts as in LU: planes of a cube, cut into px x py columns. A plane of the lower sweep needs
// the edges of its western and northern neighbours, one short message each; the upper sweep the
// others. Two layers of each face are exchanged before, for the right-hand side.
static void lu(int n) {
    const int px = size >= 4 ? 2 : size, py = size >= 4 ? 2 : 1, steps = samples(40, 0);
    if (px * py != size) stop("lu needs 1, 2 or 4 ranks");
    const int x = rank % px, y = rank / px, nx = n / px, ny = n / py;
    const int nobody = MPI_PROC_NULL;
    const int west = x > 0 ? rank - 1 : nobody, east = x + 1 < px ? rank + 1 : nobody;
    const int north = y > 0 ? rank - px : nobody, south = y + 1 < py ? rank + px : nobody;
    const int cells = PARTS * nx * ny;
    double *v = memory(sizeof *v * (size_t)cells * (size_t)n);
    double *column = memory(sizeof(double) * PARTS * (size_t)ny);
    double *row = memory(sizeof(double) * PARTS * (size_t)nx);
    double *face = memory(sizeof(double) * PARTS * 2 * (size_t)(nx + ny) * (size_t)n);
    double *other = memory(sizeof(double) * PARTS * 2 * (size_t)(nx + ny) * (size_t)n);
    double begin = 0;
    for (int step = -2; step < steps; step++) {
        if (step == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
        }
        const int wide = PARTS * 2 * ny * n, deep = PARTS * 2 * nx * n;
        swap(face, east, other, west, wide);
        swap(face, west, other, east, wide);
        swap(face, south, other, north, deep);
        swap(face, north, other, south, deep);
        for (int upper = 0; upper < 2; upper++) {
            const int from_x = upper ? east : west, to_x = upper ? west : east;
            const int from_y = upper ? south : north, to_y = upper ? north : south;
            for (int k = 0; k < n; k++) {
                double *plane = v + cells * (upper ? n - 1 - k : k);
                receive(column, PARTS * ny, from_x);
                receive(row, PARTS * nx, from_y);
                for (int j = 0; j < ny; j++)
                    for (int i = 0; i < nx; i++) {
                        double *at = plane + PARTS * (j * nx + i);
                        relax(at, i ? at - PARTS : column + PARTS * j,
                              j ? at - PARTS * nx : row + PARTS * i, column);
                    }
                for (int j = 0; j < ny; j++)
                    memcpy(column + PARTS * j, plane + PARTS * (j * nx + nx - 1),
                           PARTS * sizeof *v);
                memcpy(row, plane + PARTS * (ny - 1) * nx, (size_t)(PARTS * nx) * sizeof *v);
                MPI_Send(column, PARTS * ny, MPI_DOUBLE, to_x, 1, MPI_COMM_WORLD);
                MPI_Send(row, PARTS * nx, MPI_DOUBLE, to_y, 1, MPI_COMM_WORLD);
            }
        }
    }
    rate("lu", steps, MPI_Wtime() - begin);
    free(v);
    free(column);
    free(row);
    free(face);
    free(other);
}

// Alternating directions as in SP: each rank has two cells of (n/2)^3 points. In each direction the
// elimination of the first cell is sent on (22 numbers for each point of its face), and the
// substitution of the second one back (10 numbers). Faces are exchanged once in each step.
static void sp(int n) {
    if (size != 2 && size != 4) stop("sp needs 2 or 4 ranks");
    const int c = n / 2, faces = c * c, steps = samples(40, 0);
    int next[3];
    for (int way = 0; way < 3; way++) next[way] = size == 4 ? rank ^ (way + 1) : 1 - rank;
    double *v = memory(sizeof *v * PARTS * 2 * (size_t)(c * faces));
    double *out = memory(sizeof *v * 22 * (size_t)faces);
    double *in = memory(sizeof *v * 22 * (size_t)faces);
    double begin = 0;
    for (int step = -2; step < steps; step++) {
        if (step == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
        }
        for (int way = 0; way < 6; way++) swap(out, next[way / 2], in, next[way / 2], 20 * faces);
        for (int way = 0; way < 3; way++)
            for (int back = 0; back < 2; back++) {
                const int numbers = (back ? 10 : 22) * faces;
                for (int cell = 0; cell < 2; cell++) {
                    double *mine = v + cell * PARTS * c * faces;
                    if (cell == 1) swap(out, next[way], in, next[way], numbers);
                    for (int layer = 0; layer < c; layer++)
                        for (int point = 0; point < faces; point++) {
                            double *at = mine + PARTS * (layer * faces + point);
                            const double *first = in + 10 * point;
                            relax(at, layer ? at - PARTS * faces : first, at, first);
                        }
                    memcpy(out, mine + PARTS * (c - 1) * faces,
                           sizeof *v * (size_t)(PARTS * faces));
                }
            }
    }
    rate("sp", steps, MPI_Wtime() - begin);
    free(v);
    free(out);
    free(in);
}

// Returns whether a cube of the kernels may have this side.
static int side(int n) {
    return n >= 2 && n <= 128 && n % 2 == 0;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    scale = argc > 1 ? atoi(argv[1]) : 0;
    if (scale < 1 || scale > 100 || size < 2) stop("usage: kernels 1..100 WORD...; two ranks");
    for (int i = 2; i < argc; i++) {
        char name[16] = "";
        int number = 0;
        const int parts = sscanf(argv[i], "%15[a-z]:%d", name, &number);
        if (parts < 1 || number < 0 || number > 1 << 24) stop(argv[i]);
        MPI_Barrier(MPI_COMM_WORLD);
        if (!strcmp(name, "pingpong")) pingpong(number);
        else if (!strcmp(name, "lu") && side(number)) lu(number);
        else if (!strcmp(name, "sp") && side(number)) sp(number);
        else if (!strcmp(name, "alltoall") || !strcmp(name, "allgather")) collective(name, number);
        else if (!strcmp(name, "allreduce") || !strcmp(name, "barrier")) collective(name, number);
        else stop(argv[i]);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
