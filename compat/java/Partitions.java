import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Where Kafka's own producer sends keys: a key in hex per line in, a partition per line out. */
public final class Partitions {
    public static void main(String[] arguments) throws Exception {
        int partitions = Integer.parseInt(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answer = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] key = HexFormat.of().parseHex(line);
            answer.append(BuiltInPartitioner.partitionForKey(key, partitions)).append('\n');
        }
        System.out.print(answer);
    }
}
