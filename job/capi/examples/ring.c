/*
 * A number travels round all processes; then they add up their ranks.
 *
 *     cc ring.c $(pkg-config --cflags --libs esp) -o ring
 *     mpirun -n 4 ./ring        or        mpiexec -n 4 ./ring        or        ./ring
 */
#include <esp.h>
#include <stdint.h>
#include <stdio.h>

/* Prints the call that failed and ends the job. */
static void check(int error, const char *what)
{
    if (error != ESP_SUCCESS) {
        fprintf(stderr, "ring: %s: %s (%s)\n", what, esp_strerror(error), esp_last_error());
        if (esp_initialized())
            esp_abort(1, what);
    }
}

int main(void)
{
    int32_t rank, size;
    int error = esp_init();
    check(error, "esp_init");
    if (error != ESP_SUCCESS)
        return 2;
    check(esp_rank(ESP_COMM_WORLD, &rank), "esp_rank");
    check(esp_size(ESP_COMM_WORLD, &size), "esp_size");

    int32_t left = (rank + size - 1) % size, right = (rank + 1) % size;
    int64_t token = 1000, came = 0;
    esp_request_t requests[2];
    esp_status_t status;
    if (rank == 0) {
        check(esp_irecv(&came, sizeof came, left, 7, ESP_COMM_WORLD, &requests[0]), "esp_irecv");
        check(esp_isend(&token, sizeof token, right, 7, ESP_COMM_WORLD, &requests[1]), "esp_isend");
        check(esp_waitall(2, requests, ESP_STATUS_IGNORE), "esp_waitall");
    } else {
        check(esp_recv(&token, sizeof token, ESP_ANY_SOURCE, ESP_ANY_TAG, ESP_COMM_WORLD, &status), "esp_recv");
        if (status.source != left || status.tag != 7 || status.length != (int64_t)sizeof token)
            esp_abort(1, "the token has a wrong sender, tag or length");
        token++;
        check(esp_send(&token, sizeof token, right, 7, ESP_COMM_WORLD), "esp_send");
    }

    int64_t sum = rank;
    check(esp_allreduce(&sum, 1, ESP_INT64, ESP_SUM, ESP_COMM_WORLD), "esp_allreduce");
    if (sum != (int64_t)size * (size - 1) / 2)
        esp_abort(1, "the sum of the ranks is wrong");
    if (rank == 0) {
        if (came != 1000 + size - 1)
            esp_abort(1, "the token is wrong");
        printf("%d processes, the token came back as %lld, the ranks' sum is %lld\n", (int)size, (long long)came,
               (long long)sum);
    }
    check(esp_finalize(), "esp_finalize");
    return 0;
}
