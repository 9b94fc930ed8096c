/* Uses of descriptors and signals by programs of TCP: `tcp serve PORT` on one node, the other
 * cases on another one, each with the address of the first and PORT. Has to print the same without
 * ESP. Prints PASS at the end. */
#define _GNU_SOURCE
#include "tcp.h"
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { LENGTH = 1000000 };

/* Runs of the handler, and whether the peer of `stalled` is to read. */
static atomic_int signals, reading;

static void echo(int fd) {
    char part[10000];
    ssize_t count;
    while ((count = read(fd, part, sizeof part)) > 0) write_all(fd, part, (size_t)count);
}

/* Serves a connection: its first byte says how. */
static void *serve_one(void *argument) {
    int fd = (int)(intptr_t)argument;
    char what = 0;
    if (read(fd, &what, 1) != 1) what = 0;
    if (what == 'e') {
        echo(fd);
    } else if (what == 'c') {
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        CHECK(getpeername(fd, (struct sockaddr *)&peer, &length) == 0);
        read_all(fd, (char *)&peer.sin_port, 2);
        int back = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(back, (struct sockaddr *)&peer, sizeof peer) == 0);
        echo(back);
        close(back);
    } else if (what == 's') {
        /* Stalled: reads when another connection says so, and returns the number of bytes. */
        static char part[65536];
        uint64_t sum = 0;
        ssize_t count;
        while (!reading) usleep(1000);
        while ((count = read(fd, part, sizeof part)) > 0) sum += (uint64_t)count;
        write_all(fd, (char *)&sum, sizeof sum);
    } else if (what == 'g') {
        reading = 1;
    } else if (what == 'r') {
        struct linger now = {1, 0};
        CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    }
    close(fd);
    return NULL;
}

static void serve(int port) {
    int listener = listen_at(port);
    signal(SIGPIPE, SIG_IGN);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        pthread_t thread;
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        CHECK(pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)fd) == 0);
        pthread_detach(thread);
    }
}

static void handler(int number) {
    (void)number;
    signals++;
}

/* Whether SIGUSR1 restarts calls. */
static void set_restart(int restart) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = restart ? SA_RESTART : 0};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
}

/* A thread that sends signals to the one that starts it. */
struct sender {
    pthread_t to, thread;
    atomic_int stop;
    /* Sends no more after these. */
    int most;
    /* Runs after some signals. */
    void (*then)(void);
};

static void *send_signals(void *argument) {
    struct sender *sender = argument;
    int before = signals;
    for (int sent = 0; !sender->stop; sent++) {
        if (sent < sender->most) pthread_kill(sender->to, SIGUSR1);
        usleep(5000);
        if (sender->then != NULL && signals > before + 10) {
            sender->then();
            sender->then = NULL;
        }
    }
    return NULL;
}

static void begin_some(struct sender *sender, int most, void (*then)(void)) {
    sigset_t set, all;
    sender->to = pthread_self();
    sender->stop = 0;
    sender->most = most;
    sender->then = then;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, &all) == 0);
    CHECK(pthread_create(&sender->thread, NULL, send_signals, sender) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
}

static void begin(struct sender *sender, void (*then)(void)) {
    begin_some(sender, INT_MAX, then);
}

static void end(struct sender *sender) {
    sender->stop = 1;
    CHECK(pthread_join(sender->thread, NULL) == 0);
}

static int subject, caller;

static void send_byte(void) { CHECK(write(subject, "x", 1) == 1); }
static void let_read(void) { close(connected('g')); }
static void call(void) { caller = calls_back(port_of(subject)); }

/* Signals while a program receives. */
static void receiving(void) {
    struct sender sender;
    char byte = 0;
    subject = connected('e');
    set_restart(0);
    begin(&sender, NULL);
    CHECK(recv(subject, &byte, 1, 0) == -1 && errno == EINTR);
    CHECK(read(subject, &byte, 1) == -1 && errno == EINTR);
    end(&sender);
    set_restart(1);
    begin(&sender, send_byte);
    CHECK(recv(subject, &byte, 1, 0) == 1 && byte == 'x');
    end(&sender);
    /* With a limit of time, calls are interrupted in any case. */
    struct timeval limit = {.tv_sec = 60};
    CHECK(setsockopt(subject, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    begin(&sender, NULL);
    CHECK(recv(subject, &byte, 1, 0) == -1 && errno == EINTR);
    end(&sender);
    close(subject);
}

/* Signals while a program sends to one that does not read. */
static void sending(void) {
    static char bytes[LENGTH];
    struct sender sender;
    uint64_t sum = 0, received = 0;
    ssize_t count;
    subject = connected('s');
    set_restart(0);
    begin(&sender, NULL);
    while ((count = send(subject, bytes, sizeof bytes, 0)) > 0) sum += (uint64_t)count;
    CHECK(count == -1 && errno == EINTR);
    end(&sender);
    set_restart(1);
    begin(&sender, let_read);
    /* A part may be sent before the signal. */
    for (int i = 0; i < 10; i++) {
        CHECK((count = send(subject, bytes, sizeof bytes, 0)) > 0);
        sum += (uint64_t)count;
    }
    end(&sender);
    CHECK(shutdown(subject, SHUT_WR) == 0);
    read_all(subject, (char *)&received, sizeof received);
    CHECK(received == sum);
    close(subject);
}

/* Signals while a program accepts. */
static void accepting(void) {
    struct sender sender;
    subject = listen_at(0);
    set_restart(0);
    begin(&sender, NULL);
    CHECK(accept(subject, NULL, NULL) == -1 && errno == EINTR);
    end(&sender);
    set_restart(1);
    begin(&sender, call);
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int fd = accept(subject, (struct sockaddr *)&peer, &length);
    CHECK(fd >= 0 && peer.sin_addr.s_addr == server.sin_addr.s_addr);
    echoes(fd, "accepted");
    end(&sender);
    close(fd);
    close(caller);
    close(subject);
}

/* Signals while a program connects: to a node that does not answer, and often to the server. */
static void connecting(void) {
    struct sender sender;
    struct sockaddr_in absent = server;
    int fd = -1, interrupted = 0;
    set_restart(0);
    /* The signals end before ESP gives up: they need not wait for TCP. On a busy machine they may
       end before the call waits; then it is repeated, with another node. */
    for (uint32_t other = 64; !interrupted; other++) {
        CHECK(other < 80);
        absent.sin_addr.s_addr = server.sin_addr.s_addr ^ htonl(other);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        begin_some(&sender, 40, NULL);
        CHECK(connect(fd, (struct sockaddr *)&absent, sizeof absent) == -1);
        interrupted = errno == EINTR;
        end(&sender);
        if (!interrupted) close(fd);
    }
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    /* The connect continues. */
    CHECK(poll(&ready, 1, 0) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(connect(fd, (struct sockaddr *)&absent, sizeof absent) == -1 && errno == EALREADY);
    close(fd);
    for (int restart = 0; restart < 2; restart++) {
        set_restart(restart);
        begin(&sender, NULL);
        for (int i = 0; i < 40; i++) {
            int error = 0;
            socklen_t length = sizeof error;
            fd = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(fd, (struct sockaddr *)&server, sizeof server) != 0) {
                CHECK(errno == EINTR && !restart);
                ready.fd = fd;
                while (poll(&ready, 1, 10000) != 1) CHECK(errno == EINTR);
                CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
            }
            CHECK(send(fd, "e?", 2, 0) == 2);
            char byte = 0;
            while (recv(fd, &byte, 1, 0) != 1) CHECK(errno == EINTR && !restart);
            CHECK(byte == '?');
            close(fd);
        }
        end(&sender);
    }
}

static void pass_to(int by, int fd) {
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 'f';
    struct iovec part = {&byte, 1};
    struct msghdr message = {NULL, 0, &part, 1, control, sizeof control, 0};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(by, &message, 0) == 1);
}

static int passed(int by) {
    char control[CMSG_SPACE(sizeof by)], byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {NULL, 0, &part, 1, control, sizeof control, 0};
    CHECK(recvmsg(by, &message, 0) == 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header != NULL && header->cmsg_type == SCM_RIGHTS);
    memcpy(&by, CMSG_DATA(header), sizeof by);
    return by;
}

static void ended_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A connection and a listener are passed to another process, which uses them alone. */
static void passing(void) {
    int pair[2], fd = connected('e'), listener = listen_at(0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(fd);
        close(listener);
        fd = passed(pair[1]);
        listener = passed(pair[1]);
        echoes(fd, "by another process");
        print_peer("passed", fd);
        close(fd);
        caller = calls_back(port_of(listener));
        fd = accept(listener, NULL, NULL);
        print_peer("accepted", fd);
        echoes(fd, "a listener, too");
        _exit(0);
    }
    pass_to(pair[0], fd);
    pass_to(pair[0], listener);
    close(fd);
    close(listener);
    ended_well(child);
}

/* C's streams on a connection. */
static void streams(void) {
    char line[100];
    int fd = connected('e');
    FILE *both = fdopen(fd, "r+");
    CHECK(both != NULL);
    for (int i = 0; i < 1000; i++) {
        CHECK(fprintf(both, "line %d\n", i) > 0 && fflush(both) == 0);
        CHECK(fgets(line, sizeof line, both) != NULL && atoi(line + 5) == i);
        /* Between reads and writes. */
        fseek(both, 0, SEEK_CUR);
    }
    CHECK(fclose(both) == 0 && write(fd, "x", 1) == -1 && errno == EBADF);
    FILE *out = fdopen(fd = connected('e'), "w"), *in = fdopen(dup(fd), "r");
    for (int i = 0; i < 20000; i++) CHECK(fprintf(out, "line %d\n", i) > 0);
    CHECK(fflush(out) == 0 && shutdown(fd, SHUT_WR) == 0);
    for (int i = 0; i < 20000; i++)
        CHECK(fgets(line, sizeof line, in) != NULL && atoi(line + 5) == i);
    CHECK(fgets(line, sizeof line, in) == NULL && feof(in) && !ferror(in));
    fclose(in);
    fclose(out);
    in = fdopen(connected('r'), "r");
    CHECK(fgets(line, sizeof line, in) == NULL && ferror(in) && errno == ECONNRESET);
    fclose(in);
}

static void *writes(void *argument) {
    static char bytes[LENGTH];
    for (int i = 0; i < LENGTH; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    write_all((int)(intptr_t)argument, bytes, LENGTH);
    return bytes;
}

static void *waits(void *argument) {
    char byte;
    CHECK(recv((int)(intptr_t)argument, &byte, 1, 0) == 0);
    return NULL;
}

/* Copies, closing, and use by other threads. */
static void descriptors(void) {
    static char back[LENGTH];
    pthread_t thread;
    void *bytes;
    int fd = connected('e'), other = dup(fd);
    CHECK(close(fd) == 0 && close(fd) == -1 && errno == EBADF);
    echoes(other, "the copy");
    fd = connected('e');
    CHECK(fd < other && dup2(fd, other) == other);
    echoes(other, "another connection");
    close(other);
    CHECK(pthread_create(&thread, NULL, writes, (void *)(intptr_t)fd) == 0);
    read_all(fd, back, LENGTH);
    CHECK(pthread_join(thread, &bytes) == 0 && memcmp(bytes, back, LENGTH) == 0);
    print_peer("in threads", fd);
    /* One thread waits, another one ends that. */
    CHECK(pthread_create(&thread, NULL, waits, (void *)(intptr_t)fd) == 0);
    usleep(50000);
    CHECK(shutdown(fd, SHUT_RDWR) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    CHECK(close(fd) == 0 && close(fd) == -1 && errno == EBADF);
}

/* Sockets that are open at `exec`; `argv[4..]` are those that the program had before. */
static void executing(char **argv) {
    static char number[2][12];
    if (argv[4] == NULL) {
        int fd = connected('e'), listener = listen_at(0);
        int closed = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(connect(closed, (struct sockaddr *)&server, sizeof server) == 0);
        CHECK(closed > listener);
        sprintf(number[0], "%d", fd);
        sprintf(number[1], "%d", listener);
        execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], number[0], number[1], NULL);
        CHECK(!"executed");
    }
    int fd = atoi(argv[4]), listener = atoi(argv[5]);
    CHECK(close(listener + 1) == -1 && errno == EBADF);
    echoes(fd, "after exec");
    print_peer("connected", fd);
    caller = calls_back(port_of(listener));
    int accepted = accept(listener, NULL, NULL);
    print_peer("accepted", accepted);
    echoes(accepted, "after exec");
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    if (strcmp(argv[1], "serve") == 0) serve(atoi(argv[2]));
    CHECK(argc >= 4);
    set_server(argv[2], argv[3]);
    if (strcmp(argv[1], "receiving") == 0) receiving();
    else if (strcmp(argv[1], "sending") == 0) sending();
    else if (strcmp(argv[1], "accepting") == 0) accepting();
    else if (strcmp(argv[1], "connecting") == 0) connecting();
    else if (strcmp(argv[1], "passing") == 0) passing();
    else if (strcmp(argv[1], "streams") == 0) streams();
    else if (strcmp(argv[1], "descriptors") == 0) descriptors();
    else if (strcmp(argv[1], "executing") == 0) executing(argv);
    else CHECK(!"a case");
    printf("PASS\n");
    return 0;
}
