/* Shared by the programs of this folder. */
#include <arpa/inet.h>
#include <errno.h>
#include <esp/enet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with a message unless it is true. */
#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("FAIL line %d: %s (%s)\n", __LINE__, #what, strerror(errno)); \
            fflush(stdout); \
            exit(1); \
        } \
    } while (0)

/* Returns the address of a port, given in host order, on any interface. */
static inline struct sockaddr_enet any(int port) {
    struct sockaddr_enet addr = {.se_family = AF_ENET, .se_port = htons((uint16_t)port)};
    addr.se_alen = ENET_ALEN;
    return addr;
}
