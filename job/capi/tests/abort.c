/* Two processes: the first aborts while another of its threads leaves the job, which the second never
 * does. */
#define _POSIX_C_SOURCE 200809L
#include <esp.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static void *leave(void *unused)
{
    esp_finalize();
    return unused;
}

int main(void)
{
    int32_t rank;
    pthread_t thread;
    if (esp_init() != ESP_SUCCESS || esp_rank(ESP_COMM_WORLD, &rank) != ESP_SUCCESS) {
        return 1;
    }
    if (rank == 1) {
        pause();
        return 1;
    }
    if (pthread_create(&thread, 0, leave, 0) != 0) {
        return 1;
    }
    while (esp_initialized()) {
        sched_yield();
    }
    esp_abort(7, "enough");
}
