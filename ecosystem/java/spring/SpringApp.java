import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * {@code SpringApp relay <bootstrap> <topic>}: a transactional listener that sends every record on, fails on some the
 * first time, and on others always. {@code SpringApp loop <bootstrap> <topic> <count>}: local transactions one after
 * the other, every fifth of them rolled back, those that were refused once more.
 */
public final class SpringApp {
    private static String bootstrap;
    private static String topic;

    private SpringApp() {}

    public static void main(String[] args) throws Exception {
        bootstrap = args[1];
        topic = args[2];
        System.setProperty("ecosystem.topic", topic);
        if (args[0].equals("loop")) {
            runLoop(Integer.parseInt(args[3]));
            return;
        }
        AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext(Settings.class);
        context.registerShutdownHook();
        System.out.println("ready");
        Thread.currentThread().join();
    }

    private static void runLoop(int count) {
        DefaultKafkaProducerFactory<String, String> producers = (DefaultKafkaProducerFactory<String, String>)
            new Settings().producers();
        KafkaTemplate<String, String> template = new KafkaTemplate<>(producers);
        int refused = 0;
        for (int i = 0; i < count; i++) {
            int number = i;
            try {
                template.executeInTransaction(operations -> {
                    for (int copy = 0; copy < 4; copy++) {
                        operations.send(topic, number + "-" + copy, Integer.toString(number));
                    }
                    if (number % 5 == 4) {
                        throw new IllegalStateException("rolled back on purpose");
                    }
                    return true;
                });
            } catch (IllegalStateException expected) {
                if (!"rolled back on purpose".equals(expected.getMessage())) {
                    throw expected;
                }
            } catch (InvalidTxnStateException error) {
                refused++;
                i--;
            }
        }
        producers.destroy();
        System.out.println("done " + count + " refused " + refused);
    }

    private static boolean isPoison(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof IllegalArgumentException) {
                return true;
            }
        }
        return false;
    }

    @Configuration
    @EnableKafka
    public static class Settings {
        @Bean
        public ProducerFactory<String, String> producers() {
            Map<String, Object> settings = new HashMap<>();
            settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
            settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
            settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
            settings.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, 10000);
            DefaultKafkaProducerFactory<String, String> factory = new DefaultKafkaProducerFactory<>(settings);
            factory.setTransactionIdPrefix(topic + "-tx-" + ProcessHandle.current().pid() + "-");
            return factory;
        }

        @Bean
        public KafkaTemplate<String, String> template(ProducerFactory<String, String> producers) {
            return new KafkaTemplate<>(producers);
        }

        @Bean
        public KafkaTransactionManager<String, String> transactions(ProducerFactory<String, String> producers) {
            return new KafkaTransactionManager<>(producers);
        }

        @Bean
        public ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory(
                KafkaTransactionManager<String, String> transactions, KafkaTemplate<String, String> template) {
            Map<String, Object> settings = new HashMap<>();
            settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
            settings.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
            settings.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
            settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
            settings.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
            settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6000);
            settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 1000);
            settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 20);
            ConcurrentKafkaListenerContainerFactory<String, String> factory =
                new ConcurrentKafkaListenerContainerFactory<>();
            factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(settings));
            factory.setConcurrency(3);
            factory.getContainerProperties().setKafkaAwareTransactionManager(transactions);
            DeadLetterPublishingRecoverer recoverer = new DeadLetterPublishingRecoverer(
                template, (record, error) -> new TopicPartition(topic + "-dead", record.partition()));
            DefaultAfterRollbackProcessor<String, String> afterRollback =
                new DefaultAfterRollbackProcessor<>(recoverer, new FixedBackOff(10L, 2L), template, true);
            // Only poison is given up; what failed because a node is away is tried until it works.
            afterRollback.setBackOffFunction((record, error) ->
                isPoison(error) ? null : new FixedBackOff(100L, FixedBackOff.UNLIMITED_ATTEMPTS));
            factory.setAfterRollbackProcessor(afterRollback);
            return factory;
        }

        @Bean
        public Relay relay(KafkaTemplate<String, String> template) {
            return new Relay(template);
        }
    }

    /** Sends "n" on as "done-n"; fails the first time for every 97th record, always for every 211th. */
    public static class Relay {
        private final KafkaTemplate<String, String> template;
        private final Set<Integer> failed = ConcurrentHashMap.newKeySet();

        public Relay(KafkaTemplate<String, String> template) {
            this.template = template;
        }

        @KafkaListener(topics = "${ecosystem.topic}-in", groupId = "${ecosystem.topic}")
        public void relay(ConsumerRecord<String, String> record) {
            int number = Integer.parseInt(record.value());
            template.send(topic + "-out", record.key(), "done-" + number);
            if (number % 211 == 210) {
                throw new IllegalArgumentException("always fails: " + number);
            }
            if (number % 97 == 96 && failed.add(number)) {
                throw new IllegalStateException("fails once: " + number);
            }
        }
    }
}
