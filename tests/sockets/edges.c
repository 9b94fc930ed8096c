/* Rare cases for programs that use AF_ENET: `edges serve PORT` on one node, the other cases on another
 * one, each with PORT and the MAC address of the first. Prints PASS at the end. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int bind_to(int fd, int port) {
    struct sockaddr_enet addr = any(port);
    return bind(fd, (struct sockaddr *)&addr, sizeof addr);
}

static int connect_to(int fd, const struct sockaddr_enet *to) {
    return connect(fd, (const struct sockaddr *)to, sizeof *to);
}

/* Accepts a stream, sends back what arrives, and closes it. */
static void echo(int listener) {
    char bytes[2000];
    int fd = accept(listener, NULL, NULL);
    ssize_t count;
    CHECK(fd >= 0);
    while ((count = read(fd, bytes, sizeof bytes)) > 0) CHECK(write(fd, bytes, count) == count);
    close(fd);
}

/* Echoes datagrams, and streams to the next port; accepts streams to the port and closes them. */
static void serve(int port) {
    int listener = socket(PF_ENET, SOCK_STREAM, 0), datagrams = socket(PF_ENET, SOCK_DGRAM, 0);
    int echoes = socket(PF_ENET, SOCK_STREAM, 0);
    CHECK(bind_to(datagrams, port) == 0 && bind_to(listener, port) == 0);
    CHECK(bind_to(echoes, port + 1) == 0 && listen(echoes, 8) == 0);
    CHECK(listen(listener, 8) == 0);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct pollfd all[3] = {{listener, POLLIN, 0}, {datagrams, POLLIN, 0}, {echoes, POLLIN, 0}};
        CHECK(poll(all, 3, -1) > 0);
        if (all[0].revents) close(accept(listener, NULL, NULL));
        if (all[2].revents) echo(echoes);
        if (all[1].revents) {
            char bytes[2000];
            struct sockaddr_enet peer;
            socklen_t length = sizeof peer;
            ssize_t count =
                recvfrom(datagrams, bytes, sizeof bytes, 0, (struct sockaddr *)&peer, &length);
            CHECK(count >= 0);
            sendto(datagrams, bytes, (size_t)count, 0, (struct sockaddr *)&peer, length);
        }
    }
}

/* Sends until an answer comes: datagrams may be lost. */
static void answered(int fd, const char *text, const struct sockaddr_enet *to) {
    size_t length = strlen(text);
    for (int tries = 0; tries < 100; tries++) {
        ssize_t sent = sendto(fd, text, length, 0, (const struct sockaddr *)to,
                              to ? (socklen_t)sizeof *to : 0);
        CHECK(sent == (ssize_t)length);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, 200) == 0) continue;
        char bytes[100];
        struct sockaddr_enet from;
        socklen_t from_length = sizeof from;
        ssize_t count =
            recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &from_length);
        if (count == (ssize_t)length && memcmp(bytes, text, length) == 0) return;
    }
    CHECK(!"an answer came");
}

/* Runs `call` with this many free descriptors. */
static ssize_t limited(int room, ssize_t (*call)(int), int fd) {
    struct rlimit all, few;
    int free = dup(0);
    close(free);
    CHECK(getrlimit(RLIMIT_NOFILE, &all) == 0);
    few = all;
    few.rlim_cur = (rlim_t)(free + room);
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    ssize_t result = call(fd);
    int error = errno;
    CHECK(setrlimit(RLIMIT_NOFILE, &all) == 0);
    errno = error;
    return result;
}

/* A socket has no state of one that this process had before `exec`. */
static void again(char **argv, int port) {
    static char count[20];
    int round = argv[4] ? atoi(argv[4]) : 0;
    int fd = socket(PF_ENET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind_to(fd, port + round) == 0);
    if (round == 10) return;
    sprintf(count, "%d", round + 1);
    execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], count, NULL);
    CHECK(!"executed again");
}

/* Every user can bind names that follow from those of a program's sockets. */
static void planted(struct sockaddr_enet server) {
    int fd = socket(PF_ENET, SOCK_DGRAM, 0), pipes[2];
    struct sockaddr_un name;
    socklen_t length = sizeof name;
    /* No program reads the planted sockets, which have room for few datagrams. */
    alarm(60);
    CHECK(syscall(SYS_getsockname, fd, &name, &length) == 0 && pipe(pipes) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char *end = (char *)&name + length;
        CHECK(getuid() != 0 || setuid(65534) == 0);
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        memcpy(end, ".tx", 3);
        CHECK(bind(socket(AF_UNIX, SOCK_DGRAM, 0), (struct sockaddr *)&name, length + 3) == 0);
        memcpy(end, ".c.", 3);
        for (size_t i = 0; i < sizeof server; i++)
            sprintf(end + 3 + 2 * i, "%02x", ((uint8_t *)&server)[i]);
        length += 3 + 2 * sizeof server;
        CHECK(bind(socket(AF_UNIX, SOCK_DGRAM, 0), (struct sockaddr *)&name, length) == 0);
        CHECK(write(pipes[1], "x", 1) == 1);
        pause();
    }
    char byte;
    CHECK(read(pipes[0], &byte, 1) == 1);
    answered(fd, "with an address", &server);
    CHECK(connect_to(fd, &server) == 0);
    answered(fd, "connected", NULL);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* A kernel that supports it refuses descriptors that others send to the sockets of a program. */
static void refusing(int port) {
    enum { PASSRIGHTS = 83 }; /* SO_PASSRIGHTS, since Linux 6.16 */
    int fds[2] = {socket(PF_ENET, SOCK_DGRAM, 0), socket(PF_ENET, SOCK_STREAM, 0)};
    int pair[2], off = 0;
    CHECK(bind_to(fds[1], port) == 0 && listen(fds[1], 1) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int refuses = setsockopt(pair[0], SOL_SOCKET, PASSRIGHTS, &off, sizeof off) == 0;
    for (int i = 0; i < 2; i++) {
        int other = socket(AF_UNIX, i == 0 ? SOCK_DGRAM : SOCK_STREAM, 0);
        struct sockaddr_un name;
        socklen_t length = sizeof name;
        CHECK(syscall(SYS_getsockname, fds[i], &name, &length) == 0);
        CHECK(connect(other, (struct sockaddr *)&name, length) == 0);
        char control[CMSG_SPACE(sizeof other)] = {0}, byte = 'x';
        struct iovec part = {&byte, 1};
        struct msghdr message = {NULL, 0, &part, 1, control, sizeof control, 0};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof other);
        memcpy(CMSG_DATA(header), &other, sizeof other);
        CHECK((sendmsg(other, &message, 0) == -1 && errno == EPERM) == refuses);
    }
}

/* `listen` fails again while another listener has the port, and listens when it returns 0. */
static void listening(int port) {
    int first = socket(PF_ENET, SOCK_STREAM, 0), second = socket(PF_ENET, SOCK_STREAM, 0);
    port += 1;
    CHECK(bind_to(first, port) == 0 && bind_to(second, port) == 0);
    CHECK(listen(second, 1) == 0 && listen(second, 2) == 0);
    CHECK(listen(first, 1) == -1 && errno == EADDRINUSE);
    CHECK(listen(first, 1) == -1 && errno == EADDRINUSE);
    close(second);
    for (int tries = 0; listen(first, 1) < 0; tries++) {
        CHECK(errno == EADDRINUSE && tries < 600);
        usleep(100000);
    }
    int third = socket(PF_ENET, SOCK_STREAM, 0);
    CHECK(bind_to(third, port) == -1 && errno == EADDRINUSE);
}

static ssize_t read_byte(int fd) {
    char byte;
    return read(fd, &byte, 1);
}

static int error_of(int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    return error;
}

/* Without a descriptor to ask with, the end of a stream is not taken for a reset. */
static void end(struct sockaddr_enet server) {
    int fd = socket(PF_ENET, SOCK_STREAM, 0);
    CHECK(connect_to(fd, &server) == 0);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    CHECK(poll(&ready, 1, 30000) == 1);
    CHECK(limited(0, read_byte, fd) == -1 && errno == EMFILE);
    CHECK(read_byte(fd) == 0);
}

static struct sockaddr_enet there;

static ssize_t connect_there(int fd) { return connect_to(fd, &there); }

/* If the request for a connection could not be sent, the next calls fail, too. */
static void unasked(struct sockaddr_enet server) {
    int fd = socket(PF_ENET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    there = server;
    CHECK(limited(0, connect_there, fd) == -1 && errno == EMFILE);
    CHECK(connect_to(fd, &server) == -1 && errno == ECONNABORTED);
    CHECK(connect_to(fd, &server) == -1 && errno == ECONNABORTED);
}

/* Accepts a stream, which the peer resets. */
static void reset(int port) {
    int listener = socket(PF_ENET, SOCK_STREAM, 0);
    CHECK(bind_to(listener, port) == 0 && listen(listener, 1) == 0);
    printf("ready\n");
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0 && read_byte(fd) == -1 && errno == ECONNRESET);
}

/* The broker can connect a stream, but cannot start the threads that copy; then it cannot start the
 * one that connects. Reads the broker's process ID and the maximum number of threads of its user. */
static void without_threads(struct sockaddr_enet server) {
    int fd = socket(PF_ENET, SOCK_STREAM, 0), broker;
    int other = socket(PF_ENET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    unsigned long max;
    printf("ready\n");
    fflush(stdout);
    CHECK(scanf("%d %lu", &broker, &max) == 2);
    struct rlimit limit = {max, max};
    CHECK(prlimit(broker, RLIMIT_NPROC, &limit, NULL) == 0);
    CHECK(connect_to(fd, &server) == 0);
    CHECK(read_byte(fd) == -1 && errno == ENOBUFS && error_of(fd) == ENOBUFS);
    printf("failed\n");
    fflush(stdout);
    CHECK(scanf("%lu", &max) == 1);
    CHECK(connect_to(other, &server) == -1 && errno == ENOBUFS);
    CHECK(connect_to(other, &server) == -1 && errno == ENOBUFS);
}

/* Connects to one peer, another one, and the first one again, and then many times; waits with the
 * socket open. */
static void peers(struct sockaddr_enet server) {
    struct sockaddr_enet other = server;
    other.se_addr[5] ^= 0x40;
    int fd = socket(PF_ENET, SOCK_DGRAM, 0);
    CHECK(connect_to(fd, &server) == 0);
    answered(fd, "first", NULL);
    CHECK(connect_to(fd, &other) == 0 && connect_to(fd, &server) == 0);
    answered(fd, "again", NULL);
    for (int i = 0; i < 50; i++) {
        other.se_port = htons((uint16_t)(100 + i));
        CHECK(connect_to(fd, &other) == 0);
    }
    CHECK(connect_to(fd, &server) == 0);
    answered(fd, "at last", NULL);
    printf("ready\n");
    fflush(stdout);
    getchar();
}

static void ring(int signal) { (void)signal; }

static void alarm_in(long microseconds, int restart) {
    struct sigaction action = {.sa_handler = ring, .sa_flags = restart ? SA_RESTART : 0};
    struct itimerval once = {.it_value = {microseconds / 1000000, microseconds % 1000000}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0);
}

/* Signals while a program connects: to a node that does not answer, and often to the server. */
static void connecting(struct sockaddr_enet server) {
    struct sockaddr_enet absent = server;
    absent.se_addr[5] ^= 0x40;
    int fd = socket(PF_ENET, SOCK_STREAM, 0);
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    alarm_in(300000, 0);
    CHECK(connect_to(fd, &absent) == -1 && errno == EINTR);
    /* The connect continues; a second call waits for it. */
    CHECK(poll(&ready, 1, 0) == 0 && error_of(fd) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(connect_to(fd, &absent) == -1 && errno == EALREADY);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    alarm_in(300000, 0);
    CHECK(connect_to(fd, &absent) == -1 && errno == EINTR);
    CHECK(poll(&ready, 1, 30000) == 1);
    CHECK(error_of(fd) == ETIMEDOUT);
    close(fd);
    /* A handler that restarts calls does not end the wait. */
    fd = socket(PF_ENET, SOCK_STREAM, 0);
    alarm_in(300000, 1);
    CHECK(connect_to(fd, &absent) == -1 && errno == ETIMEDOUT);
    close(fd);
    server.se_port = htons(ntohs(server.se_port) + 1);
    for (int i = 0; i < 100; i++) {
        char bytes[10] = "";
        size_t count = 0;
        ssize_t more;
        fd = socket(PF_ENET, SOCK_STREAM, 0);
        alarm_in(1 + i % 20 * 150, 0);
        if (connect_to(fd, &server) != 0) {
            CHECK(errno == EINTR);
            ready.fd = fd;
            while (i % 2 == 0 && poll(&ready, 1, 30000) != 1) CHECK(errno == EINTR);
            CHECK(error_of(fd) == 0);
            while (connect_to(fd, &server) != 0) CHECK(errno == EINTR);
        }
        alarm_in(0, 0);
        CHECK(connect_to(fd, &server) == -1 && errno == EISCONN);
        CHECK(send(fd, "e?", 2, 0) == 2 && shutdown(fd, SHUT_WR) == 0);
        while ((more = read(fd, bytes + count, sizeof bytes - count)) > 0) count += (size_t)more;
        CHECK(more == 0 && count == 2 && memcmp(bytes, "e?", 2) == 0);
        close(fd);
    }
}

/* Two processes send the first datagrams of a socket at the same time. */
static void both_first(struct sockaddr_enet server) {
    _Atomic int *arrived = mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(arrived != MAP_FAILED);
    for (int round = 1; round <= 40; round++) {
        int fd = socket(PF_ENET, SOCK_DGRAM, 0), status;
        pid_t child = fork();
        CHECK(fd >= 0 && child >= 0);
        ++*arrived;
        while (*arrived < 2 * round) {}
        CHECK(sendto(fd, "x", 1, 0, (struct sockaddr *)&server, sizeof server) == 1);
        if (child == 0) _exit(0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        close(fd);
    }
}

/* Sends and receives several datagrams by each call. */
static void many(struct sockaddr_enet server) {
    enum { NUMBER = 5 };
    int fd = socket(PF_ENET, SOCK_DGRAM, 0), left = NUMBER;
    char texts[NUMBER][8], room[NUMBER][8];
    struct sockaddr_enet from[NUMBER];
    struct iovec parts[NUMBER];
    struct mmsghdr messages[NUMBER] = {0};
    struct timespec minute = {60, 0};
    int seen[NUMBER] = {0};
    CHECK(recvmmsg(fd, messages, NUMBER, MSG_DONTWAIT, NULL) == -1 && errno == EAGAIN);
    for (int tries = 0; left > 0; tries++) {
        CHECK(tries < 100);
        for (int i = 0; i < NUMBER; i++) {
            parts[i] = (struct iovec){texts[i], (size_t)sprintf(texts[i], "%s%d", "number" + i, i)};
            messages[i].msg_hdr = (struct msghdr){&server, sizeof server, &parts[i], 1, NULL, 0, 0};
        }
        CHECK(sendmmsg(fd, messages, NUMBER, 0) == NUMBER && messages[1].msg_len == 6);
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        while (left > 0 && poll(&ready, 1, 200) == 1) {
            for (int i = 0; i < NUMBER; i++) {
                parts[i] = (struct iovec){room[i], sizeof room[i]};
                messages[i].msg_hdr =
                    (struct msghdr){&from[i], sizeof from[i], &parts[i], 1, NULL, 0, 0};
            }
            int count = recvmmsg(fd, messages, NUMBER, MSG_WAITFORONE, &minute);
            CHECK(count > 0);
            for (int i = 0; i < count; i++) {
                int number = room[i][messages[i].msg_len - 1] - '0';
                CHECK(number >= 0 && number < NUMBER);
                CHECK(messages[i].msg_len == 7u - (unsigned)number);
                CHECK(messages[i].msg_hdr.msg_namelen == sizeof server);
                CHECK(from[i].se_port == server.se_port);
                CHECK(memcmp(from[i].se_addr, server.se_addr, ENET_ALEN) == 0);
                left -= seen[number]++ == 0;
            }
        }
    }
    CHECK(minute.tv_sec < 60);
    /* A datagram that cannot be sent ends a call; those sent before it count. */
    static char longer[9000];
    for (int i = 0; i < NUMBER; i++) {
        parts[i] = (struct iovec){texts[i], 6};
        messages[i].msg_hdr = (struct msghdr){&server, sizeof server, &parts[i], 1, NULL, 0, 0};
    }
    parts[2] = (struct iovec){longer, sizeof longer};
    CHECK(sendmmsg(fd, messages, NUMBER, 0) == 2);
    CHECK(sendmmsg(fd, messages + 2, 1, 0) == -1 && errno == EMSGSIZE);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    int port = atoi(argv[2]);
    if (strcmp(argv[1], "serve") == 0) serve(port);
    if (strcmp(argv[1], "reset") == 0) {
        reset(port);
        printf("PASS\n");
        return 0;
    }
    CHECK(argc >= 4);
    struct sockaddr_enet addr = any(port);
    unsigned mac[6];
    CHECK(sscanf(argv[3], "%x:%x:%x:%x:%x:%x", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) ==
          6);
    for (int i = 0; i < 6; i++) addr.se_addr[i] = (uint8_t)mac[i];
    if (strcmp(argv[1], "again") == 0) again(argv, port);
    else if (strcmp(argv[1], "planted") == 0) planted(addr);
    else if (strcmp(argv[1], "refusing") == 0) refusing(port);
    else if (strcmp(argv[1], "listening") == 0) listening(port);
    else if (strcmp(argv[1], "end") == 0) end(addr);
    else if (strcmp(argv[1], "without_threads") == 0) without_threads(addr);
    else if (strcmp(argv[1], "unasked") == 0) unasked(addr);
    else if (strcmp(argv[1], "peers") == 0) peers(addr);
    else if (strcmp(argv[1], "many") == 0) many(addr);
    else if (strcmp(argv[1], "both_first") == 0) both_first(addr);
    else if (strcmp(argv[1], "connecting") == 0) connecting(addr);
    else CHECK(!"a case");
    printf("PASS\n");
    return 0;
}
