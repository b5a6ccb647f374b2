package readme;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.Fake;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.springframework.boot.SpringApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.http.HttpStatus;
import org.springframework.web.server.ResponseStatusException;

/** Applications that tests start, and requests to them. */
final class Applications {
    private static final Logger LOGGER = Logger.getLogger(Client.class.getName());

    private Applications() {}

    /** The lines that clients log from now on, with what was thrown. */
    static List<String> log() {
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        LOGGER.setFilter(line -> lines.add(line.getMessage() + "; " + line.getThrown()));
        return lines;
    }

    /** What a function of an application returns for a key, and what it throws. */
    static String value(String key) {
        return switch (key) {
            case "tenant" -> "acme";
            case "broken" -> throw new IllegalStateException("a secret");
            case "stranger" -> throw new ResponseStatusException(HttpStatus.FORBIDDEN);
            default -> null;
        };
    }

    static ConfigurableApplicationContext start(Class<?> application, String... properties) {
        Stream<String> all = Stream.concat(Arrays.stream(properties), Stream.of("server.port=0", "logging.level.root=warn",
                "spring.main.banner-mode=off"));
        return SpringApplication.run(application, all.map(property -> "--" + property).toArray(String[]::new));
    }

    static HttpResponse<String> get(ConfigurableApplicationContext context, String path, String... headers)
            throws Exception {
        return send(context, "GET", path, headers);
    }

    static HttpResponse<String> send(
            ConfigurableApplicationContext context, String method, String path, String... headers) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(request(context, path, headers), (name, value) -> true)
                .method(method, HttpRequest.BodyPublishers.noBody()).build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    }

    static HttpRequest request(ConfigurableApplicationContext context, String path, String... headers) {
        String port = context.getEnvironment().getProperty("local.server.port");
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path));
        return (headers.length > 0 ? request.headers(headers) : request).build();
    }

    /** A client that invents methods has no counter for each of them, and HEAD is served as GET. */
    static void countsMethodsOfAHandlerAsOne(Class<?> application) throws Exception {
        try (var context = start(application)) {
            fake(context).deny(Descriptor.on("method", "other").and("tenant", "acme").and("region", "eu"),
                    Descriptor.on("method", "GET").and("tenant", "acme").and("region", "eu"));
            assertEquals(429, send(context, "BREW", "/regions/eu").statusCode());
            assertEquals(429, send(context, "HEAD", "/regions/eu").statusCode());
            assertEquals(200, send(context, "PUT", "/regions/eu").statusCode());
        }
    }

    static Fake fake(ConfigurableApplicationContext context) {
        return context.getBean(Fake.class);
    }
}
