/* Shared by the programs that connect to the server of tcp.c. */
#include "check.h"
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in server;

static inline void set_server(const char *host, const char *port) {
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)atoi(port));
    CHECK(inet_pton(AF_INET, host, &server.sin_addr) == 1);
}

static inline void read_all(int fd, char *to, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t count = read(fd, to + at, length - at);
        CHECK(count > 0);
        at += (size_t)count;
    }
}

static inline void write_all(int fd, const char *from, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t count = write(fd, from + at, length - at);
        CHECK(count > 0);
        at += (size_t)count;
    }
}

static inline int listen_at(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0 && listen(fd, 8) == 0);
    return fd;
}

static inline int port_of(int fd) {
    struct sockaddr_in addr;
    socklen_t length = sizeof addr;
    CHECK(getsockname(fd, (struct sockaddr *)&addr, &length) == 0);
    return ntohs(addr.sin_port);
}

/* Connects to the server, and sends its task. */
static inline int connected(char what) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(send(fd, &what, 1, MSG_NOSIGNAL) == 1);
    return fd;
}

/* Sends a text, which has to come back. */
static inline void echoes(int fd, const char *text) {
    char back[100];
    write_all(fd, text, strlen(text));
    read_all(fd, back, strlen(text));
    CHECK(memcmp(back, text, strlen(text)) == 0);
}

/* Makes the server connect to this port of this node, and echo there. */
static inline int calls_back(int port) {
    int fd = connected('c');
    uint16_t number = htons((uint16_t)port);
    write_all(fd, (char *)&number, 2);
    return fd;
}

/* Prints the peer as the program sees it. */
static inline void print_peer(const char *of, int fd) {
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    char text[INET_ADDRSTRLEN];
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0);
    printf("%s: %s\n", of, inet_ntop(AF_INET, &peer.sin_addr, text, sizeof text));
    fflush(stdout);
}
