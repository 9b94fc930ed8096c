/* Uses sockets of AF_ENET as programs for the kernel's ESP did: `enet server PORT` on one node,
 * `enet client PORT MAC` on another one. Prints PASS at the end of each. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 3000000 };

static char bytes[LENGTH], other[LENGTH];

static void fill(int salt) {
    for (int i = 0; i < LENGTH; i++) bytes[i] = (char)((i * 2654435761u ^ (unsigned)salt) >> 13);
}

static void read_all(int fd, char *to, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t count = read(fd, to + at, length - at);
        CHECK(count > 0);
        at += (size_t)count;
    }
}

static void write_all(int fd, const char *from, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t count = write(fd, from + at, length - at);
        CHECK(count > 0);
        at += (size_t)count;
    }
}

/* Accepts, and echoes in a child until the peer's end. */
static void serve_echo(int listener) {
    struct sockaddr_enet peer;
    socklen_t length = sizeof peer;
    int fd = accept4(listener, (struct sockaddr *)&peer, &length, SOCK_CLOEXEC);
    CHECK(fd >= 0 && length == 16 && peer.se_family == AF_ENET && peer.se_alen == ENET_ALEN);
    struct sockaddr_enet same;
    CHECK(getpeername(fd, (struct sockaddr *)&same, &length) == 0);
    CHECK(memcmp(&same, &peer, sizeof peer) == 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char part[10000];
        ssize_t count;
        while ((count = read(fd, part, sizeof part)) > 0) write_all(fd, part, (size_t)count);
        CHECK(count == 0);
        _exit(0);
    }
    close(fd);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Accepts, and closes with bytes unread: a reset for the peer. */
static void serve_reset(int listener) {
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    CHECK(poll(&ready, 1, 10000) == 1);
    close(fd);
}

/* Writes without reading until the peer, which does the same, has closed its socket. */
static void serve_full(int listener) {
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    alarm(30);
    while (send(fd, bytes, LENGTH, MSG_NOSIGNAL) >= 0) {}
    CHECK(errno == ECONNRESET || errno == EPIPE);
    alarm(0);
    close(fd);
}

/* Answers datagrams until one says to end. */
static void serve_datagrams(int fd) {
    char part[2000];
    struct sockaddr_enet peer;
    for (;;) {
        socklen_t length = sizeof peer;
        ssize_t count = recvfrom(fd, part, sizeof part, 0, (struct sockaddr *)&peer, &length);
        CHECK(count >= 0 && length == 16);
        CHECK(sendto(fd, part, (size_t)count, 0, (struct sockaddr *)&peer, length) == count);
        if (count == 3 && memcmp(part, "end", 3) == 0) return;
    }
}

static void server(int port) {
    int listener = socket(PF_ENET, SOCK_STREAM, 0), datagrams = socket(PF_ENET, SOCK_DGRAM, 0);
    CHECK(listener >= 0 && datagrams >= 0);
    struct sockaddr_enet addr = any(port), bound;
    CHECK(bind(datagrams, (struct sockaddr *)&addr, sizeof addr) == 0);
    CHECK(bind(listener, (struct sockaddr *)&addr, sizeof addr) == 0);
    CHECK(listen(listener, 8) == 0);
    socklen_t length = sizeof bound;
    CHECK(getsockname(listener, (struct sockaddr *)&bound, &length) == 0);
    CHECK(ntohs(bound.se_port) == port && length == 16);
    int second = socket(PF_ENET, SOCK_STREAM, 0);
    CHECK(bind(second, (struct sockaddr *)&addr, sizeof addr) == -1 && errno == EADDRINUSE);
    close(second);
    printf("ready\n");
    fflush(stdout);
    serve_echo(listener);
    serve_echo(listener);
    serve_reset(listener);
    serve_full(listener);
    serve_datagrams(datagrams);
}

static void options(int fd, int type) {
    int value;
    socklen_t length = sizeof value;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length) == 0 && value == type);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &length) == 0 && value == AF_ENET);
    CHECK(getsockopt(fd, SOL_EP, EP_MTU, &value, &length) == 0);
    CHECK(value > 1400 && value <= 1500 && length == sizeof value);
    CHECK(getsockopt(fd, SOL_EP, 9, &value, &length) == -1 && errno == ENOPROTOOPT);
    value = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value) == 0);
}

/* A stream that blocks: all bytes, parts, peeks, options, a copy of the descriptor. */
static void blocking(struct sockaddr_enet server) {
    int first = socket(PF_ENET, SOCK_STREAM, 0), value;
    CHECK(first >= 0);
    CHECK(connect(first, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(connect(first, (struct sockaddr *)&server, sizeof server) == -1 && errno == EISCONN);
    int fd = dup(first);
    close(first);
    options(fd, SOCK_STREAM);
    struct sockaddr_enet peer;
    socklen_t length = sizeof peer;
    CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0);
    CHECK(peer.se_port == server.se_port && memcmp(peer.se_addr, server.se_addr, 6) == 0);
    fill(1);
    struct iovec parts[2] = {{"0123", 4}, {"456789", 6}};
    CHECK(writev(fd, parts, 2) == 10);
    char peeked[20] = {0};
    CHECK(recv(fd, peeked, 10, MSG_PEEK | MSG_WAITALL) == 10 && strcmp(peeked, "0123456789") == 0);
    CHECK(ioctl(fd, FIONREAD, &value) == 0 && value == 10);
    struct iovec halves[2] = {{peeked + 5, 5}, {peeked, 5}};
    CHECK(readv(fd, halves, 2) == 10 && strncmp(peeked, "5678901234", 10) == 0);
    CHECK(recv(fd, peeked, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    struct timeval soon = {.tv_usec = 50000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    CHECK(recv(fd, peeked, 1, 0) == -1 && errno == EAGAIN);
    soon.tv_usec = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    pid_t writer = fork();
    CHECK(writer >= 0);
    if (writer == 0) {
        CHECK(send(fd, bytes, LENGTH / 2, MSG_NOSIGNAL | MSG_MORE) == LENGTH / 2);
        write_all(fd, bytes + LENGTH / 2, LENGTH / 2);
        CHECK(shutdown(fd, SHUT_WR) == 0);
        _exit(0);
    }
    read_all(fd, other, LENGTH);
    CHECK(memcmp(bytes, other, LENGTH) == 0);
    CHECK(read(fd, peeked, 1) == 0);
    struct esp_stats stats;
    length = sizeof stats;
    CHECK(getsockopt(fd, SOL_EP, EP_STATS, &stats, &length) == 0 && length == sizeof stats);
    int status;
    CHECK(waitpid(writer, &status, 0) == writer && status == 0);
    close(fd);
}

/* A stream that does not block, among other descriptors. */
static void nonblocking(struct sockaddr_enet server) {
    int fd = socket(PF_ENET, SOCK_STREAM | SOCK_NONBLOCK, 0), pipes[2], value;
    CHECK(fd >= 0 && pipe(pipes) == 0);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    event.events = EPOLLIN;
    event.data.fd = pipes[0];
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
    int result = connect(fd, (struct sockaddr *)&server, sizeof server);
    CHECK(result == 0 || errno == EINPROGRESS);
    for (;;) {
        CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.data.fd == fd);
        if (event.events & EPOLLOUT) break;
    }
    socklen_t length = sizeof value;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == 0);
    CHECK(send(fd, "x", 1, MSG_OOB) == -1 && errno == EOPNOTSUPP);
    fill(2);
    size_t sent = 0, received = 0;
    while (received < LENGTH) {
        struct pollfd both[2] = {{fd, POLLIN, 0}, {pipes[0], POLLIN, 0}};
        if (sent < LENGTH) both[0].events |= POLLOUT;
        CHECK(poll(both, 2, 10000) == 1 && both[1].revents == 0);
        if (both[0].revents & POLLOUT) {
            ssize_t count = send(fd, bytes + sent, LENGTH - sent, 0);
            CHECK(count > 0 || errno == EAGAIN);
            if (count > 0) sent += (size_t)count;
            if (sent == LENGTH) CHECK(shutdown(fd, SHUT_WR) == 0);
        }
        ssize_t count = recv(fd, other + received, LENGTH - received, 0);
        CHECK(count > 0 || (count == -1 && errno == EAGAIN));
        if (count > 0) received += (size_t)count;
    }
    CHECK(memcmp(bytes, other, LENGTH) == 0);
    close(fd);
    close(set);
    close(pipes[0]);
    close(pipes[1]);
}

/* Connections that fail. */
static void failures(struct sockaddr_enet server) {
    struct sockaddr_enet none = server;
    none.se_port = htons(9);
    int fd = socket(PF_ENET, SOCK_STREAM, 0), value;
    CHECK(connect(fd, (struct sockaddr *)&none, sizeof none) == -1 && errno == ECONNREFUSED);
    close(fd);
    fd = socket(PF_ENET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(fd, (struct sockaddr *)&none, sizeof none) == -1 && errno == EINPROGRESS);
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    CHECK(poll(&ready, 1, 10000) == 1);
    socklen_t length = sizeof value;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == ECONNREFUSED);
    close(fd);
    CHECK(close(fd) == -1 && errno == EBADF);
    fd = socket(PF_ENET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    write_all(fd, "unread", 6);
    char byte;
    CHECK(read(fd, &byte, 1) == -1 && errno == ECONNRESET);
    close(fd);
    CHECK(socket(PF_ENET, SOCK_RAW, 0) == -1 && errno == ESOCKTNOSUPPORT);
    CHECK(socket(PF_ENET, SOCK_STREAM, 7) == -1 && errno == EPROTONOSUPPORT);
    struct sockaddr_in inet = {.sin_family = AF_INET};
    fd = socket(PF_ENET, SOCK_STREAM, 0);
    CHECK(bind(fd, (struct sockaddr *)&inet, sizeof inet) == -1);
    struct sockaddr_enet strange = any(0);
    strange.se_ifindex = 9999;
    CHECK(bind(fd, (struct sockaddr *)&strange, sizeof strange) == -1 && errno == EADDRNOTAVAIL);
    CHECK(listen(fd, 1) == 0);
    struct sockaddr_enet bound;
    length = sizeof bound;
    CHECK(getsockname(fd, (struct sockaddr *)&bound, &length) == 0 && bound.se_port != 0);
    close(fd);
}

/* Writes without reading until nothing more can be written, and closes: a server that writes, too,
 * has to get an error. */
static void full(struct sockaddr_enet server) {
    int fd = socket(PF_ENET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    while (poll(&ready, 1, 1000) == 1)
        CHECK(send(fd, bytes, LENGTH, MSG_DONTWAIT) > 0 || errno == EAGAIN);
    close(fd);
}

/* Completes the name of a program's socket to that of the broker's for it, which every user can
 * see; returns the length. */
static socklen_t broker_of(struct sockaddr_un *name, socklen_t length) {
    char line[300], *end = (char *)name + length;
    strcpy(end, ".tx.");
    FILE *all = fopen("/proc/net/unix", "r");
    CHECK(all != NULL);
    while (fgets(line, sizeof line, all) != NULL) {
        char *found = strstr(line, name->sun_path + 1);
        if (found == NULL) continue;
        found[strcspn(found, "\n")] = 0;
        strcpy(name->sun_path + 1, found);
        fclose(all);
        return (socklen_t)(sizeof name->sun_family + 1 + strlen(found));
    }
    CHECK(!"the broker has a socket");
    return 0;
}

/* A program of another user, which cannot send to the broker's socket for this socket, and sends to
 * this socket as if it were the broker. */
static void forge(int fd, const struct sockaddr_enet *peer) {
    struct sockaddr_un name, own = {.sun_family = AF_UNIX};
    socklen_t length = sizeof name;
    CHECK(syscall(SYS_getsockname, fd, &name, &length) == 0 && name.sun_family == AF_UNIX);
    char text[sizeof *peer + 6], digits[2 * sizeof *peer + 1];
    memcpy(text, peer, sizeof *peer);
    memcpy(text + sizeof *peer, "forged", 6);
    for (size_t i = 0; i < sizeof *peer; i++) sprintf(digits + 2 * i, "%02x", (uint8_t)text[i]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(getuid() != 0 || setuid(65534) == 0);
        int own_length = sprintf(own.sun_path + 1, "forged.%s", digits) + 1;
        int other = socket(AF_UNIX, SOCK_DGRAM, 0);
        CHECK(bind(other, (struct sockaddr *)&own,
                   (socklen_t)(sizeof own.sun_family + (size_t)own_length)) == 0);
        CHECK(sendto(other, "forged", 6, 0, (struct sockaddr *)&name, length) == 6);
        length = broker_of(&name, length);
        CHECK(sendto(other, text, sizeof text, 0, (struct sockaddr *)&name, length) == -1);
        CHECK(errno == EPERM);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* An answer would be here by then. */
    usleep(200000);
    struct sockaddr_enet from;
    length = sizeof from;
    /* There may be late answers. */
    for (int flags = MSG_DONTWAIT | MSG_PEEK;; flags = MSG_DONTWAIT) {
        ssize_t count =
            recvfrom(fd, text, sizeof text, flags, (struct sockaddr *)&from, &length);
        CHECK(count != 6 || memcmp(text, "forged", 6) != 0);
        if (count < 0 && flags == MSG_DONTWAIT) break;
    }
    CHECK(errno == EAGAIN);
}

/* Sends until an answer comes: datagrams may be lost. */
static void answered(int fd, const char *text, size_t length, const struct sockaddr_enet *to) {
    for (int tries = 0; tries < 100; tries++) {
        ssize_t sent = to ? sendto(fd, text, length, 0, (const struct sockaddr *)to, sizeof *to)
                          : send(fd, text, length, 0);
        CHECK(sent == (ssize_t)length);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, 200) == 0) continue;
        struct sockaddr_enet from;
        struct iovec part = {other, sizeof other};
        struct msghdr message = {&from, sizeof from, &part, 1, NULL, 0, 0};
        ssize_t count = recvmsg(fd, &message, 0);
        CHECK(count >= 0);
        /* A late answer to what was sent before. */
        if (count != (ssize_t)length || memcmp(other, text, length) != 0) continue;
        CHECK(message.msg_namelen == sizeof from && from.se_family == AF_ENET);
        if (to) CHECK(from.se_port == to->se_port && memcmp(from.se_addr, to->se_addr, 6) == 0);
        return;
    }
    CHECK(!"an answer came");
}

static void datagrams(struct sockaddr_enet server) {
    int fd = socket(PF_ENET, SOCK_DGRAM, 1), value;
    CHECK(fd >= 0);
    answered(fd, "hello", 5, &server);
    options(fd, SOCK_DGRAM);
    forge(fd, &server);
    fill(3);
    answered(fd, bytes, 1400, &server);
    CHECK(sendto(fd, bytes, 5000, 0, (struct sockaddr *)&server, sizeof server) == -1);
    CHECK(errno == EMSGSIZE);
    CHECK(connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    answered(fd, "connected", 9, NULL);
    struct edp_stats stats;
    socklen_t length = sizeof stats;
    CHECK(getsockopt(fd, SOL_EP, EP_STATS, &stats, &length) == 0 && length == sizeof stats);
    CHECK(stats.sent >= 3 && stats.received >= 3 && stats.send_errors == 0);
    answered(fd, "end", 3, NULL);
    length = sizeof value;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == 0);
    close(fd);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    int port = atoi(argv[2]);
    if (strcmp(argv[1], "server") == 0) {
        server(port);
    } else {
        CHECK(argc == 4);
        struct sockaddr_enet addr = any(port);
        unsigned mac[6];
        CHECK(sscanf(argv[3], "%x:%x:%x:%x:%x:%x", mac, mac + 1, mac + 2, mac + 3, mac + 4,
                     mac + 5) == 6);
        for (int i = 0; i < 6; i++) addr.se_addr[i] = (uint8_t)mac[i];
        blocking(addr);
        nonblocking(addr);
        failures(addr);
        full(addr);
        datagrams(addr);
    }
    printf("PASS\n");
    return 0;
}
