import java.util.List;
import java.util.Map;
import org.apache.flink.avro.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;

/** What Confluent's client of a schema registry does: Registry URL SUBJECT prints one JSON line. */
public class Registry {
    private static AvroSchema record(String fields) {
        return new AvroSchema("{\"type\":\"record\",\"name\":\"User\",\"fields\":[" + fields + "]}");
    }

    interface Call {
        Object run() throws Exception;
    }

    private static int refused(Call call) throws Exception {
        try {
            call.run();
        } catch (RestClientException e) {
            return e.getErrorCode();
        }
        throw new IllegalStateException("the call was not refused");
    }

    public static void main(String[] args) throws Exception {
        String subject = args[1];
        String name = "{\"name\":\"name\",\"type\":\"string\"}";
        AvroSchema first = record(name);
        AvroSchema second = record(name + ",{\"name\":\"age\",\"type\":\"int\",\"default\":0}");
        AvroSchema broken = record("{\"name\":\"other\",\"type\":\"string\"}");
        var client = new CachedSchemaRegistryClient(args[0], 100);
        var other = new CachedSchemaRegistryClient(args[0], 100);
        int one = client.register(subject, first);
        int again = other.register(subject, first);
        int two = client.register(subject, second);
        int incompatible = refused(() -> client.register(subject, broken));
        boolean compatible = client.testCompatibility(subject, broken);
        List<String> messages = client.testCompatibilityVerbose(subject, broken);
        int version = other.getVersion(subject, second);
        String text = other.getSchemaById(two).canonicalString();
        var latest = other.getLatestSchemaMetadata(subject);
        String level = client.updateCompatibility(subject, "FULL") + "/" + other.getCompatibility(subject);
        int noMode = refused(() -> client.getMode(subject));
        String mode = client.setMode("READONLY", subject) + "/" + other.getMode(subject);
        int readOnly = refused(() -> client.register(subject, record(name + ",{\"name\":\"x\",\"type\":\"int\",\"default\":0}")));
        client.setMode("READWRITE", subject);
        AvroSchema holder = new AvroSchema(
            "{\"type\":\"record\",\"name\":\"Holder\",\"fields\":[{\"name\":\"user\",\"type\":\"User\"}]}",
            List.of(new SchemaReference("User", subject, 2)), Map.of("User", second.canonicalString()), null);
        int holderId = client.register(subject + "-holder", holder);
        String resolved = other.getSchemaById(holderId).rawSchema().toString();
        int referenced = refused(() -> client.deleteSubject(subject));
        client.deleteSubject(subject + "-holder");
        client.deleteSubject(subject + "-holder", true);
        var subjects = client.getAllSubjectsByPrefix(subject);
        var versions = client.getAllVersions(subject);
        var deleted = client.deleteSubject(subject);
        var purged = client.deleteSubject(subject, true);
        int gone = refused(() -> new CachedSchemaRegistryClient(args[0], 100).getAllVersions(subject));
        System.out.println(new ObjectMapper().writeValueAsString(Map.ofEntries(
            Map.entry("ids", List.of(one, again, two)), Map.entry("incompatible", incompatible),
            Map.entry("compatible", compatible), Map.entry("messages", messages.size()),
            Map.entry("version", version), Map.entry("text", text), Map.entry("latest", latest.getVersion()),
            Map.entry("level", level), Map.entry("modes", List.of(noMode, mode, readOnly)),
            Map.entry("resolved", resolved), Map.entry("referenced", referenced), Map.entry("subjects", subjects),
            Map.entry("versions", versions), Map.entry("deleted", deleted), Map.entry("purged", purged),
            Map.entry("gone", gone))));
    }
}
