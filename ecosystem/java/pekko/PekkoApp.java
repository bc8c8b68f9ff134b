import com.typesafe.config.ConfigFactory;
import java.time.Duration;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.pekko.Done;
import org.apache.pekko.actor.ActorSystem;
import org.apache.pekko.kafka.CommitterSettings;
import org.apache.pekko.kafka.ConsumerSettings;
import org.apache.pekko.kafka.ProducerMessage;
import org.apache.pekko.kafka.ProducerSettings;
import org.apache.pekko.kafka.Subscriptions;
import org.apache.pekko.kafka.javadsl.Consumer;
import org.apache.pekko.kafka.javadsl.Producer;
import org.apache.pekko.kafka.javadsl.Transactional;
import org.apache.pekko.stream.RestartSettings;
import org.apache.pekko.stream.javadsl.RestartSource;
import org.apache.pekko.stream.javadsl.Sink;
import org.apache.pekko.stream.javadsl.Source;

/**
 * {@code PekkoApp produce|commit|transact <bootstrap> <topic prefix> <count>}: a plain producer of numbers, a
 * committable source into a committing sink, and a transactional flow; the two flows send "n" on as "done-n" and
 * restart when they fail.
 */
public final class PekkoApp {
    private PekkoApp() {}

    public static void main(String[] args) throws Exception {
        String prefix = args[2];
        ActorSystem system = ActorSystem.create("ecosystem", ConfigFactory.load());
        ProducerSettings<String, String> producer = ProducerSettings.create(
                system, new StringSerializer(), new StringSerializer())
            .withBootstrapServers(args[1])
            .withEosCommitInterval(Duration.ofMillis(50));
        ConsumerSettings<String, String> consumer = ConsumerSettings.create(
                system, new StringDeserializer(), new StringDeserializer())
            .withBootstrapServers(args[1])
            .withGroupId(prefix + "-" + args[0])
            .withProperty(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest")
            .withProperty(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, "6000")
            .withProperty(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, "1000");
        RestartSettings restarts = RestartSettings.create(Duration.ofMillis(200), Duration.ofSeconds(2), 0.1);
        CompletionStage<Done> work = switch (args[0]) {
            case "produce" -> Source.range(0, Integer.parseInt(args[3]) - 1)
                .map(number -> new ProducerRecord<>(prefix + "-in", number.toString(), number.toString()))
                .runWith(Producer.plainSink(producer), system);
            case "commit" -> RestartSource.onFailuresWithBackoff(restarts, () ->
                    Consumer.committableSource(consumer, Subscriptions.topics(prefix + "-in"))
                        .map(message -> ProducerMessage.single(
                            new ProducerRecord<>(
                                prefix + "-out", message.record().key(), "done-" + message.record().value()),
                            message.committableOffset()))
                        .via(Producer.flexiFlow(producer))
                        .map(result -> result.passThrough())
                        .via(org.apache.pekko.kafka.javadsl.Committer.flow(CommitterSettings.create(system))))
                .runWith(Sink.ignore(), system);
            case "transact" -> RestartSource.onFailuresWithBackoff(restarts, () ->
                    Transactional.source(consumer, Subscriptions.topics(prefix + "-in"))
                        .map(message -> ProducerMessage.single(
                            new ProducerRecord<>(
                                prefix + "-out", message.record().key(), "done-" + message.record().value()),
                            message.partitionOffset()))
                        .via(Transactional.flow(producer, prefix + "-transactions")))
                .runWith(Sink.ignore(), system);
            default -> throw new IllegalArgumentException("no stream " + args[0]);
        };
        System.out.println("started");
        work.whenComplete((done, error) -> {
            System.out.println(error == null ? "stream finished" : "stream failed: " + error);
            system.terminate();
        });
        system.getWhenTerminated().toCompletableFuture().get(1, TimeUnit.DAYS);
        System.exit(work.toCompletableFuture().isCompletedExceptionally() ? 1 : 0);
    }
}
