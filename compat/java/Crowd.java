import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Many group members in one JVM, a thread each: they read, commit what they read, and write down what they were
 * given and what was taken from them. A member ends by leaving, or by falling silent without a word to the group.
 */
final class Crowd {
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
        "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    private Crowd() {}

    static Object start(JsonNode order) {
        Member member = new Member(order);
        MEMBERS.put(order.get("member").asText(), member);
        member.start();
        return Map.of();
    }

    /** Ends one member; "leave" says goodbye, "crash" leaves the broker to find out. */
    static Object end(JsonNode order) throws InterruptedException {
        Member member = MEMBERS.get(order.get("member").asText());
        member.crashes = order.get("how").asText().equals("crash");
        member.stopped = true;
        member.join(30_000);
        return Map.of("ended", !member.isAlive());
    }

    static Object pause(JsonNode order) {
        MEMBERS.get(order.get("member").asText()).paused = order.get("paused").asBoolean();
        return Map.of();
    }

    static Object report(JsonNode order) {
        Map<String, Object> shown = new LinkedHashMap<>();
        for (JsonNode name : order.get("members")) {
            shown.put(name.asText(), MEMBERS.get(name.asText()).report());
        }
        return Map.of("members", shown);
    }

    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final String topic;
        private final boolean byPattern;
        private final TreeSet<Integer> owned = new TreeSet<>();
        private final List<Object> events = new ArrayList<>();
        private final List<String> seen = new ArrayList<>();
        private final List<String> problems = new ArrayList<>();
        private volatile boolean stopped;
        private volatile boolean crashes;
        private volatile boolean paused;

        Member(JsonNode order) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", order.get("bootstrap").asText());
            settings.put("group.id", order.get("group").asText());
            settings.put("client.id", order.get("member").asText());
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "earliest");
            settings.put("fetch.max.wait.ms", "100");
            settings.put("metadata.max.age.ms", "500");
            settings.put("reconnect.backoff.max.ms", "200");
            settings.put("max.poll.interval.ms", order.get("poll_interval_ms").asText());
            if (order.hasNonNull("instance")) {
                settings.put("group.instance.id", order.get("instance").asText());
            }
            String way = order.get("way").asText();
            if (ASSIGNORS.containsKey(way)) {
                settings.put("group.protocol", "classic");
                settings.put("partition.assignment.strategy", ASSIGNORS.get(way));
                settings.put("session.timeout.ms", order.get("session_ms").asText());
                settings.put("heartbeat.interval.ms", "200");
            } else { // the new protocol, subscribing by name or by pattern, with the name of an assignor of the broker
                settings.put("group.protocol", "consumer");
                settings.put("group.remote.assignor", way.substring(way.indexOf('-') + 1));
            }
            byPattern = way.startsWith("pattern-");
            topic = order.get("topic").asText();
            consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                if (byPattern) {
                    consumer.subscribe(new SubscriptionPattern(topic + "(-never)?"), this);
                } else {
                    consumer.subscribe(List.of(topic), this);
                }
                while (!stopped) {
                    if (paused) {
                        Thread.sleep(20);
                    } else {
                        turn();
                    }
                }
            } catch (Throwable problem) {
                note(problem);
            } finally {
                finish();
            }
        }

        private void turn() {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(50));
            synchronized (this) {
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    seen.add(record.partition() + ":" + record.offset());
                }
            }
            if (!records.isEmpty()) {
                try {
                    consumer.commitSync(Duration.ofSeconds(5));
                } catch (RuntimeException refused) { // a rebalance came first: the next owner reads them again
                    note(refused);
                }
            }
        }

        private void finish() {
            if (crashes) {
                synchronized (this) {
                    event("crashed");
                    owned.clear();
                }
            }
            try {
                var how = crashes
                    ? CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP
                    : CloseOptions.GroupMembershipOperation.DEFAULT;
                consumer.close(CloseOptions.groupMembershipOperation(how).withTimeout(Duration.ofSeconds(5)));
            } catch (RuntimeException problem) {
                note(problem);
            }
            synchronized (this) {
                event("ended");
                owned.clear();
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            synchronized (this) {
                partitions.forEach(one -> owned.add(one.partition()));
                event("assigned");
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            synchronized (this) {
                if (!stopped || !crashes) {
                    partitions.forEach(one -> owned.remove(one.partition()));
                    event("revoked");
                }
            }
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            synchronized (this) {
                partitions.forEach(one -> owned.remove(one.partition()));
                event("lost");
            }
        }

        private void event(String what) {
            int generation = -1;
            try {
                generation = consumer.groupMetadata().generationId();
            } catch (RuntimeException closed) {
                // there is no generation any more
            }
            List<Integer> held = what.equals("crashed") || what.equals("ended") ? List.of() : List.copyOf(owned);
            events.add(List.of(System.currentTimeMillis(), what, generation, held));
        }

        private synchronized void note(Throwable problem) {
            problems.add(problem.toString());
        }

        synchronized Map<String, Object> report() {
            return Map.of(
                "owned", List.copyOf(owned), "events", List.copyOf(events), "seen", List.copyOf(seen),
                "problems", List.copyOf(problems), "alive", isAlive());
        }
    }
}
