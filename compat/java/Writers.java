import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Transactional producers that live from order to order, so that a test can stop them in the middle of anything. */
final class Writers {
    private static final Map<String, KafkaProducer<byte[], byte[]>> WRITERS = new ConcurrentHashMap<>();

    private Writers() {}

    static Object open(JsonNode order, Properties settings) {
        settings.put("transactional.id", order.get("transactional_id").asText());
        settings.put("transaction.timeout.ms", order.get("timeout_ms").asText());
        settings.put("max.block.ms", "20000");
        settings.put("enable.idempotence", "true");
        KafkaProducer<byte[], byte[]> writer = new KafkaProducer<>(settings);
        WRITERS.put(order.get("writer").asText(), writer);
        writer.initTransactions();
        return Map.of();
    }

    static Object obey(JsonNode order) throws Exception {
        KafkaProducer<byte[], byte[]> writer = WRITERS.get(order.get("writer").asText());
        switch (order.get("what").asText()) {
            case "begin": writer.beginTransaction(); break;
            case "commit": writer.commitTransaction(); break;
            case "abort": writer.abortTransaction(); break;
            case "send": return send(order, writer);
            case "offset": offset(order, writer); break;
            case "close": writer.close(); break;
            default: throw new IllegalArgumentException("no such order: " + order);
        }
        return Map.of();
    }

    private static Object send(JsonNode order, KafkaProducer<byte[], byte[]> writer) throws Exception {
        byte[] value = order.get("value").asText().getBytes(StandardCharsets.UTF_8);
        var record = new ProducerRecord<byte[], byte[]>(order.get("topic").asText(), order.get("partition").asInt(), null, value);
        return Map.of("offset", writer.send(record).get(30, TimeUnit.SECONDS).offset());
    }

    private static void offset(JsonNode order, KafkaProducer<byte[], byte[]> writer) {
        var place = new TopicPartition(order.get("topic").asText(), order.get("partition").asInt());
        var offsets = Map.of(place, new OffsetAndMetadata(order.get("offset").asLong()));
        writer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(order.get("group").asText()));
    }
}
