/*
 * esp.h: messages between the processes of a job, over shared memory within a node and raw Ethernet between nodes.
 *
 * A program is started by mpirun, mpiexec or alone; see docs/launchers.md. Compile and link:
 *
 *     cc ring.c $(pkg-config --cflags --libs esp) -o ring
 *
 * Rules for all functions
 *  - They answer ESP_SUCCESS (0) or an ESP_ERR_ code. esp_strerror() puts a code into words; esp_last_error() gives the details of
 *    the calling thread's last failure. Nothing is printed, and no failure ends the process.
 *  - Lengths and counts are signed; negative ones are ESP_ERR_COUNT. A null pointer is ESP_ERR_POINTER where something must be there; it may
 *    stand for a buffer of no bytes, and for a status nobody wants (ESP_STATUS_IGNORE).
 *  - Between esp_init and esp_finalize any thread may call any of them. Before and after, they answer ESP_ERR_STATE.
 *  - A bug of the library is ESP_ERR_INTERNAL in builds with debug assertions; in release builds it ends the process (SIGABRT).
 */
#ifndef ESP_H
#define ESP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ESP_VERSION_MAJOR 0
#define ESP_VERSION_MINOR 1

/* What functions answer. */
enum {
    ESP_SUCCESS = 0,
    ESP_ERR_STATE = 1,     /* not initialized, or finalized already */
    ESP_ERR_JOIN = 2,      /* the job could not be joined */
    ESP_ERR_POINTER = 3,   /* null, or not aligned for its type */
    ESP_ERR_COUNT = 4,     /* negative, or too large */
    ESP_ERR_RANK = 5,      /* the communicator has no such rank */
    ESP_ERR_TAG = 6,       /* tags are 0 to 2147483647; receives may say ESP_ANY_TAG */
    ESP_ERR_COMM = 7,      /* no such communicator */
    ESP_ERR_REQUEST = 8,   /* no such request: freed, waited for already, or never there */
    ESP_ERR_TYPE = 9,      /* no such type of values */
    ESP_ERR_OP = 10,       /* no such operation */
    ESP_ERR_TRUNCATE = 11, /* the message was longer than the buffer, which holds its beginning */
    ESP_ERR_PEER = 12,     /* a process that the call needs has failed */
    ESP_ERR_CANCELLED = 13,
    ESP_ERR_IN_STATUS = 14, /* some requests failed: see each status */
    ESP_ERR_LAUNCHER = 15, /* the launcher is gone */
    ESP_ERR_SYSTEM = 16,   /* the system refused something */
    ESP_ERR_MESSAGE = 17,  /* no such message: received already, or never there */
    ESP_ERR_ARG = 18,      /* arguments that do not fit together */
    ESP_ERR_INTERNAL = 19  /* a bug of the library */
};

/* A group of processes and a context of its own. */
typedef int32_t esp_comm_t;
#define ESP_COMM_WORLD ((esp_comm_t)0)
#define ESP_COMM_NULL ((esp_comm_t)-1)

/* Something that was started and is not over. */
typedef uint64_t esp_request_t;
#define ESP_REQUEST_NULL ((esp_request_t)0)

/* A message that a probe has taken out of the matching. */
typedef uint64_t esp_message_t;
#define ESP_MESSAGE_NULL ((esp_message_t)0)

#define ESP_ANY_SOURCE (-1)
#define ESP_ANY_TAG (-1)

/* What came of a receive or of any request. */
typedef struct esp_status {
    int32_t source; /* rank of the sender */
    int32_t tag;
    int64_t length; /* bytes that were sent, also when the buffer was shorter */
    int32_t error;  /* ESP_SUCCESS or the request's own error */
    int32_t reserved;
} esp_status_t;
#define ESP_STATUS_IGNORE ((esp_status_t *)0)

/* Types of values, for reductions. */
typedef int32_t esp_type_t;
enum {
    ESP_INT8 = 1,
    ESP_UINT8 = 2,
    ESP_INT16 = 3,
    ESP_UINT16 = 4,
    ESP_INT32 = 5,
    ESP_UINT32 = 6,
    ESP_INT64 = 7,
    ESP_UINT64 = 8,
    ESP_FLOAT = 9,
    ESP_DOUBLE = 10
};

/* Operations of reductions. Integers wrap around. */
typedef int32_t esp_op_t;
enum { ESP_SUM = 1, ESP_PROD = 2, ESP_MIN = 3, ESP_MAX = 4, ESP_BAND = 5, ESP_BOR = 6, ESP_BXOR = 7 };

/* ---- life ---- */

/* Joins the job. Once in a process. */
int esp_init(void);
/* Leaves the job; all processes call it. What was started and not waited for is given up. */
int esp_finalize(void);
/* 1 between esp_init and esp_finalize, else 0. */
int esp_initialized(void);
/* Ends all processes of the job. `why` may be null. Does not return. */
void esp_abort(int code, const char *why);
/* Gives waiting messages a turn, for programs that compute for long. All other calls do so, too. */
int esp_progress(void);
/* How each peer is reached and why, as text. Writes at most `room` bytes, the last of them 0; `needed` (may be null) is the room for all. */
int esp_report(char *text, int64_t room, int64_t *needed);

/* A code in a few words; never null. */
const char *esp_strerror(int error);
/* Details of this thread's last failure; never null, valid until its next call of a function of this library. */
const char *esp_last_error(void);

/* ---- communicators ---- */

int esp_rank(esp_comm_t comm, int32_t *rank);
int esp_size(esp_comm_t comm, int32_t *size);
/* The same processes with a context of their own. Collective. */
int esp_comm_dup(esp_comm_t comm, esp_comm_t *copy);
/* Processes of the same `color` together, ordered by `key`. A negative color: in none (ESP_COMM_NULL). Collective. */
int esp_comm_split(esp_comm_t comm, int32_t color, int32_t key, esp_comm_t *part);
/* Sets *comm to ESP_COMM_NULL. The world cannot be freed. */
int esp_comm_free(esp_comm_t *comm);

/* ---- blocking ---- */

int esp_send(const void *data, int64_t length, int32_t dest, int32_t tag, esp_comm_t comm);
/* Returns when a receive has taken it. */
int esp_ssend(const void *data, int64_t length, int32_t dest, int32_t tag, esp_comm_t comm);
int esp_recv(void *buffer, int64_t room, int32_t source, int32_t tag, esp_comm_t comm, esp_status_t *status);
int esp_sendrecv(const void *data, int64_t length, int32_t dest, int32_t send_tag, void *buffer, int64_t room,
                 int32_t source, int32_t recv_tag, esp_comm_t comm, esp_status_t *status);
int esp_probe(int32_t source, int32_t tag, esp_comm_t comm, esp_status_t *status);
int esp_iprobe(int32_t source, int32_t tag, esp_comm_t comm, int *flag, esp_status_t *status);
/* The message can then be received by esp_mrecv only, which must be called. */
int esp_mprobe(int32_t source, int32_t tag, esp_comm_t comm, esp_message_t *message, esp_status_t *status);
int esp_improbe(int32_t source, int32_t tag, esp_comm_t comm, int *flag, esp_message_t *message,
                esp_status_t *status);
int esp_mrecv(void *buffer, int64_t room, esp_message_t *message, esp_status_t *status);

/* ---- non-blocking: the buffer belongs to the library until the request is over ---- */

int esp_isend(const void *data, int64_t length, int32_t dest, int32_t tag, esp_comm_t comm,
              esp_request_t *request);
int esp_issend(const void *data, int64_t length, int32_t dest, int32_t tag, esp_comm_t comm,
               esp_request_t *request);
int esp_irecv(void *buffer, int64_t room, int32_t source, int32_t tag, esp_comm_t comm, esp_request_t *request);

/*
 * A request that is over becomes ESP_REQUEST_NULL, whether it succeeded or not. Waiting for ESP_REQUEST_NULL succeeds at once, with a
 * status of ESP_ANY_SOURCE, ESP_ANY_TAG and no length.
 */
int esp_wait(esp_request_t *request, esp_status_t *status);
int esp_test(esp_request_t *request, int *flag, esp_status_t *status);
/* `statuses`: one for each request, or null. With them, ESP_ERR_IN_STATUS says that some failed; without, the first error is answered. */
int esp_waitall(int64_t count, esp_request_t *requests, esp_status_t *statuses);
/* *index becomes -1 when all are ESP_REQUEST_NULL. */
int esp_waitany(int64_t count, esp_request_t *requests, int64_t *index, esp_status_t *status);
/* Takes back a request of which nothing has happened. It must be waited for all the same, and ends with ESP_ERR_CANCELLED if this was in time. */
int esp_cancel(esp_request_t *request);
/* It goes on, and nobody waits. The buffer stays the library's until esp_finalize. */
int esp_request_free(esp_request_t *request);

/* ---- collective: all processes of the communicator call them, in the same order ---- */

int esp_barrier(esp_comm_t comm);
/* `length` bytes of rank `root` to all. */
int esp_bcast(void *data, int64_t length, int32_t root, esp_comm_t comm);
/* `count` values at `data` become the combination of those of all: at all, or at rank `root` only. */
int esp_allreduce(void *data, int64_t count, esp_type_t type, esp_op_t op, esp_comm_t comm);
int esp_reduce(void *data, int64_t count, esp_type_t type, esp_op_t op, int32_t root, esp_comm_t comm);
/* `length` is the number of bytes of one rank's part; the buffer of all parts has `length` times the size of the communicator. */
int esp_gather(const void *mine, int64_t length, void *all, int32_t root, esp_comm_t comm);
int esp_scatter(const void *all, int64_t length, void *mine, int32_t root, esp_comm_t comm);
int esp_allgather(const void *mine, int64_t length, void *all, esp_comm_t comm);
int esp_alltoall(const void *out, int64_t length, void *into, esp_comm_t comm);

#ifdef __cplusplus
}
#endif
#endif
