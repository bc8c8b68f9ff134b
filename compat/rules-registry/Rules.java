// Compatibility rules of others: reads {"format", "old", "new"} per line, prints {"kinds"} or {"error"} per line.
// AVRO: Avro's own SchemaCompatibility, which Confluent's registry and Apicurio use. JSON: Apicurio's rules.
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.JsonNode;
import io.apicurio.registry.rules.compatibility.jsonschema.JsonSchemaDiffLibrary;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

public class Rules {
    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode request = mapper.readTree(line);
            String before = request.get("old").asText();
            String after = request.get("new").asText();
            Object answer;
            try {
                answer = Map.of("kinds", request.get("format").asText().equals("AVRO") ? avro(before, after) : json(before, after));
            } catch (Exception error) {
                answer = Map.of("error", String.valueOf(error));
            }
            System.out.println(mapper.writeValueAsString(answer));
        }
    }

    static List<String> avro(String before, String after) {
        Schema writer = new Schema.Parser().parse(before);
        Schema reader = new Schema.Parser().parse(after);
        List<String> kinds = new ArrayList<>();
        SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getResult().getIncompatibilities()
            .forEach(difference -> kinds.add(difference.getType().name()));
        return kinds;
    }

    static List<String> json(String before, String after) {
        List<String> kinds = new ArrayList<>();
        JsonSchemaDiffLibrary.getIncompatibleDifferences(before, after, Map.of())
            .forEach(difference -> kinds.add(difference.getDiffType().name()));
        return kinds;
    }
}
