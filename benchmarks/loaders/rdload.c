/* Load a broker through librdkafka, the client most programs use, and spend as little as possible beside it.
 *
 *   rdload LIB produce BOOTSTRAP TOPIC PARTITIONS RECORD_BYTES BATCH_BYTES RECORDS SECONDS_MAX [name=value ...]
 *   rdload LIB consume BOOTSTRAP TOPIC PARTITIONS RECORDS SECONDS_MAX [name=value ...]
 *
 * LIB is the shared library itself (the one inside the confluent-kafka wheel): no headers are needed, the few functions
 * used are declared here. Prints one JSON line. The clock runs from the first record handed over to the last one
 * acknowledged, or from the first ones received to the last.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PRODUCER = 0, CONSUMER = 1, CONF_OK = 0, QUEUE_FULL = -184, FROM_BEGINNING = -2, BATCH = 4096 };

typedef struct message {
    int err;
    void *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} message;

static void *(*conf_new)(void);
static int (*conf_set)(void *, const char *, const char *, char *, size_t);
static void (*conf_set_dr_msg_cb)(void *, void (*)(void *, const message *, void *));
static void *(*client_new)(int, void *, char *, size_t);
static void *(*topic_new)(void *, const char *, void *);
static int (*produce)(void *, int32_t, int, void *, size_t, const void *, size_t, void *);
static int (*last_error)(void);
static int (*poll_events)(void *, int);
static int (*flush_all)(void *, int);
static void *(*queue_new)(void *);
static int (*consume_start_queue)(void *, int32_t, int64_t, void *);
static long (*consume_batch_queue)(void *, int, message **, size_t);
static void (*message_destroy)(message *);

static long acked, failed;
static int first_error;

static void load_library(const char *path) {
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    struct { void *slot; const char *name; } wanted[] = {
        {&conf_new, "rd_kafka_conf_new"},
        {&conf_set, "rd_kafka_conf_set"},
        {&conf_set_dr_msg_cb, "rd_kafka_conf_set_dr_msg_cb"},
        {&client_new, "rd_kafka_new"},
        {&topic_new, "rd_kafka_topic_new"},
        {&produce, "rd_kafka_produce"},
        {&last_error, "rd_kafka_last_error"},
        {&poll_events, "rd_kafka_poll"},
        {&flush_all, "rd_kafka_flush"},
        {&queue_new, "rd_kafka_queue_new"},
        {&consume_start_queue, "rd_kafka_consume_start_queue"},
        {&consume_batch_queue, "rd_kafka_consume_batch_queue"},
        {&message_destroy, "rd_kafka_message_destroy"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *symbol = dlsym(lib, wanted[i].name);
        if (!symbol) {
            fprintf(stderr, "%s has no %s\n", path, wanted[i].name);
            exit(1);
        }
        memcpy(wanted[i].slot, &symbol, sizeof symbol);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void set(void *conf, const char *name, const char *value) {
    char problem[256];
    if (conf_set(conf, name, value, problem, sizeof problem) != CONF_OK) {
        fprintf(stderr, "%s\n", problem);
        exit(1);
    }
}

static void *client(int kind, void *conf, const char *bootstrap, int count, char **settings) {
    char problem[256];
    set(conf, "bootstrap.servers", bootstrap);
    for (int i = 0; i < count; i++) {
        char *value = strchr(settings[i], '=');
        *value = 0;
        set(conf, settings[i], value + 1);
    }
    void *made = client_new(kind, conf, problem, sizeof problem);
    if (!made) {
        fprintf(stderr, "%s\n", problem);
        exit(1);
    }
    return made;
}

static void on_delivery(void *self, const message *m, void *opaque) {
    (void)self;
    (void)opaque;
    if (m->err) {
        failed++;
        first_error = first_error ? first_error : m->err;
    } else {
        acked++;
    }
}

/* Distinct payloads of words and numbers, so that codecs find about as much to do as in logs and JSON. */
static char *payloads(size_t size, long count) {
    char words[256][12];
    unsigned seed = 1;
    for (int w = 0; w < 256; w++) {
        int length = 3 + w % 8;
        for (int i = 0; i < length; i++) {
            seed = seed * 1664525u + 1013904223u;
            words[w][i] = (char)('a' + (seed >> 16) % 26);
        }
        words[w][length] = 0;
    }
    char *all = malloc(size * (size_t)count + 24), *at = all, *end = all + size * (size_t)count;
    while (at < end) {
        seed = seed * 1664525u + 1013904223u;
        at += (seed >> 30) ? sprintf(at, "%s ", words[(seed >> 16) & 255]) : sprintf(at, "%u ", seed >> 12);
    }
    return all;
}

static int run_produce(int argc, char **argv) {
    const char *topic = argv[1];
    int partitions = atoi(argv[2]);
    size_t size = strtoul(argv[3], NULL, 10);
    long batch_bytes = atol(argv[4]), records = atol(argv[5]);
    double limit = atof(argv[6]);
    void *conf = conf_new();
    set(conf, "batch.size", argv[4]);
    set(conf, "batch.num.messages", "1000000");
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "131072");
    conf_set_dr_msg_cb(conf, on_delivery);
    void *self = client(PRODUCER, conf, argv[0], argc - 7, argv + 7);
    void *rkt = topic_new(self, topic, NULL);
    long distinct = 4000000 / (long)size + 1;
    char *all = payloads(size, distinct);
    long run = batch_bytes / (long)(size + 10); /* neighbours go to one partition, so that batches fill */
    if (run < 1) run = 1;
    poll_events(self, 100);
    double start = now(), deadline = start + limit;
    long sent = 0;
    while (sent < records) {
        char *payload = all + (size_t)(sent % distinct) * size;
        if (produce(rkt, (int32_t)((sent / run) % partitions), 0, payload, size, NULL, 0, NULL) == 0) {
            if (++sent % 512 == 0) poll_events(self, 0);
        } else if (last_error() == QUEUE_FULL) {
            poll_events(self, 1);
        } else {
            fprintf(stderr, "produce refused: error %d\n", last_error());
            return 1;
        }
        if (sent % 65536 == 0 && now() > deadline) break;
    }
    while (acked + failed < sent && now() < deadline + 30) poll_events(self, 5);
    double seconds = now() - start;
    printf("{\"records\": %ld, \"failed\": %ld, \"error\": %d, \"bytes\": %.0f, \"seconds\": %.6f}\n", acked,
           failed + (sent - acked - failed), first_error, (double)acked * size, seconds);
    return 0;
}

static int run_consume(int argc, char **argv) {
    const char *topic = argv[1];
    int partitions = atoi(argv[2]);
    long records = atol(argv[3]);
    double limit = atof(argv[4]);
    void *self = client(CONSUMER, conf_new(), argv[0], argc - 5, argv + 5);
    void *rkt = topic_new(self, topic, NULL);
    void *queue = queue_new(self);
    double start = now(), deadline = start + limit, bytes = 0;
    for (int p = 0; p < partitions; p++) {
        if (consume_start_queue(rkt, p, FROM_BEGINNING, queue) != 0) {
            fprintf(stderr, "cannot consume partition %d\n", p);
            return 1;
        }
    }
    static message *batch[BATCH];
    long seen = 0, problems = 0;
    while (seen < records && now() < deadline) {
        long n = consume_batch_queue(queue, 100, batch, BATCH);
        if (seen == 0 && n > 0) start = now();
        for (long i = 0; i < n; i++) {
            if (batch[i]->err) {
                problems++;
            } else {
                seen++;
                bytes += (double)batch[i]->len;
            }
            message_destroy(batch[i]);
        }
    }
    printf("{\"records\": %ld, \"failed\": %ld, \"error\": 0, \"bytes\": %.0f, \"seconds\": %.6f}\n", seen,
           records > seen ? records - seen : 0, bytes, now() - start);
    fflush(stdout);
    _Exit(0); /* the prefetched rest is not worth an orderly good-bye */
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    load_library(argv[1]);
    if (!strcmp(argv[2], "produce") && argc >= 10) return run_produce(argc - 3, argv + 3);
    if (!strcmp(argv[2], "consume") && argc >= 8) return run_consume(argc - 3, argv + 3);
    fprintf(stderr, "see the head of rdload.c\n");
    return 2;
}
