/*
 * esp.h: messages between the processes of a job, over shared memory within a node and raw
 * Ethernet, UDP or RDMA between nodes; and byte streams between any two programs, without a job
 * (the last part).
 *
 * A program of a job is started by mpirun, mpiexec or alone; see docs/launchers.md. Compile and
 * link:
 *
 *     cc ring.c $(pkg-config --cflags --libs esp) -o ring
 *
 * Rules for all functions
 *  - They return ESP_SUCCESS (0) or an ESP_ERR_ code. esp_strerror() describes a code;
 *    esp_last_error() returns the details of the calling thread's last failure. Nothing is printed,
 *    and no failure ends the process.
 *  - Lengths and counts are signed; negative ones are ESP_ERR_COUNT. A null pointer is
 *    ESP_ERR_POINTER, except for a buffer of no bytes, for a status that is not needed
 *    (ESP_STATUS_IGNORE), and where a comment permits it.
 *  - Between esp_init and esp_finalize any thread may call any of them. Before and after, they
 *    return ESP_ERR_STATE. Functions of streams, listeners and pollers need no job and may be
 *    called at any time.
 *  - A bug in the library is ESP_ERR_INTERNAL in builds with debug assertions; in release builds it
 *    ends the process (SIGABRT).
 */
#ifndef ESP_H
#define ESP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ESP_VERSION_MAJOR 0
#define ESP_VERSION_MINOR 1

/* Return values of the functions. */
enum {
    ESP_SUCCESS = 0,
    ESP_ERR_STATE = 1,     /* not initialized, or finalized already */
    ESP_ERR_JOIN = 2,      /* the job could not be joined */
    ESP_ERR_POINTER = 3,   /* null, or not aligned for its type */
    ESP_ERR_COUNT = 4,     /* negative, or too large */
    ESP_ERR_RANK = 5,      /* the communicator has no such rank */
    ESP_ERR_TAG = 6,       /* tags are 0 to 2147483647; receives may use ESP_ANY_TAG */
    ESP_ERR_COMM = 7,      /* no such communicator */
    ESP_ERR_REQUEST = 8,   /* no such request: freed, already waited for, or never created */
    ESP_ERR_TYPE = 9,      /* no such type of values */
    ESP_ERR_OP = 10,       /* no such operation */
    ESP_ERR_TRUNCATE = 11, /* the message was longer than the buffer, which holds its beginning */
    ESP_ERR_PEER = 12,     /* a process that the call needs has failed */
    ESP_ERR_CANCELLED = 13,
    ESP_ERR_IN_STATUS = 14, /* some requests failed: see each status */
    ESP_ERR_LAUNCHER = 15, /* the launcher is gone */
    ESP_ERR_SYSTEM = 16,   /* the system refused an operation */
    ESP_ERR_MESSAGE = 17,  /* no such message: already received, or never existed */
    ESP_ERR_ARG = 18,      /* arguments that do not fit together */
    ESP_ERR_INTERNAL = 19, /* a bug in the library */
    ESP_ERR_STREAM = 20,   /* no such stream, listener or poller: already closed, or never open */
    ESP_ERR_AGAIN = 21,    /* the call would have to wait, but its timeout is 0 */
    ESP_ERR_TIMEOUT = 22,  /* the time limit of the call has passed; the connection is intact */
    ESP_ERR_DAEMON = 23,   /* this node's esp-daemon does not run, or has another version */
    ESP_ERR_ADDRESS = 24,  /* no node has this name, or several have */
    ESP_ERR_UNREACHABLE = 25, /* the peer's node does not respond, or a link is down */
    ESP_ERR_REFUSED = 26,  /* no program listens on the port */
    ESP_ERR_RESET = 27,    /* the connection was reset: by the peer, its death or a daemon's end */
    ESP_ERR_CLOSED = 28,   /* the sending direction has ended */
    ESP_ERR_IN_USE = 29,   /* the port is in use */
    ESP_ERR_DENIED = 30,   /* not permitted to this user */
    ESP_ERR_LIMIT = 31     /* a limit of this node's daemon is reached */
};

/* A group of processes with a context of its own. */
typedef int32_t esp_comm_t;
#define ESP_COMM_WORLD ((esp_comm_t)0)
#define ESP_COMM_NULL ((esp_comm_t)-1)

/* An operation that was started and is not complete. */
typedef uint64_t esp_request_t;
#define ESP_REQUEST_NULL ((esp_request_t)0)

/* A message that a probe has removed from the matching. */
typedef uint64_t esp_message_t;
#define ESP_MESSAGE_NULL ((esp_message_t)0)

#define ESP_ANY_SOURCE (-1)
#define ESP_ANY_TAG (-1)

/* Result of a receive or of any other request. */
typedef struct esp_status {
    int32_t source; /* rank of the sender */
    int32_t tag;
    int64_t length; /* bytes that were sent, even if the buffer was shorter */
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

/* ---- life cycle ---- */

/* Joins the job. A process may call this once. */
int esp_init(void);
/*
 * Leaves the job; all processes must call it. Requests that were not waited for are abandoned.
 * Waits, without a time limit, for processes that have no room for the messages sent to them,
 * unless they have failed.
 */
int esp_finalize(void);
/* Returns 1 between esp_init and esp_finalize, otherwise 0. */
int esp_initialized(void);
/*
 * Ends all processes of the job. `why` may be null. Does not return. While another thread is in
 * esp_finalize, only this process is ended, which the launcher treats as a failure of the job.
 */
void esp_abort(int code, const char *why);
/* Makes progress on messages, for programs that compute for long. All other calls do so, too. */
int esp_progress(void);
/*
 * Writes how each peer is reached, and why, as text of at most `room` bytes including the
 * terminating 0. `needed` (may be null) becomes the room for the whole text.
 */
int esp_report(char *text, int64_t room, int64_t *needed);

/* Returns a short description of a code; never null. */
const char *esp_strerror(int error);
/*
 * Returns details of this thread's last failure; never null, valid until the thread's next call of
 * a function of this library.
 */
const char *esp_last_error(void);

/* ---- communicators ---- */

int esp_rank(esp_comm_t comm, int32_t *rank);
int esp_size(esp_comm_t comm, int32_t *size);
/* Creates a communicator of the same processes with a context of its own. Collective. */
int esp_comm_dup(esp_comm_t comm, esp_comm_t *copy);
/*
 * Creates a communicator of the processes with the same `color`, ordered by `key`. A process with a
 * negative color gets ESP_COMM_NULL. Collective.
 */
int esp_comm_split(esp_comm_t comm, int32_t color, int32_t key, esp_comm_t *part);
/* Frees a communicator and sets *comm to ESP_COMM_NULL. The world cannot be freed. */
int esp_comm_free(esp_comm_t *comm);

/* ---- blocking ---- */

int esp_send(const void *data, int64_t length, int32_t dest, int32_t tag, esp_comm_t comm);
/* Returns when a receive has taken the message. */
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

/* ---- non-blocking: the buffer belongs to the library until the request is complete ---- */

int esp_isend(const void *data, int64_t length, int32_t dest, int32_t tag, esp_comm_t comm,
              esp_request_t *request);
int esp_issend(const void *data, int64_t length, int32_t dest, int32_t tag, esp_comm_t comm,
               esp_request_t *request);
int esp_irecv(void *buffer, int64_t room, int32_t source, int32_t tag, esp_comm_t comm, esp_request_t *request);

/*
 * A completed request becomes ESP_REQUEST_NULL, whether it succeeded or not. Waiting for
 * ESP_REQUEST_NULL succeeds at once, with a status of ESP_ANY_SOURCE, ESP_ANY_TAG and no length.
 */
int esp_wait(esp_request_t *request, esp_status_t *status);
int esp_test(esp_request_t *request, int *flag, esp_status_t *status);
/*
 * `statuses`: one for each request, or null. With them, the call returns ESP_ERR_IN_STATUS if some
 * requests failed; without, the first error.
 */
int esp_waitall(int64_t count, esp_request_t *requests, esp_status_t *statuses);
/* *index becomes -1 when all are ESP_REQUEST_NULL. */
int esp_waitany(int64_t count, esp_request_t *requests, int64_t *index, esp_status_t *status);
/*
 * Cancels a request if nothing has happened to it yet. It must still be waited for, and ends with
 * ESP_ERR_CANCELLED if this was in time.
 */
int esp_cancel(esp_request_t *request);
/* Frees a request, which continues. Its buffer belongs to the library until esp_finalize. */
int esp_request_free(esp_request_t *request);

/* ---- collective: all processes of the communicator call them, in the same order ---- */

int esp_barrier(esp_comm_t comm);
/* Sends `length` bytes of rank `root` to all ranks. */
int esp_bcast(void *data, int64_t length, int32_t root, esp_comm_t comm);
/*
 * Combine the `count` values at `data` of all ranks. The result replaces them at all ranks, or at
 * rank `root` only.
 */
int esp_allreduce(void *data, int64_t count, esp_type_t type, esp_op_t op, esp_comm_t comm);
int esp_reduce(void *data, int64_t count, esp_type_t type, esp_op_t op, int32_t root, esp_comm_t comm);
/*
 * `length` is the number of bytes of one rank's part; the buffer of all parts has `length` times
 * the size of the communicator.
 */
int esp_gather(const void *mine, int64_t length, void *all, int32_t root, esp_comm_t comm);
int esp_scatter(const void *all, int64_t length, void *mine, int32_t root, esp_comm_t comm);
int esp_allgather(const void *mine, int64_t length, void *all, esp_comm_t comm);
int esp_alltoall(const void *out, int64_t length, void *into, esp_comm_t comm);

/*
 * ---- streams: connect, listen, accept, read, write ----
 *
 * Streams need a running esp-daemon on both nodes, and no job. An address is
 * TARGET[%INTERFACE]:PORT; the target is a name of /etc/ethers, NAME.esp or a MAC address (raw
 * Ethernet), or an IP address or another name (UDP).
 *
 *  - Handles are numbers: a closed or unknown one is ESP_ERR_STREAM. A handle belongs to the caller
 *    until its close function, which sets it to 0. Buffers belong to the caller again when the call
 *    returns; nothing is kept.
 *  - `timeout` is in milliseconds: with ESP_FOREVER a call waits without limit, with 0 it does not
 *    wait (ESP_ERR_AGAIN); otherwise it returns ESP_ERR_TIMEOUT when the time has passed.
 *  - One thread may read a stream while another writes it. A call that waits while another thread
 *    closes the handle continues; the stream is closed when it returns.
 *  - When the daemon ends, calls wait up to 35 seconds for the next one, and streams and listeners
 *    continue there, including those of a poller. Those over leases continue without a daemon.
 *  - Handles do not work in a child of fork().
 */

#define ESP_FOREVER (-1)

typedef uint64_t esp_stream_t;
#define ESP_STREAM_NULL ((esp_stream_t)0)
typedef uint64_t esp_listener_t;
#define ESP_LISTENER_NULL ((esp_listener_t)0)
typedef uint64_t esp_poller_t;
#define ESP_POLLER_NULL ((esp_poller_t)0)

/*
 * Connects. `timeout` limits the wait for the peer, and must not be 0; ESP_FOREVER: the daemon's
 * limit. `poller`: reports events of the stream, or ESP_POLLER_NULL.
 */
int esp_stream_connect(const char *address, int64_t timeout, esp_poller_t poller, esp_stream_t *stream);
/*
 * Waits for bytes and reads those that have arrived, at most `room`. *count is their number; 0 with
 * ESP_SUCCESS is the end of the stream.
 */
int esp_stream_read(esp_stream_t stream, void *buffer, int64_t room, int64_t timeout, int64_t *count);
/*
 * Writes all bytes; each wait for room takes at most `timeout`. With a `timeout` of 0 it writes
 * those for which there is room. *count (may be null) is the number written, even after an error.
 * Written bytes are sent, and retransmitted when lost, while the program does other things.
 */
int esp_stream_write(esp_stream_t stream, const void *data, int64_t length, int64_t timeout, int64_t *count);
/* Ends the sending direction: the peer reads the end of the stream after the written bytes. */
int esp_stream_shutdown(esp_stream_t stream);
/*
 * Ends the sending direction and waits until the peer's node has acknowledged all bytes. For
 * programs that end right after writing, possibly by a signal: the bytes of a process that died
 * have half a second to arrive.
 */
int esp_stream_finish(esp_stream_t stream, int64_t timeout);
/*
 * Writes the peer's address as text of at most `room` bytes including the terminating 0. `needed`
 * (may be null) becomes the room for the whole text.
 */
int esp_stream_peer(esp_stream_t stream, char *text, int64_t room, int64_t *needed);
/* Closes the stream: written bytes are still delivered. Sets *stream to ESP_STREAM_NULL. */
int esp_stream_close(esp_stream_t *stream);

/* Listens on a port of all interfaces; 0: any free one. Ports below 1024 are for root only. */
int esp_listener_open(uint16_t port, esp_poller_t poller, esp_listener_t *listener);
int esp_listener_port(esp_listener_t listener, uint16_t *port);
/* Waits for the next connection. The stream reports events to the listener's poller. */
int esp_listener_accept(esp_listener_t listener, int64_t timeout, esp_stream_t *stream);
/*
 * Closes the port and resets connections that were not accepted. Sets *listener to
 * ESP_LISTENER_NULL.
 */
int esp_listener_close(esp_listener_t *listener);

/*
 * A poller has one descriptor for all of its streams and listeners, to wait for together with other
 * descriptors by poll() or epoll. The loop of a program (see upper.c):
 *
 *   1. Try the next operation with a `timeout` of 0. On ESP_ERR_AGAIN arm the stream, and try once
 *      more: an event that came before is not reported.
 *   2. esp_poller_take returns the streams with an event. If there are any, continue with 1. Also
 *      try to accept, because connections are not reported one by one.
 *   3. If esp_poller_sleep sets *asleep, wait until the descriptor is readable. Continue with 2.
 */
int esp_poller_open(esp_poller_t *poller);
/* Returns the descriptor, valid until the poller is closed. Do not read from it. */
int esp_poller_fd(esp_poller_t poller, int *fd);
/* Events for esp_stream_arm. The end of a connection counts as both. */
enum { ESP_READABLE = 1, ESP_WRITABLE = 2 };
/*
 * Requests one event when the stream has become readable or writable. Try the operation once more
 * after this call.
 */
int esp_stream_arm(esp_stream_t stream, int what);
/*
 * Stores at most `room` streams with an event, and their number. The next call returns the others.
 */
int esp_poller_take(esp_poller_t poller, esp_stream_t *ready, int64_t room, int64_t *count);
/*
 * Sets *asleep to 1 if the next event will make the descriptor readable, or to 0 if there is an
 * event already; then do not wait.
 */
int esp_poller_sleep(esp_poller_t poller, int *asleep);
/* Sets *poller to ESP_POLLER_NULL. Its streams and listeners stay open, without events. */
int esp_poller_close(esp_poller_t *poller);

#ifdef __cplusplus
}
#endif
#endif
