/* Load a broker with prebuilt frames over plain sockets: what remains is what the broker costs.
 *
 *   rawload produce PORT TOPIC PARTITIONS CONNECTIONS IN_FLIGHT RECORD_BYTES RECORDS_PER_BATCH REQUESTS SECONDS_MAX RATE
 *                   [ACKS]
 *   rawload fetch   PORT TOPIC PARTITIONS CONNECTIONS IN_FLIGHT MAX_BYTES FIRST_OFFSET REQUESTS SECONDS_MAX
 *   rawload first   PORT TOPIC START_NS SECONDS_MAX
 *
 * produce sends Produce v9 with acks=1 or ACKS, connection c to partition c mod PARTITIONS; RATE 0 is as fast as answers come,
 * otherwise requests per second over all connections. fetch reads on with Fetch v12 and begins again at FIRST_OFFSET
 * when the end is reached. first connects until it can, creates the topic by asking for its metadata, and stops
 * at the first acknowledged record; START_NS is the CLOCK_MONOTONIC time to count from. One JSON line each.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 256, MAX_IN_FLIGHT = 256, COALESCE_BYTES = 65536, FINE_US = 100000, COARSE_MS = 60000 };

static void die(const char *what) {
    fprintf(stderr, "rawload: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- latencies: one bucket per microsecond up to 0.1 s, one per millisecond above ---- */

static uint64_t fine[FINE_US], coarse[COARSE_MS], measured;

static void note(uint64_t ns) {
    uint64_t us = ns / 1000;
    measured++;
    if (us < FINE_US) fine[us]++;
    else coarse[us / 1000 < COARSE_MS ? us / 1000 : COARSE_MS - 1]++;
}

static double percentile(double p) {
    uint64_t rank = (uint64_t)(p * (double)measured), seen = 0;
    for (int i = 0; i < FINE_US; i++)
        if ((seen += fine[i]) > rank) return i;
    for (int i = 0; i < COARSE_MS; i++)
        if ((seen += coarse[i]) > rank) return i * 1000.0;
    return 0;
}

/* ---- bytes ---- */

typedef struct { char *data; size_t len, cap; } buffer;

static char *more(buffer *b, size_t n) {
    if (b->len + n > b->cap) {
        b->cap = (b->len + n) * 2;
        if (!(b->data = realloc(b->data, b->cap))) die("no memory");
    }
    b->len += n;
    return b->data + b->len - n;
}

static void put(buffer *b, const void *from, size_t n) { memcpy(more(b, n), from, n); }
static void put8(buffer *b, int v) { *more(b, 1) = (char)v; }
static void put16(buffer *b, int v) { uint16_t x = htobe16((uint16_t)v); put(b, &x, 2); }
static void put32(buffer *b, int64_t v) { uint32_t x = htobe32((uint32_t)v); put(b, &x, 4); }
static void put64(buffer *b, int64_t v) { uint64_t x = htobe64((uint64_t)v); put(b, &x, 8); }
static void put_uvarint(buffer *b, uint64_t v) {
    for (; v >= 128; v >>= 7) put8(b, (int)(v & 127) | 128);
    put8(b, (int)v);
}
static void put_varint(buffer *b, int64_t v) { put_uvarint(b, ((uint64_t)v << 1) ^ (uint64_t)(v >> 63)); }
static void put_compact(buffer *b, const char *text) { put_uvarint(b, strlen(text) + 1); put(b, text, strlen(text)); }
static void set32(char *at, int64_t v) { uint32_t x = htobe32((uint32_t)v); memcpy(at, &x, 4); }
static void set64(char *at, int64_t v) { uint64_t x = htobe64((uint64_t)v); memcpy(at, &x, 8); }
static int16_t get16(const char *p) { uint16_t x; memcpy(&x, p, 2); return (int16_t)be16toh(x); }
static int32_t get32(const char *p) { uint32_t x; memcpy(&x, p, 4); return (int32_t)be32toh(x); }
static int64_t get64(const char *p) { uint64_t x; memcpy(&x, p, 8); return (int64_t)be64toh(x); }
static uint64_t get_uvarint(const char **p) {
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char c = (unsigned char)*(*p)++;
        v |= (uint64_t)(c & 127) << shift;
        if (c < 128) return v;
    }
}

static uint32_t crc32c(const char *p, size_t n) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
            table[i] = c;
        }
    uint32_t c = ~0u;
    while (n--) c = table[(c ^ (unsigned char)*p++) & 255] ^ (c >> 8);
    return ~c;
}

/* ---- frames ---- */

static void begin_frame(buffer *b, int api_key, int version) {
    put32(b, 0); /* size, set by end_frame */
    put16(b, api_key);
    put16(b, version);
    put32(b, 0); /* correlation id, set for every request */
    put16(b, 3);
    put(b, "raw", 3);
}

static void end_frame(buffer *b) { set32(b->data, (int64_t)b->len - 4); }

static buffer batch(size_t record_bytes, int records) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    int64_t ms = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    buffer b = {0}, record = {0};
    put64(&b, 0);
    put32(&b, 0);
    put32(&b, -1);
    put8(&b, 2);
    put32(&b, 0);
    put16(&b, 0);
    put32(&b, records - 1);
    put64(&b, ms);
    put64(&b, ms);
    put64(&b, -1);
    put16(&b, -1);
    put32(&b, -1);
    put32(&b, records);
    for (int i = 0; i < records; i++) {
        record.len = 0;
        put8(&record, 0);
        put_varint(&record, 0);
        put_varint(&record, i);
        put_varint(&record, -1);
        put_varint(&record, (int64_t)record_bytes);
        char *value = more(&record, record_bytes);
        for (size_t k = 0; k < record_bytes; k++) value[k] = (char)('a' + (k * 7 + k / 13 + (size_t)i) % 26);
        put_varint(&record, 0);
        put_varint(&b, (int64_t)record.len);
        put(&b, record.data, record.len);
    }
    set32(b.data + 8, (int64_t)b.len - 12);
    set32(b.data + 17, crc32c(b.data + 21, b.len - 21));
    free(record.data);
    return b;
}

static int acks = 1;
static const char *batch_file; /* a batch to send in place of made ones */

static buffer read_batch(const char *path) {
    buffer b = {0};
    FILE *file = fopen(path, "rb");
    if (!file) die("the batch file cannot be read");
    char part[65536];
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) put(&b, part, n);
    fclose(file);
    return b;
}

static buffer produce_frame(const char *topic, int partition, const buffer *records) {
    buffer b = {0};
    begin_frame(&b, 0, 9);
    put8(&b, 0);
    put8(&b, 0); /* no transactional id */
    put16(&b, acks);
    put32(&b, 30000);
    put_uvarint(&b, 2);
    put_compact(&b, topic);
    put_uvarint(&b, 2);
    put32(&b, partition);
    put_uvarint(&b, records->len + 1);
    put(&b, records->data, records->len);
    put(&b, "\0\0\0", 3);
    end_frame(&b);
    return b;
}

static size_t fetch_offset_at; /* where the offset stands in a fetch frame */

static buffer fetch_frame(const char *topic, int partition, int max_bytes) {
    buffer b = {0};
    begin_frame(&b, 1, 12);
    put8(&b, 0);
    put32(&b, -1);
    put32(&b, 500);
    put32(&b, 1);
    put32(&b, max_bytes);
    put8(&b, 0);
    put32(&b, 0);
    put32(&b, -1); /* no fetch session */
    put_uvarint(&b, 2);
    put_compact(&b, topic);
    put_uvarint(&b, 2);
    put32(&b, partition);
    put32(&b, -1);
    fetch_offset_at = b.len;
    put64(&b, 0);
    put32(&b, -1);
    put64(&b, -1);
    put32(&b, max_bytes);
    put(&b, "\0\0", 2);
    put_uvarint(&b, 1);
    put_uvarint(&b, 1);
    put8(&b, 0);
    end_frame(&b);
    return b;
}

static int produce_error(const char *reply) {
    const char *p = reply + 9; /* size, correlation id, header tags */
    get_uvarint(&p);
    p += get_uvarint(&p) - 1;
    get_uvarint(&p);
    return get16(p + 4);
}

/* ---- connections ---- */

typedef struct {
    int fd, in_flight;
    buffer frame, out, in;
    size_t out_done, in_used;
    int64_t offset;
    uint64_t sent_at[MAX_IN_FLIGHT];
    uint64_t head, tail;
} connection;

static int open_connection(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

typedef struct {
    int fetching, limit, count;
    long requests, sent, done, errors;
    int last_error;
    double bytes, batch_bytes, interval_ns;
    uint64_t next_due;
    int64_t first_offset;
} load;

/* Put as many frames into the send buffer as may be in flight; small ones leave together. */
static void queue(load *l, connection *c) {
    if (c->out_done == c->out.len) c->out.len = c->out_done = 0;
    while (c->in_flight < l->limit && l->sent < l->requests && c->out.len - c->out_done < COALESCE_BYTES) {
        uint64_t now = now_ns();
        if (l->interval_ns > 0) {
            if (now < l->next_due) break;
            l->next_due += (uint64_t)l->interval_ns;
        }
        set32(c->frame.data + 8, l->sent & 0x7fffffff);
        if (l->fetching) set64(c->frame.data + fetch_offset_at, c->offset);
        put(&c->out, c->frame.data, c->frame.len);
        c->sent_at[c->head++ % MAX_IN_FLIGHT] = now;
        c->in_flight++;
        l->sent++;
    }
}

static void fill(load *l, connection *c) {
    for (queue(l, c); c->out_done < c->out.len; queue(l, c)) {
        ssize_t n = send(c->fd, c->out.data + c->out_done, c->out.len - c->out_done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN || errno == EINTR) return;
            die("send");
        }
        c->out_done += (size_t)n;
    }
}

static void on_fetch(load *l, connection *c, const char *reply) {
    const char *p = reply + 9 + 4;
    int error = get16(p);
    p += 2 + 4;
    if (get_uvarint(&p) == 1) { /* no topic: nothing new */
        c->offset = l->first_offset;
        return;
    }
    p += get_uvarint(&p) - 1;
    get_uvarint(&p);
    error = error ? error : get16(p + 4);
    int64_t high_watermark = get64(p + 6);
    p += 4 + 2 + 8 + 8 + 8;
    for (uint64_t n = get_uvarint(&p); n > 1; n--) p += 8 + 8 + 1;
    p += 4;
    uint64_t size = get_uvarint(&p);
    if (error) {
        l->errors++;
        l->last_error = error;
        c->offset = l->first_offset;
        return;
    }
    const char *end = p + (size ? size - 1 : 0), *last = NULL;
    l->bytes += (double)(end - p);
    while (end - p >= 61) {
        if (p + 12 + get32(p + 8) > end) break;
        last = p;
        p += 12 + get32(p + 8);
    }
    c->offset = last ? get64(last) + get32(last + 23) + 1 : l->first_offset;
    if (c->offset >= high_watermark) c->offset = l->first_offset; /* at the end a fetch would wait for news */
}

static void drain(load *l, connection *c) {
    for (;;) {
        if (c->in.cap - c->in.len < 65536) {
            if (c->in_used) {
                memmove(c->in.data, c->in.data + c->in_used, c->in.len - c->in_used);
                c->in.len -= c->in_used;
                c->in_used = 0;
            }
            size_t keep = c->in.len;
            more(&c->in, 262144);
            c->in.len = keep;
        }
        ssize_t n = recv(c->fd, c->in.data + c->in.len, c->in.cap - c->in.len, MSG_DONTWAIT);
        if (n == 0) die("the broker closed the connection");
        if (n < 0) {
            if (errno == EAGAIN || errno == EINTR) break;
            die("recv");
        }
        c->in.len += (size_t)n;
        uint64_t now = now_ns();
        while (c->in.len - c->in_used >= 4) {
            const char *reply = c->in.data + c->in_used;
            size_t size = 4 + (size_t)get32(reply);
            if (c->in.len - c->in_used < size) break;
            if (l->fetching) {
                on_fetch(l, c, reply);
            } else {
                int error = produce_error(reply);
                if (error) {
                    l->errors++;
                    l->last_error = error;
                }
            }
            note(now - c->sent_at[c->tail++ % MAX_IN_FLIGHT]);
            c->in_flight--;
            l->done++;
            c->in_used += size;
        }
        if (c->in_used == c->in.len) c->in_used = c->in.len = 0;
    }
}

static void run(load *l, connection *links, double seconds_max) {
    int ep = epoll_create1(0);
    for (int i = 0; i < l->count; i++) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = &links[i]};
        epoll_ctl(ep, EPOLL_CTL_ADD, links[i].fd, &e);
    }
    uint64_t start = now_ns(), deadline = start + (uint64_t)(seconds_max * 1e9), turn = 0;
    l->next_due = start;
    while (l->done < l->requests) {
        struct epoll_event ready[MAX_CONNECTIONS];
        uint64_t now = now_ns();
        if (now > deadline) {
            l->requests = l->sent; /* what is under way may still arrive */
            if (now > deadline + 10000000000u) break;
        }
        uint64_t wait = 100000000;
        if (l->interval_ns > 0 && l->sent < l->requests) wait = l->next_due > now ? l->next_due - now : 0;
        struct timespec patience = {.tv_sec = 0, .tv_nsec = (long)wait};
        int n = epoll_pwait2(ep, ready, MAX_CONNECTIONS, &patience, NULL);
        for (int i = 0; i < n; i++) {
            connection *c = ready[i].data.ptr;
            if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) drain(l, c);
            if (l->interval_ns == 0) fill(l, c);
        }
        if (l->interval_ns > 0 && now_ns() >= l->next_due) fill(l, &links[turn++ % (uint64_t)l->count]);
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    l->bytes += l->batch_bytes * (double)(l->done - l->errors);
    printf("{\"requests\": %ld, \"failed\": %ld, \"error\": %d, \"bytes\": %.0f, \"seconds\": %.6f, "
           "\"p50_us\": %.0f, \"p99_us\": %.0f}\n",
           l->done, l->errors + l->sent - l->done, l->last_error, l->bytes, seconds, percentile(0.5), percentile(0.99));
}

static connection *connect_all(int port, int count) {
    if (count < 1 || count > MAX_CONNECTIONS) die("too many connections");
    connection *links = calloc((size_t)count, sizeof *links);
    for (int i = 0; i < count; i++)
        if ((links[i].fd = open_connection(port)) < 0) die("connect");
    return links;
}

static void run_produce(char **a) {
    load l = {.count = atoi(a[3]), .limit = atoi(a[4]), .requests = atol(a[7])};
    int partitions = atoi(a[2]);
    double rate = atof(a[9]);
    buffer records = batch_file ? read_batch(batch_file) : batch(strtoul(a[5], NULL, 10), atoi(a[6]));
    connection *links = connect_all(atoi(a[0]), l.count);
    for (int i = 0; i < l.count; i++) links[i].frame = produce_frame(a[1], i % partitions, &records);
    if (rate > 0) l.interval_ns = 1e9 / rate;
    l.batch_bytes = (double)records.len;
    run(&l, links, atof(a[8]));
}

static void run_fetch(char **a) {
    load l = {.fetching = 1, .count = atoi(a[3]), .limit = atoi(a[4]), .first_offset = atoll(a[6])};
    l.requests = atol(a[7]);
    connection *links = connect_all(atoi(a[0]), l.count);
    for (int i = 0; i < l.count; i++) {
        links[i].frame = fetch_frame(a[1], i % atoi(a[2]), atoi(a[5]));
        links[i].offset = l.first_offset;
    }
    run(&l, links, atof(a[8]));
}

/* Send one frame and read one whole reply, both blocking. */
static int ask(int fd, buffer *frame, buffer *reply) {
    for (size_t done = 0; done < frame->len;) {
        ssize_t n = send(fd, frame->data + done, frame->len - done, MSG_NOSIGNAL);
        if (n <= 0) return -1;
        done += (size_t)n;
    }
    reply->len = 0;
    size_t wanted = 4;
    while (reply->len < wanted) {
        size_t before = reply->len;
        more(reply, wanted - before);
        ssize_t n = recv(fd, reply->data + before, wanted - before, 0);
        if (n <= 0) return -1;
        reply->len = before + (size_t)n;
        if (wanted == 4 && reply->len == 4) wanted = 4 + (size_t)get32(reply->data);
    }
    return 0;
}

static int run_first(char **a) {
    uint64_t start = strtoull(a[2], NULL, 10), deadline = now_ns() + (uint64_t)(atof(a[3]) * 1e9);
    buffer records = batch(100, 1), produce = produce_frame(a[1], 0, &records), metadata = {0}, reply = {0};
    begin_frame(&metadata, 3, 4);
    put32(&metadata, 1);
    put16(&metadata, (int)strlen(a[1]));
    put(&metadata, a[1], strlen(a[1]));
    put8(&metadata, 1); /* create it */
    end_frame(&metadata);
    int fd = -1, error = -1;
    while (now_ns() < deadline) {
        struct timeval patience = {.tv_sec = 1};
        if (fd < 0) {
            fd = open_connection(atoi(a[0]));
            if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        }
        if (fd >= 0) {
            if (ask(fd, &metadata, &reply) != 0 || ask(fd, &produce, &reply) != 0) {
                close(fd);
                fd = -1;
            } else if ((error = produce_error(reply.data)) == 0) {
                printf("{\"requests\": 1, \"failed\": 0, \"error\": 0, \"bytes\": 100, \"seconds\": %.6f}\n",
                       (double)(now_ns() - start) / 1e9);
                return 0;
            }
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    fprintf(stderr, "rawload: no record was acknowledged in time (last error %d)\n", error);
    return 1;
}

int main(int argc, char **argv) {
    if (argc >= 13 && !strcmp(argv[1], "produce")) acks = atoi(argv[12]);
    if (argc == 14 && !strcmp(argv[1], "produce")) batch_file = argv[13];
    if (argc >= 12 && argc <= 14 && !strcmp(argv[1], "produce")) return run_produce(argv + 2), 0;
    if (argc == 11 && !strcmp(argv[1], "fetch")) return run_fetch(argv + 2), 0;
    if (argc == 6 && !strcmp(argv[1], "first")) return run_first(argv + 2);
    fprintf(stderr, "see the head of rawload.c\n");
    return 2;
}
