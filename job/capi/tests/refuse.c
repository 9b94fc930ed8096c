/*
 * Wrong arguments are refused; right ones between them still work. A job of one: everything goes to
 * itself. Prints `fine`, or the line of the first failure.
 */
#include <esp.h>
#include <stdio.h>
#include <string.h>

#define EXPECT(what)                                                                                                   \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d: %s (last error: %s)\n", __LINE__, #what, esp_last_error());                               \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

int main(void)
{
    int32_t n = 5;
    int flag = 7;
    int64_t index = 7, needed = 0;
    char out[64] = "hello", in[64], report[2000], tiny[4];
    double misaligned[3];
    esp_request_t request = ESP_REQUEST_NULL, old, requests[3];
    esp_status_t status, statuses[3];
    esp_message_t message;
    esp_comm_t comm = ESP_COMM_NULL;

    EXPECT(esp_initialized() == 0);
    EXPECT(esp_rank(ESP_COMM_WORLD, &n) == ESP_ERR_STATE && n == 5);
    EXPECT(strstr(esp_last_error(), "esp_init") != 0);
    EXPECT(esp_finalize() == ESP_ERR_STATE);
    EXPECT(esp_send(out, 1, 0, 0, ESP_COMM_WORLD) == ESP_ERR_STATE);
    EXPECT(esp_wait(&request, &status) == ESP_ERR_STATE);

    EXPECT(esp_init() == ESP_SUCCESS && esp_initialized() == 1);
    EXPECT(esp_init() == ESP_ERR_STATE);
    EXPECT(esp_rank(ESP_COMM_WORLD, &n) == ESP_SUCCESS && n == 0);
    EXPECT(esp_size(ESP_COMM_WORLD, &n) == ESP_SUCCESS && n == 1);
    EXPECT(esp_rank(ESP_COMM_WORLD, 0) == ESP_ERR_POINTER);
    EXPECT(esp_rank(17, &n) == ESP_ERR_COMM && esp_rank(ESP_COMM_NULL, &n) == ESP_ERR_COMM);

    EXPECT(esp_send(0, 1, 0, 0, ESP_COMM_WORLD) == ESP_ERR_POINTER);
    EXPECT(esp_send(out, -1, 0, 0, ESP_COMM_WORLD) == ESP_ERR_COUNT);
    EXPECT(esp_send(out, 1, 1, 0, ESP_COMM_WORLD) == ESP_ERR_RANK);
    EXPECT(esp_send(out, 1, -1, 0, ESP_COMM_WORLD) == ESP_ERR_RANK);
    EXPECT(esp_send(out, 1, 0, -1, ESP_COMM_WORLD) == ESP_ERR_TAG);
    EXPECT(esp_recv(in, 1, 0, -2, ESP_COMM_WORLD, &status) == ESP_ERR_TAG);
    EXPECT(esp_recv(in, 1, -2, 0, ESP_COMM_WORLD, &status) == ESP_ERR_RANK);
    EXPECT(esp_isend(out, 1, 0, 0, ESP_COMM_WORLD, 0) == ESP_ERR_POINTER);
    EXPECT(esp_isend(0, 1, 0, 0, ESP_COMM_WORLD, &request) == ESP_ERR_POINTER && request == ESP_REQUEST_NULL);
    EXPECT(esp_irecv(0, 5, 0, 0, ESP_COMM_WORLD, &request) == ESP_ERR_POINTER && request == ESP_REQUEST_NULL);
    EXPECT(esp_bcast(out, -5, 0, ESP_COMM_WORLD) == ESP_ERR_COUNT);
    EXPECT(esp_allreduce(misaligned, 2, 99, ESP_SUM, ESP_COMM_WORLD) == ESP_ERR_TYPE);
    EXPECT(esp_allreduce(misaligned, 2, ESP_DOUBLE, 99, ESP_COMM_WORLD) == ESP_ERR_OP);
    EXPECT(esp_allreduce((char *)misaligned + 1, 2, ESP_DOUBLE, ESP_SUM, ESP_COMM_WORLD) == ESP_ERR_POINTER);
    EXPECT(esp_allreduce(misaligned, INT64_MAX, ESP_DOUBLE, ESP_SUM, ESP_COMM_WORLD) == ESP_ERR_COUNT);
    EXPECT(esp_allreduce(0, 1, ESP_DOUBLE, ESP_SUM, ESP_COMM_WORLD) == ESP_ERR_POINTER);

    /* Waiting for a null request succeeds, repeatedly. */
    EXPECT(esp_wait(&request, &status) == ESP_SUCCESS && status.source == ESP_ANY_SOURCE && status.length == 0);
    EXPECT(esp_wait(0, &status) == ESP_ERR_POINTER);
    EXPECT(esp_test(&request, &flag, ESP_STATUS_IGNORE) == ESP_SUCCESS && flag == 1);
    requests[0] = requests[1] = ESP_REQUEST_NULL;
    EXPECT(esp_waitany(2, requests, &index, &status) == ESP_SUCCESS && index == -1);
    EXPECT(esp_waitall(0, 0, 0) == ESP_SUCCESS && esp_waitall(-1, 0, 0) == ESP_ERR_COUNT);
    EXPECT(esp_waitall(2, 0, 0) == ESP_ERR_POINTER);
    request = 12345678901234567ull;
    EXPECT(esp_wait(&request, &status) == ESP_ERR_REQUEST && status.error == ESP_ERR_REQUEST);
    EXPECT(esp_cancel(&request) == ESP_ERR_REQUEST && esp_request_free(&request) == ESP_ERR_REQUEST);

    /* A message to oneself, and a request that was waited for. */
    EXPECT(esp_irecv(in, sizeof in, ESP_ANY_SOURCE, ESP_ANY_TAG, ESP_COMM_WORLD, &request) == ESP_SUCCESS);
    EXPECT(esp_test(&request, &flag, &status) == ESP_SUCCESS && flag == 0 && request != ESP_REQUEST_NULL);
    EXPECT(esp_send(out, 6, 0, 9, ESP_COMM_WORLD) == ESP_SUCCESS);
    old = request;
    EXPECT(esp_wait(&request, &status) == ESP_SUCCESS && request == ESP_REQUEST_NULL);
    EXPECT(status.source == 0 && status.tag == 9 && status.length == 6 && strcmp(in, "hello") == 0);
    EXPECT(esp_wait(&old, &status) == ESP_ERR_REQUEST && old != ESP_REQUEST_NULL);

    /* Too long for its buffer: an error of that request, with what is known. */
    EXPECT(esp_irecv(tiny, 2, 0, 1, ESP_COMM_WORLD, &requests[0]) == ESP_SUCCESS);
    EXPECT(esp_irecv(in, sizeof in, 0, 2, ESP_COMM_WORLD, &requests[1]) == ESP_SUCCESS);
    requests[2] = ESP_REQUEST_NULL;
    EXPECT(esp_send(out, 6, 0, 1, ESP_COMM_WORLD) == ESP_SUCCESS && esp_send(out, 6, 0, 2, ESP_COMM_WORLD) == ESP_SUCCESS);
    EXPECT(esp_waitall(3, requests, statuses) == ESP_ERR_IN_STATUS);
    EXPECT(statuses[0].error == ESP_ERR_TRUNCATE && statuses[0].length == 6 && statuses[0].tag == 1);
    EXPECT(statuses[1].error == ESP_SUCCESS && statuses[1].length == 6 && statuses[2].source == ESP_ANY_SOURCE);

    /* Cancelled. */
    EXPECT(esp_irecv(in, 1, 0, 3, ESP_COMM_WORLD, &request) == ESP_SUCCESS && esp_cancel(&request) == ESP_SUCCESS);
    EXPECT(esp_wait(&request, &status) == ESP_ERR_CANCELLED && request == ESP_REQUEST_NULL);

    /* Probes. */
    EXPECT(esp_iprobe(0, 4, ESP_COMM_WORLD, &flag, &status) == ESP_SUCCESS && flag == 0);
    EXPECT(esp_send(out, 3, 0, 4, ESP_COMM_WORLD) == ESP_SUCCESS);
    EXPECT(esp_mprobe(0, 4, ESP_COMM_WORLD, &message, &status) == ESP_SUCCESS && status.length == 3);
    EXPECT(esp_mrecv(in, 3, &message, &status) == ESP_SUCCESS && message == ESP_MESSAGE_NULL && status.tag == 4);
    EXPECT(esp_mrecv(in, 3, &message, &status) == ESP_ERR_MESSAGE);

    /* Communicators. */
    EXPECT(esp_comm_dup(ESP_COMM_WORLD, &comm) == ESP_SUCCESS && comm > 0);
    EXPECT(esp_barrier(comm) == ESP_SUCCESS && esp_comm_free(&comm) == ESP_SUCCESS && comm == ESP_COMM_NULL);
    EXPECT(esp_comm_free(&comm) == ESP_ERR_COMM);
    comm = ESP_COMM_WORLD;
    EXPECT(esp_comm_free(&comm) == ESP_ERR_COMM && comm == ESP_COMM_WORLD);
    EXPECT(esp_comm_split(ESP_COMM_WORLD, -1, 0, &comm) == ESP_SUCCESS && comm == ESP_COMM_NULL);

    EXPECT(esp_report(report, sizeof report, &needed) == ESP_SUCCESS && needed == (int64_t)strlen(report) + 1);
    EXPECT(strstr(report, "rank 0 of 1") != 0);
    EXPECT(esp_report(tiny, sizeof tiny, 0) == ESP_SUCCESS && strlen(tiny) == 3);
    EXPECT(esp_report(0, 0, &needed) == ESP_SUCCESS && esp_report(report, -1, 0) == ESP_ERR_COUNT);
    EXPECT(esp_strerror(ESP_ERR_TRUNCATE)[0] != 0 && esp_strerror(-99)[0] != 0);

    /* Streams without a daemon (ESP_SOCKET names no socket), and handles that never existed. */
    esp_stream_t stream = 77;
    esp_listener_t listener = 77;
    esp_poller_t poller = 77;
    uint16_t port = 7;
    EXPECT(esp_stream_connect("node1:5000", 1000, ESP_POLLER_NULL, &stream) == ESP_ERR_DAEMON && stream == 77);
    EXPECT(strstr(esp_last_error(), "start esp-daemon") != 0);
    EXPECT(esp_stream_connect("node1:5000", 0, ESP_POLLER_NULL, &stream) == ESP_ERR_ARG);
    EXPECT(esp_stream_connect(0, 1, ESP_POLLER_NULL, &stream) == ESP_ERR_POINTER);
    EXPECT(esp_stream_connect("node1:5000", 1, ESP_POLLER_NULL, 0) == ESP_ERR_POINTER);
    EXPECT(esp_stream_connect("node1:5000", 1, poller, &stream) == ESP_ERR_STREAM);
    EXPECT(esp_listener_open(0, ESP_POLLER_NULL, &listener) == ESP_ERR_DAEMON && listener == 77);
    EXPECT(esp_listener_open(0, ESP_POLLER_NULL, 0) == ESP_ERR_POINTER);
    EXPECT(esp_poller_open(&poller) == ESP_ERR_DAEMON && poller == 77);
    EXPECT(esp_stream_read(stream, in, sizeof in, 0, &index) == ESP_ERR_STREAM);
    EXPECT(esp_stream_read(stream, in, -1, 0, &index) == ESP_ERR_COUNT);
    EXPECT(esp_stream_read(stream, 0, 1, 0, &index) == ESP_ERR_POINTER);
    EXPECT(esp_stream_read(stream, in, sizeof in, 0, 0) == ESP_ERR_POINTER);
    EXPECT(esp_stream_write(stream, out, 1, ESP_FOREVER, &index) == ESP_ERR_STREAM && index == 0);
    EXPECT(esp_stream_write(ESP_STREAM_NULL, out, 1, 0, 0) == ESP_ERR_STREAM);
    EXPECT(esp_stream_shutdown(stream) == ESP_ERR_STREAM && esp_stream_finish(stream, 0) == ESP_ERR_STREAM);
    EXPECT(esp_stream_peer(stream, in, sizeof in, 0) == ESP_ERR_STREAM);
    EXPECT(esp_stream_arm(stream, ESP_READABLE) == ESP_ERR_STREAM && esp_stream_arm(stream, 4) == ESP_ERR_ARG);
    EXPECT(esp_stream_close(&stream) == ESP_ERR_STREAM && stream == 77 && esp_stream_close(0) == ESP_ERR_POINTER);
    EXPECT(esp_listener_accept(listener, 0, &stream) == ESP_ERR_STREAM);
    EXPECT(esp_listener_port(listener, &port) == ESP_ERR_STREAM && port == 7);
    EXPECT(esp_listener_close(&listener) == ESP_ERR_STREAM);
    EXPECT(esp_poller_fd(poller, &flag) == ESP_ERR_STREAM && esp_poller_sleep(poller, &flag) == ESP_ERR_STREAM);
    EXPECT(esp_poller_take(poller, &stream, 1, &index) == ESP_ERR_STREAM);
    EXPECT(esp_poller_take(poller, &stream, -1, &index) == ESP_ERR_COUNT);
    EXPECT(esp_poller_close(&poller) == ESP_ERR_STREAM);

    EXPECT(esp_finalize() == ESP_SUCCESS && esp_initialized() == 0);
    EXPECT(esp_finalize() == ESP_ERR_STATE && esp_init() == ESP_ERR_STATE);
    puts("fine");
    return 0;
}
