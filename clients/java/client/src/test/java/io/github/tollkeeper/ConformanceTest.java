package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.ByteString;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.function.ThrowingConsumer;

/** Runs the cases and faults that all clients share. ../../conformance/README.md describes their keys. */
class ConformanceTest {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Set<String> STEP_KEYS = Set.of("method", "descriptors", "hits", "calls", "mode", "estimate",
            "hits_by_kind", "while_open", "used", "used_by_kind", "end", "release", "fails", "commits", "expect", "raises",
            "with", "close_meanwhile", "leave_meanwhile", "renew", "expect_commit", "after", "limit", "ms");

    private final String id = Services.random();
    private final List<String> heard = Collections.synchronizedList(new ArrayList<>());
    private String address = "";
    private Client client;

    @TestFactory
    @EnabledIfEnvironmentVariable(named = Services.ADDR, matches = ".+")
    Stream<DynamicTest> cases() throws Exception {
        return tests("cases", one -> {
            JsonNode settings = one.path("client");
            try (Client connected = connect(settings)) {
                client = connected;
                runSteps(one.get("steps"));
            }
        });
    }

    private static Stream<DynamicTest> tests(String name, ThrowingConsumer<JsonNode> run) throws Exception {
        JsonNode all = read(name, "");
        assertTrue(all.size() > 20, all.size() + " " + name);
        return Stream.iterate(0, i -> i < all.size(), i -> i + 1).map(i ->
                DynamicTest.dynamicTest(all.get(i).get("name").asText(), () -> run.accept(read(name, Services.random()).get(i))));
    }

    private static JsonNode read(String name, String id) throws Exception {
        String file = name.equals("rows") ? "faults" : name;
        String text = Files.readString(Path.of("../../conformance/" + file + ".json"));
        return JSON.readTree(text.replace("{run}", id)).get(name);
    }

    private Client connect(JsonNode settings) throws Exception {
        String service = settings.path("service").asText("plain");
        String target = System.getenv(switch (service) {
            case "plain" -> Services.ADDR;
            case "tls", "tls without a certificate" -> "TOLLKEEPER_TLS_ADDR";
            case "gone" -> "TOLLKEEPER_GONE_ADDR";
            case "silent" -> "TOLLKEEPER_SILENT_ADDR";
            default -> throw new AssertionError(service);
        });
        Options options = options(settings, Options.of("conformance").timeout(Services.LONG));
        return service.startsWith("tls")
                ? Client.connect(target, Services.tls(service.equals("tls")), options,
                        channel -> channel.overrideAuthority("localhost"))
                : Client.connect(target, options);
    }

    private Options options(JsonNode settings, Options base) {
        Options options = settings.has("on_failure") ? base.onFailure(switch (settings.get("on_failure").asText()) {
            case "allow" -> Client.OnFailure.ALLOW;
            case "deny" -> Client.OnFailure.DENY;
            case "function" -> (error, descriptors) ->
                    descriptors.get(0).entries().get(0).key().toStringUtf8().equals("vip");
            case "throws" -> (error, descriptors) -> {
                throw new IllegalStateException("the function fails");
            };
            default -> throw new AssertionError(settings);
        }) : base;
        if (settings.has("timeout_ms")) {
            options = options.timeout(Duration.ofMillis(settings.get("timeout_ms").asLong()));
        }
        if (settings.has("commit_timeout_ms")) {
            options = options.commitTimeout(Duration.ofMillis(settings.get("commit_timeout_ms").asLong()));
        }
        if (settings.has("remember_denials_ms")) {
            options = options.rememberDenials(Duration.ofMillis(settings.get("remember_denials_ms").asLong()));
        }
        if (settings.has("domain")) {
            options = options.domain(settings.get("domain").asText());
        }
        return options.requireLimit(settings.path("require_limit").asBoolean());
    }

    @TestFactory
    @EnabledIfEnvironmentVariable(named = "TOLLKEEPER_FAULTS", matches = ".+")
    Stream<DynamicTest> faults() throws Exception {
        JsonNode addresses = JSON.readTree(System.getenv("TOLLKEEPER_FAULTS"));
        return tests("rows", row -> {
            if (row.path("optional").asBoolean()) {
                // A renewal waits in its thread, which cannot leave.
                return;
            }
            address = addresses.get(row.get("name").asText()).asText();
            List<String> lines = Services.log();
            ask("begin");
            heard.clear();
            Duration took = runRow(row);
            assertTrue(took.toMillis() >= row.path("at_least_ms").asLong(0), "took " + took);
            assertTrue(took.toMillis() <= row.path("at_most_ms").asLong(Long.MAX_VALUE), "took " + took);
            if (row.has("on_call")) {
                // Each line is a pattern: a code may be one of several.
                String wanted = list(row.get("on_call")).stream()
                        .map(it -> it.get(0).asText() + " (" + it.get(1).asText() + ")\n").collect(Collectors.joining());
                String actual = heard.stream().map(it -> it + "\n").collect(Collectors.joining());
                assertTrue(actual.matches(wanted), () -> "heard\n" + actual + "not\n" + wanted);
            }
            row.path("log").forEach(text -> assertTrue(
                    String.join("\n", lines).contains(text.asText().replace("{address}", address)), lines::toString));
            assertEquals(row.path("logs").asInt(lines.size()), lines.size(), lines::toString);
        });
    }

    private Duration runRow(JsonNode row) throws Exception {
        JsonNode settings = row.path("client");
        boolean hookThrows = settings.path("on_call").asText().equals("throws");
        Options options = options(settings, Services.options()).onCall((method, elapsed, outcome) -> {
            assertFalse(elapsed.isNegative());
            heard.add(method + " " + outcome);
            if (hookThrows) {
                throw new IllegalStateException("the hook fails");
            }
        });
        try (Client connected = settings.path("service").asText().equals("tls")
                ? Client.connect(address, Services.tls(false), options) : Client.connect(address, options)) {
            client = connected;
            long start = System.nanoTime();
            runSteps(row.get("steps"));
            return Duration.ofNanos(System.nanoTime() - start);
        }
    }

    /** Waits until it is so in the service of the row. */
    private void ask(String command) throws Exception {
        String[] parts = address.split(":");
        try (Socket socket = new Socket(parts[0], Integer.parseInt(parts[1]))) {
            socket.getOutputStream().write((command + "\n").getBytes(StandardCharsets.UTF_8));
            assertEquals("ok", new String(socket.getInputStream().readNBytes(2), StandardCharsets.UTF_8));
        }
    }

    private void runSteps(JsonNode steps) throws Exception {
        for (JsonNode step : steps) {
            step.fieldNames().forEachRemaining(key -> assertTrue(STEP_KEYS.contains(key), key));
            Thread closing = new Thread(() -> {
                try {
                    ask("sent " + step.get("close_meanwhile").asInt());
                    client.close();
                } catch (Exception error) {
                    throw new AssertionError(error);
                }
            });
            if (step.has("close_meanwhile")) {
                closing.start();
            }
            long start = System.nanoTime();
            runStep(step);
            assertTrue(System.nanoTime() - start < Duration.ofMinutes(5).toNanos(), "slow: " + step);
            closing.join();
        }
    }

    private void runStep(JsonNode step) throws Exception {
        Client with = step.has("with") ? client.with(options -> options(step.get("with"), options)) : client;
        if (step.has("raises")) {
            Exception error = assertThrows(IllegalArgumentException.class, () -> run(with, step), step::toString);
            step.get("raises").forEach(part ->
                    assertTrue(error.getMessage().contains(part.asText()), error.getMessage() + " lacks " + part));
            return;
        }
        if (step.has("leave_meanwhile")) {
            CompletableFuture<Hold> holding = with.holdAsync(Call.take(descriptors(step)));
            ask("sent " + step.get("leave_meanwhile").asInt());
            assertTrue(holding.cancel(true));
            return;
        }
        switch (step.get("method").asText()) {
            case "connected", "pinged" -> ask(step.get("method").asText());
            case "wait" -> Thread.sleep(step.get("ms").asLong());
            case "close" -> client.close();
            case "commit" -> compare(step.get("expect"), with.resume("token").commit(step.get("used").asLong()), step);
            default -> {
                List<Decision> decisions = run(with, step);
                JsonNode expect = step.path("expect");
                List<JsonNode> wanted = expect.isArray() ? list(expect) : List.of(expect);
                assertEquals(wanted.size(), decisions.size(), step::toString);
                for (int i = 0; i < wanted.size(); i++) {
                    compare(wanted.get(i), written(decisions.get(i)), "step " + step + ": " + decisions.get(i));
                }
            }
        }
    }

    private static void compare(JsonNode expected, CommitResult result, JsonNode step) {
        assertEquals(expected.get("error").isNull(), !result.failed(), () -> step + ": " + result);
        result.error().ifPresent(error ->
                assertTrue(error.getMessage().contains(expected.get("error").asText()), () -> step + ": " + result));
    }

    private List<Decision> run(Client with, JsonNode step) throws Exception {
        Descriptor[] on = descriptors(step);
        long hits = step.path("hits").asLong(1);
        return switch (step.get("method").asText()) {
            case "decide" -> List.of(step.has("hits") ? with.decide(hits, on) : with.decide(on));
            case "check" -> List.of(with.check(on));
            case "read" -> List.of(with.read(on));
            case "debit" -> List.of(with.debit(hits, on));
            case "part" -> List.of(with.part(hits, on));
            case "refund" -> List.of(with.refund(hits, on));
            case "hold" -> List.of(hold(with, step, on));
            case "decide_all" -> with.decideAll(list(step.get("calls")).stream().map(this::call).toList());
            default -> throw new AssertionError(step);
        };
    }

    private Call call(JsonNode call) {
        Descriptor[] on = descriptors(call);
        long hits = call.path("hits").asLong(1);
        Call decided = switch (call.path("mode").asText("take")) {
            case "take" -> Call.take(hits, on);
            case "check" -> Call.check(on);
            case "read" -> Call.read(on);
            case "debit" -> Call.debit(hits, on);
            case "part" -> Call.part(hits, on);
            default -> throw new AssertionError(call);
        };
        return decided.withId(call.path("id").asText(""));
    }

    private Descriptor[] descriptors(JsonNode step) {
        if (!step.has("descriptors")) {
            return new Descriptor[] {Descriptor.on("user", id)};
        }
        List<Descriptor> descriptors = new ArrayList<>();
        for (JsonNode entries : step.path("descriptors")) {
            Descriptor descriptor = new Descriptor(List.of());
            for (JsonNode entry : entries) {
                JsonNode value = entry.get(1);
                descriptor = value.has("hex")
                        ? descriptor.and(entry.get(0).asText(),
                                ByteString.copyFrom(HexFormat.of().parseHex(value.get("hex").asText())))
                        : descriptor.and(entry.get(0).asText(),
                                value.path("text").asText(value.asText()).repeat(value.path("times").asInt(1)));
            }
            if (step.has("limit")) {
                JsonNode limit = step.get("limit");
                Limit.Unit unit = Limit.Unit.valueOf(limit.get("unit").asText().toUpperCase(Locale.ROOT));
                descriptor = descriptor.withLimit(limit.get("requests_per_unit").asLong(), unit);
            }
            descriptors.add(descriptor);
        }
        return descriptors.toArray(Descriptor[]::new);
    }

    private static final class Failing extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    private Decision hold(Client with, JsonNode step, Descriptor[] on) throws Exception {
        List<Decision> decided = new ArrayList<>();
        boolean fails = step.path("fails").asBoolean();
        try (Hold hold = step.has("estimate") ? with.hold(step.get("estimate").asLong(), on)
                : with.hold(Call.take(on).withHitsByKind(kinds(step.path("hits_by_kind"))))) {
            decided.add(hold.decision());
            runSteps(step.path("while_open"));
            if (step.has("renew")) {
                JsonNode renewal = step.get("renew");
                compare(renewal.path("expect"),
                        written(hold.renew(renewal.get("used").asLong(), renewal.get("estimate").asLong())), step.toString());
            }
            if (step.has("used")) {
                hold.use(step.get("used").asLong());
            }
            hold.useByKind(kinds(step.path("used_by_kind")));
            hold.end(step.path("end").asText(""));
            JsonNode wanted = step.has("expect_commit") ? step.get("expect_commit") : JSON.readTree("{\"error\": null}");
            if (step.path("release").asBoolean()) {
                compare(wanted, hold.release(), step);
            }
            for (int i = 1; i < step.path("commits").asInt(1); i++) {
                compare(wanted, hold.commit(), step);
            }
            runSteps(step.path("after"));
            if (fails) {
                throw new Failing();
            }
        } catch (Failing expected) {
            assertTrue(fails);
        }
        return decided.get(0);
    }

    private static Map<String, Long> kinds(JsonNode node) {
        Map<String, Long> kinds = new LinkedHashMap<>();
        node.properties().forEach(it -> kinds.put(it.getKey(), it.getValue().asLong()));
        return kinds;
    }

    /** A decision as the cases write it. */
    private static JsonNode written(Decision decision) {
        ObjectNode node = JSON.createObjectNode()
                .put("allowed", decision.allowed())
                .put("failed", decision.failed())
                .put("limit", decision.limit().map(Limit::hits).orElse(null))
                .put("remaining", decision.remaining())
                .put("hits", decision.hits())
                .put("rule", decision.rule())
                .put("reset", decision.reset().compareTo(Duration.ZERO) > 0)
                .put("retry_after", decision.retryAfter().isPresent());
        decision.retryAfter().ifPresent(time -> assertTrue(time.toMillis() >= 1_000, decision::toString));
        node.put("hold", decision.hold()).set("headers", JSON.valueToTree(decision.headers()));
        decision.error().ifPresent(error -> node.put("error", error.getMessage()));
        for (Status status : decision.statuses()) {
            node.withArray("/statuses").addObject()
                    .put("allowed", status.allowed())
                    .put("limit", status.limit().map(Limit::hits).orElse(null))
                    .put("name", status.limit().map(Limit::name).orElse(""))
                    .put("remaining", status.remaining())
                    .put("rule", status.rule())
                    .put("used", boxed(status.used()))
                    .put("held", boxed(status.held()));
        }
        return node;
    }

    private static Long boxed(OptionalLong number) {
        return number.isPresent() ? number.getAsLong() : null;
    }

    /** Keys that are not expected are not compared. */
    private static void compare(JsonNode expected, JsonNode actual, String where) {
        expected.properties().forEach(field -> {
            String key = field.getKey();
            JsonNode wanted = field.getValue();
            JsonNode value = Optional.ofNullable(actual.get(key)).orElseThrow(() -> new AssertionError(key + ", " + where));
            if (wanted.isArray()) {
                assertEquals(wanted.size(), value.size(), where);
                for (int i = 0; i < wanted.size(); i++) {
                    compare(wanted.get(i), value.get(i), where);
                }
            } else if (key.equals("error")) {
                assertTrue(value.asText().contains(wanted.asText()), where);
            } else {
                assertEquals(wanted.toString(), value.toString(), key + ", " + where);
            }
        });
    }

    private static List<JsonNode> list(JsonNode nodes) {
        return StreamSupport.stream(nodes.spliterator(), false).toList();
    }
}
