import java.io.FileInputStream;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * One of three topologies, run until SIGTERM: {@code StreamsApp <topology> <properties file> <topic prefix>}.
 * Prints its state changes, and any exception that ends a stream thread; the thread is then replaced.
 */
final class StreamsApp {
    private StreamsApp() {}

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream file = new FileInputStream(args[1])) {
            properties.load(file);
        }
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        StreamsBuilder builder = new StreamsBuilder();
        switch (args[0]) {
            case "words" -> countWords(builder, args[2]);
            case "joins" -> join(builder, args[2]);
            case "sums" -> sum(builder, args[2]);
            default -> throw new IllegalArgumentException("no topology " + args[0]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(properties), properties);
        CountDownLatch closed = new CountDownLatch(1);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("stream thread failed: " + error);
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(60));
            closed.countDown();
        }));
        streams.start();
        closed.await();
    }

    /** Lines to words to counts, through a repartition topic. */
    private static void countWords(StreamsBuilder builder, String prefix) {
        KStream<String, String> lines = builder.stream(prefix + "-lines");
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(prefix + "-counts");
    }

    /** Orders with payments in a window, orders with the table of customers, customers with the table of cities. */
    private static void join(StreamsBuilder builder, String prefix) {
        KTable<String, String> customers = builder.table(prefix + "-customers");
        KTable<String, String> cities = builder.table(prefix + "-cities");
        KStream<String, String> orders = builder.stream(prefix + "-orders");
        KStream<String, String> payments = builder.stream(prefix + "-payments");
        orders.join(
                payments,
                (order, payment) -> order + "+" + payment,
                JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(10)))
            .to(prefix + "-paid");
        orders.leftJoin(customers, (order, customer) -> order + "+" + customer).to(prefix + "-named");
        customers.join(cities, (customer, city) -> customer + "+" + city).toStream().to(prefix + "-places");
    }

    /** Running sums by key: every record of the output tells whether one before it was lost or taken twice. */
    private static void sum(StreamsBuilder builder, String prefix) {
        KStream<String, String> numbers = builder.stream(prefix + "-numbers");
        numbers.groupByKey()
            .aggregate(
                () -> "0",
                (key, number, sum) -> Long.toString(Long.parseLong(sum) + Long.parseLong(number)),
                Materialized.as("sums"))
            .toStream()
            .to(prefix + "-sums");
    }
}
