import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs one command-line tool of Apache Kafka inside this JVM, so that twenty tools cost one start.
 * A tool's exit becomes an exception through Kafka's own exit hook; its output is captured.
 */
final class ToolRunner {
    private static final class ToolExit extends RuntimeException {
        final int code;

        ToolExit(int code) {
            super("exit " + code, null, false, false);
            this.code = code;
        }
    }

    private ToolRunner() {}

    static Map<String, Object> run(String mainClass, String[] args) throws Exception {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream outBytes = new ByteArrayOutputStream();
        ByteArrayOutputStream errBytes = new ByteArrayOutputStream();
        int[] first = {Integer.MIN_VALUE};
        Exit.Procedure hook = (code, message) -> {
            if (first[0] == Integer.MIN_VALUE) {
                first[0] = code;
            }
            throw new ToolExit(code);
        };
        Exit.setExitProcedure(hook);
        Exit.setHaltProcedure(hook);
        System.setOut(new PrintStream(outBytes, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errBytes, true, StandardCharsets.UTF_8));
        int code = 0;
        try {
            // Scala's Console remembers the streams of its first use; the Scala tools print through it.
            scala.Console$.MODULE$.setOutDirect(System.out);
            scala.Console$.MODULE$.setErrDirect(System.err);
            Class.forName(mainClass).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof ToolExit)) {
                code = 1;
                e.getCause().printStackTrace();
            }
        } finally {
            System.out.flush();
            System.err.flush();
            System.setOut(out);
            System.setErr(err);
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
        }
        if (first[0] != Integer.MIN_VALUE) {
            code = first[0];
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("exit", code);
        result.put("out", outBytes.toString(StandardCharsets.UTF_8));
        result.put("err", errBytes.toString(StandardCharsets.UTF_8));
        return result;
    }
}
