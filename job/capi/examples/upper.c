/*
 * Byte streams between two programs, without a job: a server that sends everything back in capital
 * letters, to any number of clients at once from one thread, and its client.
 *
 *     cc upper.c $(pkg-config --cflags --libs esp) -o upper
 *     ./upper serve 5000                  on node1
 *     ./upper send node1:5000 hello       on another node: prints HELLO
 *
 * Both nodes need a running esp-daemon. See esp.h for addresses.
 */
#include <ctype.h>
#include <errno.h>
#include <esp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Maximum time for which a client may leave its answer unread, in milliseconds. */
#define PATIENCE 5000
#define EVENTS 16

/* Prints what failed and returns the exit code. */
static int failed(int error, const char *what)
{
    fprintf(stderr, "upper: %s: %s (%s)\n", what, esp_strerror(error), esp_last_error());
    return 1;
}

/*
 * Answers the bytes that a client has sent so far. Closes the stream at its end, or when it fails.
 */
static void answer(esp_stream_t stream)
{
    char buffer[4096];
    int64_t count, i;
    int armed = 0, error;

    for (;;) {
        error = esp_stream_read(stream, buffer, sizeof buffer, 0, &count);
        if (error == ESP_ERR_AGAIN) {
            if (armed)
                return; /* esp_poller_take returns it when more has arrived. */
            error = esp_stream_arm(stream, ESP_READABLE);
            if (error == ESP_SUCCESS) {
                armed = 1;
                continue; /* Bytes that arrived before this call are not reported. */
            }
        }
        if (error != ESP_SUCCESS || count == 0)
            break;
        for (i = 0; i < count; i++)
            buffer[i] = (char)toupper((unsigned char)buffer[i]);
        error = esp_stream_write(stream, buffer, count, PATIENCE, 0);
        if (error != ESP_SUCCESS)
            break;
    }
    if (error != ESP_SUCCESS)
        failed(error, "a client");
    esp_stream_close(&stream);
}

static int serve(const char *text)
{
    esp_poller_t poller;
    esp_listener_t listener;
    esp_stream_t stream, ready[EVENTS];
    struct pollfd wait = {-1, POLLIN, 0};
    uint16_t port = (uint16_t)strtoul(text, 0, 10);
    int64_t count, i;
    int error, asleep;

    error = esp_poller_open(&poller);
    if (error != ESP_SUCCESS)
        return failed(error, "the connection to the daemon");
    error = esp_listener_open(port, poller, &listener);
    if (error == ESP_SUCCESS)
        error = esp_listener_port(listener, &port);
    if (error == ESP_SUCCESS)
        error = esp_poller_fd(poller, &wait.fd);
    if (error != ESP_SUCCESS)
        return failed(error, "the port");
    printf("listening on port %u\n", (unsigned)port);
    fflush(stdout);
    for (;;) {
        while ((error = esp_listener_accept(listener, 0, &stream)) == ESP_SUCCESS)
            answer(stream);
        if (error != ESP_ERR_AGAIN)
            return failed(error, "accepting");
        error = esp_poller_take(poller, ready, EVENTS, &count);
        if (error != ESP_SUCCESS)
            return failed(error, "taking events");
        for (i = 0; i < count; i++)
            answer(ready[i]);
        if (count > 0)
            continue;
        error = esp_poller_sleep(poller, &asleep);
        if (error != ESP_SUCCESS)
            return failed(error, "falling asleep");
        if (asleep && poll(&wait, 1, -1) < 0 && errno != EINTR) {
            perror("upper: poll");
            return 1;
        }
    }
}

static int send_text(const char *address, const char *text)
{
    esp_stream_t stream;
    char buffer[4096];
    int64_t count;
    int error = esp_stream_connect(address, ESP_FOREVER, ESP_POLLER_NULL, &stream);

    if (error != ESP_SUCCESS)
        return failed(error, address);
    error = esp_stream_write(stream, text, (int64_t)strlen(text), ESP_FOREVER, 0);
    if (error == ESP_SUCCESS)
        error = esp_stream_shutdown(stream);
    while (error == ESP_SUCCESS) {
        error = esp_stream_read(stream, buffer, sizeof buffer, ESP_FOREVER, &count);
        if (error != ESP_SUCCESS || count == 0)
            break;
        fwrite(buffer, 1, (size_t)count, stdout);
    }
    putchar('\n');
    if (error != ESP_SUCCESS)
        failed(error, address);
    esp_stream_close(&stream);
    return error != ESP_SUCCESS;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return serve(argv[2]);
    if (argc == 4 && strcmp(argv[1], "send") == 0)
        return send_text(argv[2], argv[3]);
    fputs("usage: upper serve PORT | upper send ADDRESS TEXT\n", stderr);
    return 2;
}
