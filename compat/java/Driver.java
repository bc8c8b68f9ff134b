import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client as a servant of the test suite: one JSON order per line in, one JSON answer per line out.
 * Bytes travel as base64; a failure answers {"error": text, "code": Kafka's number}.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static Stream stream;

    private Driver() {}

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = System.out;
        System.setOut(System.err);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Object answer;
            try {
                answer = obey(JSON.readTree(line));
            } catch (Throwable problem) {
                answer = failure(problem);
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        System.exit(0);
    }

    private static Object obey(JsonNode order) throws Exception {
        switch (order.get("op").asText()) {
            case "create": return create(order);
            case "delete": return delete(order);
            case "topics": return topics(order);
            case "produce": return produce(order);
            case "transaction": return transaction(order);
            case "consume": return consume(order);
            case "ends": return ends(order);
            case "offset_for_time": return offsetForTime(order);
            case "stream_start": return streamStart(order);
            case "stream_stop": return streamStop();
            case "member_start": return Crowd.start(order);
            case "member_end": return Crowd.end(order);
            case "member_pause": return Crowd.pause(order);
            case "members": return Crowd.report(order);
            case "writer_open": return Writers.open(order, producerSettings(order));
            case "writer": return Writers.obey(order);
            case "transaction_loops": return Loops.run(order, producerSettings(order));
            case "tool": return tool(order);
            default: throw new IllegalArgumentException("no such order: " + order);
        }
    }

    private static Object create(JsonNode order) throws Exception {
        NewTopic topic = new NewTopic(order.get("topic").asText(), order.get("partitions").asInt(), (short) 1);
        Map<String, String> configs = new LinkedHashMap<>();
        order.get("configs").properties().forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        try (Admin admin = admin(order)) {
            admin.createTopics(List.of(topic.configs(configs))).all().get(30, TimeUnit.SECONDS);
        }
        return Map.of();
    }

    private static Object delete(JsonNode order) throws Exception {
        try (Admin admin = admin(order)) {
            admin.deleteTopics(List.of(order.get("topic").asText())).all().get(30, TimeUnit.SECONDS);
        }
        return Map.of();
    }

    private static Object topics(JsonNode order) throws Exception {
        Map<String, Object> partitionsByTopic = new LinkedHashMap<>();
        try (Admin admin = admin(order)) {
            var names = admin.listTopics().names().get(30, TimeUnit.SECONDS);
            for (TopicDescription topic : admin.describeTopics(names).allTopicNames().get().values()) {
                partitionsByTopic.put(topic.name(), topic.partitions().size());
            }
        }
        return Map.of("topics", partitionsByTopic);
    }

    private static Object produce(JsonNode order) throws Exception {
        Properties settings = producerSettings(order);
        List<Object> results = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            List<Future<RecordMetadata>> pending = new ArrayList<>();
            for (JsonNode node : order.get("records")) {
                pending.add(producer.send(record(order.get("topic").asText(), node)));
            }
            producer.flush();
            for (Future<RecordMetadata> one : pending) {
                results.add(outcome(one));
            }
        }
        return Map.of("results", results);
    }

    private static Object transaction(JsonNode order) throws Exception {
        Properties settings = producerSettings(order);
        settings.put("transactional.id", order.get("transactional_id").asText());
        List<Object> results = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            producer.beginTransaction();
            List<Future<RecordMetadata>> pending = new ArrayList<>();
            for (JsonNode node : order.get("records")) {
                pending.add(producer.send(record(order.get("topic").asText(), node)));
            }
            producer.flush();
            for (Future<RecordMetadata> one : pending) {
                results.add(outcome(one));
            }
            if (order.get("commit").asBoolean()) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        return Map.of("results", results);
    }

    private static Object consume(JsonNode order) throws Exception {
        TopicPartition partition = partition(order);
        int count = order.get("count").asInt();
        List<Object> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(order)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, order.get("offset").asLong());
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            // With no count given, read to the end as this isolation level sees it.
            long end = count > 0 ? Long.MAX_VALUE : consumer.endOffsets(List.of(partition)).get(partition);
            while ((count <= 0 || records.size() < count) && System.nanoTime() < deadline) {
                if (consumer.position(partition) >= end) {
                    break;
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (count <= 0 || records.size() < count) {
                        records.add(shown(record));
                    }
                }
            }
        }
        return Map.of("records", records);
    }

    private static Object ends(JsonNode order) {
        TopicPartition partition = partition(order);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(order)) {
            long first = consumer.beginningOffsets(List.of(partition), PATIENCE).get(partition);
            long last = consumer.endOffsets(List.of(partition), PATIENCE).get(partition);
            return Map.of("earliest", first, "latest", last);
        }
    }

    private static Object offsetForTime(JsonNode order) {
        TopicPartition partition = partition(order);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(order)) {
            var offsets = consumer.offsetsForTimes(Map.of(partition, order.get("timestamp").asLong()), PATIENCE);
            OffsetAndTimestamp at = offsets.get(partition);
            return Map.of("offset", at == null ? -1L : at.offset());
        }
    }

    /** Sends numbered records one after another in the background and remembers what was acknowledged where. */
    private static final class Stream extends Thread {
        private final KafkaProducer<byte[], byte[]> producer;
        private final JsonNode order;
        private final List<long[]> acked = new ArrayList<>();
        private final List<String> failures = new ArrayList<>();
        private volatile boolean stopped;
        private long sent;

        Stream(JsonNode order) {
            this.order = order;
            this.producer = new KafkaProducer<>(producerSettings(order));
            setDaemon(true);
        }

        @Override
        public void run() {
            while (!stopped) {
                long number = sent++;
                byte[] value = Long.toString(number).getBytes(StandardCharsets.UTF_8);
                String topic = order.get("topic").asText();
                producer.send(new ProducerRecord<>(topic, order.get("partition").asInt(), null, value), (at, problem) -> {
                    synchronized (acked) {
                        if (problem == null) {
                            acked.add(new long[] {number, at.offset()});
                        } else {
                            failures.add(problem.toString());
                        }
                    }
                });
                try {
                    Thread.sleep(order.get("pause_ms").asInt());
                } catch (InterruptedException e) {
                    return;
                }
            }
        }
    }

    private static Object streamStart(JsonNode order) {
        stream = new Stream(order);
        stream.start();
        return Map.of();
    }

    private static Object streamStop() throws Exception {
        stream.stopped = true;
        stream.join();
        stream.producer.flush();
        stream.producer.close();
        return Map.of("acked", stream.acked, "failures", stream.failures, "sent", stream.sent);
    }

    private static Object tool(JsonNode order) throws Exception {
        List<String> args = new ArrayList<>();
        order.get("args").forEach(arg -> args.add(arg.asText()));
        return ToolRunner.run(order.get("main").asText(), args.toArray(new String[0]));
    }

    private static Properties common(JsonNode order) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", order.get("bootstrap").asText());
        settings.put("reconnect.backoff.max.ms", "200");
        return settings;
    }

    private static Admin admin(JsonNode order) {
        return Admin.create(common(order));
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode order) {
        Properties settings = common(order);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", "50"); // closing waits for the fetch that is under way
        settings.put("isolation.level", order.path("isolation").asText("read_uncommitted"));
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Properties producerSettings(JsonNode order) {
        Properties settings = common(order);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("acks", order.path("acks").asText("all"));
        settings.put("compression.type", order.path("codec").asText("none"));
        settings.put("enable.idempotence", order.path("idempotent").asBoolean(false));
        settings.put("linger.ms", order.path("linger_ms").asText("5"));
        settings.put("max.request.size", "20000000");
        settings.put("delivery.timeout.ms", "60000");
        settings.put("request.timeout.ms", "20000");
        return settings;
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, JsonNode node) {
        Long timestamp = node.hasNonNull("timestamp") ? node.get("timestamp").asLong() : null;
        byte[] key = bytes(node.get("key"));
        byte[] value = bytes(node.get("value"));
        var record = new ProducerRecord<>(topic, node.get("partition").asInt(), timestamp, key, value);
        for (JsonNode header : node.path("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    private static Map<String, Object> shown(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<Object> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("offset", record.offset());
        shown.put("timestamp", record.timestamp());
        shown.put("key", text(record.key()));
        shown.put("value", text(record.value()));
        shown.put("headers", headers);
        return shown;
    }

    private static Object outcome(Future<RecordMetadata> pending) throws InterruptedException {
        try {
            return Map.of("offset", pending.get().offset());
        } catch (ExecutionException e) {
            return failure(e.getCause());
        }
    }

    private static Map<String, Object> failure(Throwable problem) {
        Throwable cause = problem instanceof ExecutionException ? problem.getCause() : problem;
        return Map.of("error", String.valueOf(cause), "code", (int) Errors.forException(cause).code());
    }

    private static TopicPartition partition(JsonNode order) {
        return new TopicPartition(order.get("topic").asText(), order.get("partition").asInt());
    }

    private static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
