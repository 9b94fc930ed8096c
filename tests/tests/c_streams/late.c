/* Takes the event of a connection before it accepts: it must not fall asleep in between. */
#include <esp.h>
#include <poll.h>
#include <stdio.h>

static int check(int holds, const char *what)
{
    if (!holds)
        fprintf(stderr, "%s: %s\n", what, esp_last_error());
    return holds;
}

int main(void)
{
    esp_poller_t poller;
    esp_listener_t listener;
    esp_stream_t stream, ready[1];
    struct pollfd wait = {-1, POLLIN, 0};
    int64_t count;
    int asleep, error;

    if (!check(esp_poller_open(&poller) == ESP_SUCCESS, "poller") ||
        !check(esp_listener_open(5000, poller, &listener) == ESP_SUCCESS, "listener") ||
        !check(esp_poller_fd(poller, &wait.fd) == ESP_SUCCESS, "descriptor") ||
        !check(esp_listener_accept(listener, 0, &stream) == ESP_ERR_AGAIN, "early accept"))
        return 1;
    puts("listening on port 5000");
    fflush(stdout);
    do {
        /* A connection, or another reply, such as that to the request to listen. */
        if (!check(esp_poller_sleep(poller, &asleep) == ESP_SUCCESS, "sleep") ||
            !check(!asleep || poll(&wait, 1, 10000) == 1, "poll") ||
            !check(esp_poller_take(poller, ready, 1, &count) == ESP_SUCCESS, "take") ||
            !check(count == 0, "a stream without one") ||
            !check(esp_poller_sleep(poller, &asleep) == ESP_SUCCESS, "second sleep"))
            return 1;
        error = esp_listener_accept(listener, 0, &stream);
    } while (error == ESP_ERR_AGAIN);
    if (!check(error == ESP_SUCCESS, "accept") || !check(!asleep, "slept over a connection"))
        return 1;
    return 0;
}
