import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Makes a call for each line of stdin, such as user=alice or path=/login,user=alice.
 *
 * <p>echo user=alice | java -cp 'target/classes:target/lib/*' Main localhost:8081 example [DEADLINE_MS]
 */
final class Main {
    public static void main(String[] arguments) throws IOException {
        long deadline = arguments.length > 2 ? Long.parseLong(arguments[2]) : 50;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (RateLimit limiter = new RateLimit(arguments[0], Duration.ofMillis(deadline))) {
            for (String line; (line = lines.readLine()) != null; ) {
                System.out.println(describe(limiter.allow(arguments[1], descriptor(line))));
            }
        }
    }

    private static Map<String, String> descriptor(String line) {
        Map<String, String> descriptor = new LinkedHashMap<>();
        for (String entry : line.split(",")) {
            String[] parts = entry.split("=", 2);
            descriptor.put(parts[0], parts[1]);
        }
        return descriptor;
    }

    private static String describe(RateLimit.Decision decision) {
        String verdict = decision.allowed() ? "allowed" : "denied";
        if (decision.failure() != null) {
            return verdict + ", no answer";
        }
        if (decision.limit() == 0) {
            return verdict + ", no limit";
        }
        StringBuilder text = new StringBuilder();
        text.append(verdict).append(", ").append(decision.remaining()).append(" of ");
        text.append(decision.limit()).append(" left, resets in ");
        text.append(decision.reset().toSeconds()).append(" s");
        decision.headers().forEach((name, value) -> text.append("; " + name + ": " + value));
        return text.toString();
    }
}
