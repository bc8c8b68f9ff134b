/* Load the coordinators of a broker with frames built beforehand: what remains is what the broker costs.
 *
 *   coordload pump         PORT FILE CONNECTIONS IN_FLIGHT REQUESTS ERROR_AT SECONDS_MAX
 *   coordload rebalance    PORT FILE ROUNDS SECONDS_MAX
 *   coordload transactions PORT FILE TRANSACTIONS SECONDS_MAX
 *
 * FILE holds little-endian numbers of 4 bytes, and frames with such a number, their length, before them.
 * pump: the frames of one connection after the other (a count, then that many frames, CONNECTIONS times), sent in a
 * circle; ERROR_AT is where an answer holds its error code. rebalance: a count of members, then for each its two
 * JoinGroup frames (v5, with different metadata, so that sending the other one begins a rebalance), its SyncGroup
 * frame (v3) and where that holds the generation; a round ends with the last answer to SyncGroup. transactions: a count
 * of producers, then for each its Produce frame (v12), the number of batches in it and where each begins, where the
 * answer holds the first error and how far the next is, its EndTxn frame (v5), where that holds the epoch, and the epoch.
 * One JSON line each.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONCURRENT_TRANSACTIONS = 51, BATCH_CRC = 17, BATCH_CRC_START = 21, BATCH_EPOCH = 51, BATCH_SIZE = 8 };

static void die(const char *what) {
    fprintf(stderr, "coordload: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *must(void *memory) {
    if (!memory) die("no memory");
    return memory;
}

/* ---- bytes ---- */

typedef struct { uint8_t *data; uint32_t size; } frame;

static FILE *plan;

static uint32_t number(void) {
    uint32_t value;
    if (fread(&value, 4, 1, plan) != 1) die("the plan ends early");
    return le32toh(value);
}

static frame blob(void) {
    frame f = {0};
    f.size = number();
    f.data = must(malloc(f.size ? f.size : 1));
    if (fread(f.data, 1, f.size, plan) != f.size) die("the plan ends early");
    return f;
}

static int16_t get16(const uint8_t *at) { uint16_t v; memcpy(&v, at, 2); return (int16_t)be16toh(v); }
static uint32_t get32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return be32toh(v); }
static void put16(uint8_t *at, uint16_t v) { v = htobe16(v); memcpy(at, &v, 2); }
static void put32(uint8_t *at, uint32_t v) { v = htobe32(v); memcpy(at, &v, 4); }

static uint32_t crc_table[256];

static uint32_t crc32c(const uint8_t *data, size_t size) {
    if (!crc_table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
            crc_table[i] = c;
        }
    uint32_t crc = ~0u;
    while (size--) crc = crc_table[(crc ^ *data++) & 255] ^ crc >> 8;
    return ~crc;
}

/* ---- connections ---- */

typedef struct {
    int fd;
    uint8_t *in;
    size_t start, have, room;
} link_t;

static link_t dial(int port) {
    link_t l = {.fd = socket(AF_INET, SOCK_STREAM, 0), .in = must(malloc(65536)), .room = 65536};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (l.fd < 0 || connect(l.fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(l.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return l;
}

static void post(link_t *l, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t sent = send(l->fd, data, size, MSG_NOSIGNAL);
        if (sent <= 0) die("send");
        data += sent;
        size -= (size_t)sent;
    }
}

static void take(link_t *l) {
    if (l->start) memmove(l->in, l->in + l->start, l->have -= l->start), l->start = 0;
    if (l->room - l->have < 32768) l->in = must(realloc(l->in, l->room *= 2));
    ssize_t got = recv(l->fd, l->in + l->have, l->room - l->have, MSG_DONTWAIT);
    if (got == 0) errno = 0, die("the broker closed a connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR) die("recv");
    if (got > 0) l->have += (size_t)got;
}

/* The next whole answer without its length, or NULL. */
static uint8_t *answer(link_t *l) {
    if (l->have - l->start < 4) return NULL;
    uint32_t size = get32(l->in + l->start);
    if (l->have - l->start < 4 + (size_t)size) return NULL;
    uint8_t *at = l->in + l->start + 4;
    l->start += 4 + (size_t)size;
    return at;
}

static link_t *links;
static struct pollfd *polls;
static uint32_t link_count;

static void dial_all(int port, uint32_t count) {
    link_count = count;
    links = must(calloc(count, sizeof *links));
    polls = must(calloc(count, sizeof *polls));
    for (uint32_t i = 0; i < count; i++) {
        links[i] = dial(port);
        polls[i] = (struct pollfd){.fd = links[i].fd, .events = POLLIN};
    }
}

static uint64_t failed;
static int first_error;

static void fail(int error) {
    if (!failed++) first_error = error;
}

static void await(double deadline) {
    if (poll(polls, link_count, 1000) < 0 && errno != EINTR) die("poll");
    if (now() > deadline) errno = 0, die("out of time");
}

/* ---- modes ---- */

static void pump(int port, char **args) {
    uint32_t count = (uint32_t)atoi(args[0]), in_flight = (uint32_t)atoi(args[1]);
    uint64_t total = strtoull(args[2], NULL, 10), sent = 0, done = 0;
    uint32_t error_at = (uint32_t)atoi(args[3]);
    struct { frame *frames; uint32_t count, next; } *lanes = must(calloc(count, sizeof *lanes));
    for (uint32_t i = 0; i < count; i++) {
        lanes[i].count = number();
        lanes[i].frames = must(calloc(lanes[i].count, sizeof(frame)));
        for (uint32_t k = 0; k < lanes[i].count; k++) lanes[i].frames[k] = blob();
    }
    dial_all(port, count);
    double start = now(), deadline = start + atof(args[4]);
    for (uint32_t k = 0; k < in_flight; k++)
        for (uint32_t i = 0; i < count && sent < total; i++, sent++) {
            frame *f = &lanes[i].frames[lanes[i].next++ % lanes[i].count];
            post(&links[i], f->data, f->size);
        }
    while (done < sent) {
        await(deadline);
        for (uint32_t i = 0; i < count; i++) {
            if (!polls[i].revents) continue;
            take(&links[i]);
            for (uint8_t *a; (a = answer(&links[i])); done++) {
                if (get16(a + error_at)) fail(get16(a + error_at));
                if (sent < total) {
                    frame *f = &lanes[i].frames[lanes[i].next++ % lanes[i].count];
                    post(&links[i], f->data, f->size);
                    sent++;
                }
            }
        }
    }
    printf("{\"seconds\": %.6f, \"requests\": %llu", now() - start, (unsigned long long)done);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void rebalance(int port, char **args) {
    int rounds = atoi(args[0]);
    uint32_t count = number();
    struct { frame join[2], sync; uint32_t generation_at; int synced; } *members = must(calloc(count, sizeof *members));
    double *spent = must(calloc((size_t)rounds, sizeof *spent));
    for (uint32_t i = 0; i < count; i++) {
        members[i].join[0] = blob(), members[i].join[1] = blob(), members[i].sync = blob();
        members[i].generation_at = number();
    }
    dial_all(port, count);
    double begin = now(), deadline = begin + atof(args[1]);
    for (int round = 0; round < rounds; round++) {
        double start = now();
        uint32_t done = 0;
        for (uint32_t i = 0; i < count; i++) {
            frame *f = &members[i].join[round & 1];
            members[i].synced = 0;
            post(&links[i], f->data, f->size);
        }
        while (done < count) {
            await(deadline);
            for (uint32_t i = 0; i < count; i++) {
                if (!polls[i].revents) continue;
                take(&links[i]);
                for (uint8_t *a; (a = answer(&links[i]));) {
                    int error = get16(a + 8); /* after correlation id and throttle time, in both answers */
                    if (error) {
                        errno = 0;
                        fprintf(stderr, "error %d in round %d\n", error, round);
                        die("the group fell apart");
                    }
                    if (members[i].synced) {
                        done++;
                        continue;
                    }
                    members[i].synced = 1;
                    put32(members[i].sync.data + members[i].generation_at, get32(a + 10));
                    post(&links[i], members[i].sync.data, members[i].sync.size);
                }
            }
        }
        spent[round] = now() - start;
    }
    double whole = now() - begin;
    qsort(spent, (size_t)rounds, sizeof *spent, by_size);
    printf("{\"seconds\": %.6f, \"rounds\": %d, \"p50_ms\": %.3f, \"max_ms\": %.3f", whole, rounds,
           spent[rounds / 2] * 1e3, spent[rounds - 1] * 1e3);
}

static void transactions(int port, char **args) {
    uint64_t total = strtoull(args[0], NULL, 10), begun = 0, done = 0, retries = 0;
    uint32_t count = number();
    struct producer {
        frame produce, end;
        uint32_t batches, *batch_at, error_at, error_step, epoch_at, epoch;
        int ending;
        double again;
    } *producers = must(calloc(count, sizeof *producers));
    for (uint32_t i = 0; i < count; i++) {
        struct producer *p = &producers[i];
        p->produce = blob();
        p->batches = number();
        p->batch_at = must(calloc(p->batches, 4));
        for (uint32_t k = 0; k < p->batches; k++) p->batch_at[k] = number();
        p->error_at = number(), p->error_step = number();
        p->end = blob();
        p->epoch_at = number(), p->epoch = number();
    }
    dial_all(port, count);
    double start = now(), deadline = start + atof(args[1]);
    uint32_t idle = 0;
    for (uint32_t i = 0; i < count; i++) producers[i].again = start, idle++, begun += begun < total;
    while (done < total) {
        if (idle == 0) await(deadline);
        else if (poll(polls, link_count, 0) < 0) die("poll");
        if (now() > deadline) errno = 0, die("out of time");
        for (uint32_t i = 0; i < count; i++) {
            struct producer *p = &producers[i];
            if (p->again > 0) { /* waits to send its records, for the first time or again */
                if (now() < p->again) continue;
                p->again = 0, idle--;
                for (uint32_t k = 0; k < p->batches; k++) {
                    uint8_t *batch = p->produce.data + p->batch_at[k];
                    put16(batch + BATCH_EPOCH, (uint16_t)p->epoch);
                    uint32_t size = get32(batch + BATCH_SIZE) + 12 - BATCH_CRC_START;
                    put32(batch + BATCH_CRC, crc32c(batch + BATCH_CRC_START, size));
                }
                post(&links[i], p->produce.data, p->produce.size);
                continue;
            }
            if (!polls[i].revents) continue;
            take(&links[i]);
            uint8_t *a = answer(&links[i]);
            if (!a) continue;
            if (!p->ending) {
                int error = 0;
                for (uint32_t k = 0; k < p->batches && !error; k++) error = get16(a + p->error_at + k * p->error_step);
                if (error == CONCURRENT_TRANSACTIONS) {
                    p->again = now() + 0.0005, idle++, retries++;
                    continue;
                }
                if (error) errno = 0, fprintf(stderr, "produce: error %d\n", error), die("a batch was refused");
                put16(p->end.data + p->epoch_at, (uint16_t)p->epoch);
                post(&links[i], p->end.data, p->end.size);
                p->ending = 1;
                continue;
            }
            int error = get16(a + 9); /* after correlation id, tags and throttle time */
            if (error == CONCURRENT_TRANSACTIONS) {
                post(&links[i], p->end.data, p->end.size);
                retries++;
                continue;
            }
            if (error) errno = 0, fprintf(stderr, "end: error %d\n", error), die("a transaction did not end");
            p->epoch = (uint32_t)get16(a + 19);
            p->ending = 0;
            done++;
            if (begun < total) p->again = now(), idle++, begun++;
        }
    }
    printf("{\"seconds\": %.6f, \"transactions\": %llu, \"retries\": %llu", now() - start, (unsigned long long)done,
           (unsigned long long)retries);
}

int main(int count, char **args) {
    if (count < 5) die("see the head of the source");
    int port = atoi(args[2]);
    if (!(plan = fopen(args[3], "rb"))) die(args[3]);
    if (!strcmp(args[1], "pump") && count == 9) pump(port, args + 4);
    else if (!strcmp(args[1], "rebalance") && count == 6) rebalance(port, args + 4);
    else if (!strcmp(args[1], "transactions") && count == 6) transactions(port, args + 4);
    else die("see the head of the source");
    printf(", \"failed\": %llu, \"error\": %d}\n", (unsigned long long)failed, first_error);
    return 0;
}
