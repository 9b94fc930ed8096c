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
    int asleep;

    if (!check(esp_poller_open(&poller) == ESP_SUCCESS, "poller") ||
        !check(esp_listener_open(5000, poller, &listener) == ESP_SUCCESS, "listener") ||
        !check(esp_poller_fd(poller, &wait.fd) == ESP_SUCCESS, "descriptor") ||
        !check(esp_listener_accept(listener, 0, &stream) == ESP_ERR_AGAIN, "early accept"))
        return 1;
    do { /* The reply to the request to listen may be an event. */
        if (!check(esp_poller_take(poller, ready, 1, &count) == ESP_SUCCESS, "first take") ||
            !check(esp_poller_sleep(poller, &asleep) == ESP_SUCCESS, "first sleep"))
            return 1;
    } while (!asleep);
    puts("listening on port 5000");
    fflush(stdout);
    if (!check(poll(&wait, 1, 10000) == 1, "poll") ||
        !check(esp_poller_take(poller, ready, 1, &count) == ESP_SUCCESS && count == 0, "take") ||
        !check(esp_poller_sleep(poller, &asleep) == ESP_SUCCESS && !asleep, "second sleep") ||
        !check(esp_listener_accept(listener, 0, &stream) == ESP_SUCCESS, "accept") ||
        !check(esp_poller_sleep(poller, &asleep) == ESP_SUCCESS && asleep, "third sleep"))
        return 1;
    return 0;
}
