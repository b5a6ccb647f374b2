package readme;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tollkeeper.Call;
import io.github.tollkeeper.Client;
import io.github.tollkeeper.Decision;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.Fake;
import io.github.tollkeeper.Hold;
import io.github.tollkeeper.Options;
import io.github.tollkeeper.RateLimitFilter;
import io.github.tollkeeper.RateLimitServerInterceptor;
import io.grpc.ChannelCredentials;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.File;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import tollkeeper.v1.DecideRequest;
import tollkeeper.v1.TollkeeperGrpc;

/** Has the code of README.md, apart from its indentation; the tests of the starter have the rest. */
class ReadmeTest {
    private final String user = UUID.randomUUID().toString();

    @Test
    void everySampleIsRunByATest() throws Exception {
        String code = unindented(Path.of("src/test/java/readme/ReadmeTest.java"))
                + unindented(Path.of("../spring-boot-starter/src/test/java/readme/StarterTest.java"))
                + unindented(Path.of("../spring-boot-starter/src/test/java/readme/WebFluxTest.java"));
        List<String> samples = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL)
                .matcher(unindented(Path.of("../README.md"))).results().map(MatchResult::group).toList();
        assertTrue(samples.size() > 7, samples.size() + " samples");
        for (String sample : samples) {
            String text = sample.substring("```java\n".length(), sample.length() - "```".length());
            assertTrue(code.contains(text), "no test has\n" + text);
        }
    }

    private static String unindented(Path file) throws Exception {
        return Files.readString(file).replaceAll("(?m)^ +", "");
    }

    private static final Context.Key<String> USER = Context.key("user");

    @Test
    void theInterceptorLimitsTheUserThatAuthenticationHasFound() throws Exception {
        Fake fake = new Fake();
        Client client = fake.client("example");
        int port = 0;
        TollkeeperGrpc.TollkeeperImplBase service = new TollkeeperGrpc.TollkeeperImplBase() {};
        ServerInterceptor authentication = new ServerInterceptor() {
            @Override
            public <Q, A> ServerCall.Listener<Q> interceptCall(
                    ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
                return Contexts.interceptCall(Context.current().withValue(USER, "alice"), call, headers, next);
            }
        };
        Server server = Grpc.newServerBuilderForPort(port, InsecureServerCredentials.create())
                .addService(service)
                .intercept(new RateLimitServerInterceptor(client, (call, headers) -> List.of(Descriptor.on("user", USER.get()))))
                .intercept(authentication)
                .build();
        server.start();
        ManagedChannel channel =
                Grpc.newChannelBuilder("localhost:" + server.getPort(), InsecureChannelCredentials.create()).build();
        // The service itself implements nothing.
        StatusRuntimeException failure = assertThrows(StatusRuntimeException.class,
                () -> TollkeeperGrpc.newBlockingStub(channel).decide(DecideRequest.getDefaultInstance()));
        assertEquals(Status.Code.UNIMPLEMENTED, failure.getStatus().getCode());
        assertEquals(List.of(Call.take(1, Descriptor.on("user", "alice"))), fake.calls());
        channel.shutdownNow();
        server.shutdownNow();
    }

    private static Client exampleClient() {
        return Client.connect(System.getenv("TOLLKEEPER_ADDR"),
                Options.of("conformance").timeout(Duration.ofSeconds(10)).onFailure(Client.OnFailure.DENY));
    }

    /** A request or a response with one method that the samples use; the others return null. */
    private static <T> T only(Class<T> type, Map<Object, Object> answers) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
                (self, method, arguments) -> answers.merge(
                        arguments == null ? method.getName() : arguments[0], 1, (answer, one) -> answer)));
    }

    /** Stands for a histogram of Prometheus. */
    private record Calls(Map<String, Double> observed, String name) {
        Calls labels(String... labels) {
            return new Calls(observed, String.join(" ", labels));
        }

        void observe(double seconds) {
            observed.put(name, seconds);
        }
    }

    @Test
    void aClientIsWarmedUp() {
        Client client = Client.connect("localhost:8081", "example");
        client.warmUp(Duration.ofSeconds(5));
        client.close();
    }

    @Test
    void clientsShareConnectionsAndTheHookIsCalled() {
        Calls calls = new Calls(new ConcurrentHashMap<>(), "");
        Client client = Client.connect("localhost:8081", Options.of("example")
                .timeout(Duration.ofMillis(20))
                .onCall((method, elapsed, outcome) -> calls.labels(method, outcome).observe(elapsed.toNanos() / 1e9)));
        Client logins = client.with(options -> options.domain("logins").onFailure(Client.OnFailure.DENY));
        Client patient = client.with(options -> options.timeout(Duration.ofSeconds(1)));
        // Without connections, nothing answers.
        client.close();
        assertFalse(logins.decide(Descriptor.on("user", user)).allowed());
        assertTrue(patient.decide(Descriptor.on("user", user)).allowed());
        assertEquals(Set.of("decide UNAVAILABLE"), calls.observed().keySet());
    }

    @Test
    void aUnitTest() {
        Fake fake = new Fake().limit(1, Descriptor.on("user", "alice")).deny(Descriptor.on("user", "mallory"));
        Client client = fake.client("example");
        assertTrue(client.decide(Descriptor.on("user", "alice")).allowed());
        assertFalse(client.decide(Descriptor.on("user", "alice")).allowed());
        assertEquals(Call.take(1, Descriptor.on("user", "alice")), fake.calls().get(0));
        fake.fail(Status.Code.UNAVAILABLE);
        assertTrue(client.decide(Descriptor.on("user", "mallory")).failed());
    }

    @Test
    @EnabledIfEnvironmentVariable(named = "TOLLKEEPER_ADDR", matches = ".+")
    void a429InThreeLines() throws Exception {
        Map<Object, Object> sent = new ConcurrentHashMap<>();
        HttpServletRequest request = only(HttpServletRequest.class, new ConcurrentHashMap<>(Map.of("getRemoteUser", user)));
        HttpServletResponse response = only(HttpServletResponse.class, sent);
        try (Client client = exampleClient()) {
            for (List<Integer> expected : List.of(List.<Integer>of(), List.of(429))) {
                if (!client.decide(Descriptor.on("user", request.getRemoteUser())).allowed()) {
                    response.sendError(429);
                }
                assertEquals(expected, List.copyOf(sent.keySet()));
                client.debit(1000, Descriptor.on("user", user));
            }
        }
    }

    @Test
    @EnabledIfEnvironmentVariable(named = "TOLLKEEPER_ADDR", matches = ".+")
    void aBatch() {
        try (Client client = exampleClient()) {
            List<Decision> decisions = client.decideAll(List.of(
                    Call.take(3, Descriptor.on("user", "alice")),
                    Call.debit(200, Descriptor.on("user", "bob")),
                    Call.check(Descriptor.on("user", "carol"))));
            assertEquals(List.of(true, true, true), decisions.stream().map(Decision::allowed).toList());
        }
    }

    private record Answer(String text, long tokens) {}

    private interface Model {
        Answer ask(String question);
    }

    private String work(Client client) {
        Model model = question -> new Answer("because", 42);
        String question = "why";
        try (Hold hold = client.hold(400, Descriptor.on("user", user))) {
            if (!hold.allowed()) {
                return "try again in " + hold.decision().retryAfter().map(Duration::toSeconds).orElse(1L) + " s";
            }
            Answer answer = model.ask(question);
            hold.commit(answer.tokens());
            return answer.text();
        }
    }

    @Test
    @EnabledIfEnvironmentVariable(named = "TOLLKEEPER_ADDR", matches = ".+")
    void aHoldIsCommitted() {
        try (Client client = exampleClient()) {
            for (int i = 0; i < 15; i++) {
                assertEquals("because", work(client));
            }
            assertEquals(15 * 42, client.read(Descriptor.on("user", user)).statuses().get(0).used().orElseThrow());
            // 400 do not fit beside 630 of 1,000.
            assertTrue(work(client).matches("try again in [1-9][0-9]* s"));
        }
    }

    @Test
    void theFilterIsMade() {
        Client client = new Fake().client("example");
        Filter filter = new RateLimitFilter(client, request -> request.getRequestURI().equals("/healthz")
                ? List.of()
                : List.of(Descriptor.on("user", request.getRemoteUser())),
                (request, response, decision) -> {
                    response.setContentType("application/json");
                    response.getWriter().print("{\"retry_after\": \"" + response.getHeader("Retry-After") + "\"}");
                });
        assertTrue(filter instanceof RateLimitFilter);
    }

    @Test
    @EnabledIfEnvironmentVariable(named = "TOLLKEEPER_ADDR", matches = ".+")
    void aClientShowsItsCertificate() throws Exception {
        // The files have the names of the sample in the working directory, which a JVM cannot change.
        List<String> names = List.of("ca.pem", "client.pem", "client.key");
        List<String> variables = List.of("TOLLKEEPER_CA", "TOLLKEEPER_CERT", "TOLLKEEPER_KEY");
        for (int i = 0; i < 3; i++) {
            Path link = Path.of(names.get(i));
            Files.deleteIfExists(link);
            Files.createSymbolicLink(link, Path.of(System.getenv(variables.get(i))));
        }
        String address = System.getenv("TOLLKEEPER_TLS_ADDR");
        ChannelCredentials tls = TlsChannelCredentials.newBuilder()
                .trustManager(new File("ca.pem"))
                .keyManager(new File("client.pem"), new File("client.key"))
                .build();
        Client client = Client.connect(address, tls, Options.of("conformance").timeout(Duration.ofSeconds(10)),
                channel -> channel.overrideAuthority("localhost"));
        for (String name : names) {
            Files.delete(Path.of(name));
        }
        assertEquals(3, client.check(Descriptor.on("three", user)).remaining());
        client.close();
    }
}
