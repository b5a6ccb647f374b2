import io.github.tollkeeper.Client;
import io.github.tollkeeper.Decision;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.Options;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;

/**
 * Makes a call for each line of stdin, such as user=alice or path=/login,user=alice.
 *
 * <p>echo user=alice | java -cp 'target/classes:target/lib/*' Main localhost:8081 example [DEADLINE_MS]
 */
final class Main {
    public static void main(String[] arguments) throws IOException {
        long deadline = arguments.length > 2 ? Long.parseLong(arguments[2]) : 50;
        Options options = Options.of(arguments[1])
                .timeout(Duration.ofMillis(deadline))
                // DENY fails closed.
                .onFailure(Client.OnFailure.ALLOW);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        // With TLS: Client.connect(arguments[0], TlsChannelCredentials.create(), options)
        try (Client client = Client.connect(arguments[0], options)) {
            client.warmUp(Duration.ofSeconds(2));
            for (String line; (line = lines.readLine()) != null; ) {
                System.out.println(describe(client.decide(descriptor(line))));
            }
        }
    }

    private static Descriptor descriptor(String line) {
        Descriptor descriptor = new Descriptor(List.of());
        for (String entry : line.split(",")) {
            String[] parts = entry.split("=", 2);
            descriptor = descriptor.and(parts[0], parts[1]);
        }
        return descriptor;
    }

    private static String describe(Decision decision) {
        String verdict = decision.allowed() ? "allowed" : "denied";
        if (decision.failed()) {
            return verdict + ", no answer";
        }
        if (decision.limit().isEmpty()) {
            return verdict + ", no limit";
        }
        StringBuilder text = new StringBuilder();
        text.append(verdict).append(", ").append(decision.remaining()).append(" of ");
        text.append(decision.limit().get().hits()).append(" left, resets in ");
        text.append(decision.reset().toSeconds()).append(" s");
        decision.headers().forEach((name, value) -> text.append("; " + name + ": " + value));
        return text.toString();
    }
}
