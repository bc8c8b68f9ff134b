import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.CheckpointingMode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * {@code FlinkJob <bootstrap> <topic prefix> <folder> <restore from or ->}: reads "-in" and writes "done-..." to
 * "-out", exactly once, on a local cluster of two slots, until it is killed. Its map fails once, at the first record
 * that a run without a file named "failed" sees after its 400th.
 */
public final class FlinkJob {
    private FlinkJob() {}

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String prefix = args[1];
        Path folder = Path.of(args[2]);
        Configuration settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "fixed-delay");
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_ATTEMPTS, 50);
        settings.set(RestartStrategyOptions.RESTART_STRATEGY_FIXED_DELAY_DELAY, java.time.Duration.ofMillis(500));
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, folder.resolve("checkpoints").toUri().toString());
        settings.set(
            CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
            ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        if (!args[3].equals("-")) {
            settings.set(StateRecoveryOptions.SAVEPOINT_PATH, args[3]);
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        environment.enableCheckpointing(300, CheckpointingMode.EXACTLY_ONCE);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(bootstrap)
            .setTopics(prefix + "-in")
            .setGroupId(prefix)
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(prefix)
            .setProperty("transaction.timeout.ms", "600000")
            .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                .setTopic(prefix + "-out")
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "in")
            .map(new Relay(folder.resolve("failed").toString()))
            .sinkTo(sink);
        environment.execute("relay");
    }

    /** Slow enough that many checkpoints are taken, and fails once. */
    public static final class Relay extends RichMapFunction<String, String> {
        private final String failedFile;
        private int count;

        Relay(String failedFile) {
            this.failedFile = failedFile;
        }

        @Override
        public String map(String value) throws Exception {
            count++;
            if (count % 10 == 0) {
                Thread.sleep(10);
            }
            Path failed = Path.of(failedFile);
            if (count > 400 && !Files.exists(failed)) {
                Files.write(failed, value.getBytes(StandardCharsets.UTF_8));
                throw new IllegalStateException("fails once, at " + value);
            }
            return "done-" + value;
        }
    }
}
