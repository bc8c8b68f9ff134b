import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Transactional producers that begin the next transaction as soon as the last is decided, on every partition. */
final class Loops {
    private Loops() {}

    static Object run(JsonNode order, Properties settings) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        try {
            List<Future<Map<String, Object>>> loops = new ArrayList<>();
            for (JsonNode id : order.get("transactional_ids")) {
                loops.add(threads.submit((Callable<Map<String, Object>>) () -> loop(order, settings, id.asText())));
            }
            List<Object> producers = new ArrayList<>();
            for (Future<Map<String, Object>> one : loops) {
                producers.add(one.get());
            }
            return Map.of("producers", producers);
        } finally {
            threads.shutdownNow();
        }
    }

    private static Map<String, Object> loop(JsonNode order, Properties common, String id) {
        Properties settings = new Properties();
        settings.putAll(common);
        settings.put("transactional.id", id);
        settings.put("enable.idempotence", "true");
        settings.put("max.block.ms", "300000");
        settings.put("delivery.timeout.ms", "300000");
        int ended = 0;
        String failure = null;
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        try {
            producer.initTransactions();
            for (int number = 0; number < order.get("transactions").asInt(); number++) {
                transact(order, producer, id, number);
                ended++;
            }
        } catch (Exception problem) {
            failure = String.valueOf(problem);
        } finally {
            producer.close(java.time.Duration.ofSeconds(5));
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("id", id);
        result.put("ended", ended);
        result.put("failure", failure);
        return result;
    }

    private static void transact(JsonNode order, KafkaProducer<byte[], byte[]> producer, String id, int number) {
        producer.beginTransaction();
        for (int partition = 0; partition < order.get("partitions").asInt(); partition++) {
            byte[] value = (id + "/" + number + "/" + partition).getBytes(StandardCharsets.UTF_8);
            producer.send(new ProducerRecord<>(order.get("topic").asText(), partition, null, value));
        }
        if (number % order.get("abort_every").asInt() == 0) {
            producer.flush();
            producer.abortTransaction();
        } else {
            producer.commitTransaction();
        }
    }
}
