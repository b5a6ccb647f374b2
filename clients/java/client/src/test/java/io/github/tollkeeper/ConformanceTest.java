package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.ByteString;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** Runs the cases that all clients share. ../../conformance/README.md describes their keys. */
@EnabledIfEnvironmentVariable(named = Services.ADDR, matches = ".+")
class ConformanceTest {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Set<String> STEP_KEYS = Set.of("method", "descriptors", "hits", "calls", "mode", "estimate",
            "hits_by_kind", "while_open", "used", "used_by_kind", "end", "release", "fails", "commits", "expect", "raises");

    @TestFactory
    Stream<DynamicTest> cases() throws Exception {
        String text = Files.readString(Path.of("../../conformance/cases.json"));
        int count = JSON.readTree(text).get("cases").size();
        assertTrue(count > 20, count + " cases");
        return Stream.iterate(0, i -> i < count, i -> i + 1).map(i -> {
            JsonNode one = parse(text.replace("{run}", Services.random())).get("cases").get(i);
            return DynamicTest.dynamicTest(one.get("name").asText(), () -> {
                try (Client client = connect(one.path("client"))) {
                    runSteps(client, one.get("steps"));
                }
            });
        });
    }

    private static JsonNode parse(String text) {
        try {
            return JSON.readTree(text);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private static Client connect(JsonNode settings) throws Exception {
        String service = settings.path("service").asText("plain");
        Client.Builder builder = Client.builder(System.getenv(switch (service) {
            case "plain" -> Services.ADDR;
            case "tls", "tls without a certificate" -> "TOLLKEEPER_TLS_ADDR";
            case "gone" -> "TOLLKEEPER_GONE_ADDR";
            case "silent" -> "TOLLKEEPER_SILENT_ADDR";
            default -> throw new AssertionError(service);
        }), settings.path("domain").asText("conformance"));
        if (service.startsWith("tls")) {
            builder.tls(Services.tls(service.equals("tls"))).serverName("localhost");
        }
        return builder.timeout(Duration.ofMillis(settings.path("timeout_ms").asLong(Services.LONG.toMillis())))
                .onFailure(switch (settings.path("on_failure").asText("allow")) {
                    case "allow" -> Client.OnFailure.ALLOW;
                    case "deny" -> Client.OnFailure.DENY;
                    case "function" -> (error, descriptors) ->
                            descriptors.get(0).entries().get(0).key().toStringUtf8().equals("vip");
                    default -> throw new AssertionError(settings);
                }).build();
    }

    private static void runSteps(Client client, JsonNode steps) {
        for (JsonNode step : steps) {
            step.fieldNames().forEachRemaining(key -> assertTrue(STEP_KEYS.contains(key), key));
            long start = System.nanoTime();
            if (step.has("raises")) {
                Exception error = assertThrows(IllegalArgumentException.class, () -> run(client, step), step::toString);
                step.get("raises").forEach(part ->
                        assertTrue(error.getMessage().contains(part.asText()), error.getMessage() + " lacks " + part));
            } else {
                List<Decision> decisions = run(client, step);
                JsonNode expect = step.path("expect");
                List<JsonNode> wanted = expect.isArray() ? list(expect) : List.of(expect);
                assertEquals(wanted.size(), decisions.size(), step::toString);
                for (int i = 0; i < wanted.size(); i++) {
                    compare(wanted.get(i), written(decisions.get(i)), "step " + step + ": " + decisions.get(i));
                }
            }
            assertTrue(System.nanoTime() - start < Duration.ofSeconds(20).toNanos(), "slow: " + step);
        }
    }

    private static List<Decision> run(Client client, JsonNode step) {
        Descriptor[] on = descriptors(step);
        long hits = step.path("hits").asLong(1);
        return switch (step.get("method").asText()) {
            case "decide" -> List.of(step.has("hits") ? client.decide(hits, on) : client.decide(on));
            case "check" -> List.of(client.check(on));
            case "read" -> List.of(client.read(on));
            case "debit" -> List.of(client.debit(hits, on));
            case "part" -> List.of(client.part(hits, on));
            case "refund" -> List.of(client.refund(hits, on));
            case "hold" -> List.of(hold(client, step, on));
            case "decide_all" -> client.decideAll(list(step.get("calls")).stream().map(ConformanceTest::call).toList());
            default -> throw new AssertionError(step);
        };
    }

    private static Call call(JsonNode call) {
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

    private static Descriptor[] descriptors(JsonNode step) {
        List<Descriptor> descriptors = new ArrayList<>();
        for (JsonNode entries : step.path("descriptors")) {
            Descriptor descriptor = new Descriptor(List.of());
            for (JsonNode entry : entries) {
                JsonNode value = entry.get(1);
                descriptor = value.has("hex")
                        ? descriptor.and(entry.get(0).asText(),
                                ByteString.copyFrom(HexFormat.of().parseHex(value.get("hex").asText())))
                        : descriptor.and(entry.get(0).asText(), value.asText());
            }
            descriptors.add(descriptor);
        }
        return descriptors.toArray(Descriptor[]::new);
    }

    private static final class Failing extends RuntimeException {
        private static final long serialVersionUID = 1;
    }

    private static Decision hold(Client client, JsonNode step, Descriptor[] on) {
        List<Decision> decided = new ArrayList<>();
        boolean fails = step.path("fails").asBoolean();
        try (Hold hold = step.has("estimate") ? client.hold(step.get("estimate").asLong(), on)
                : client.hold(Call.take(on).withHitsByKind(kinds(step.path("hits_by_kind"))))) {
            decided.add(hold.decision());
            runSteps(client, step.path("while_open"));
            if (step.has("used")) {
                hold.use(step.get("used").asLong());
            }
            hold.useByKind(kinds(step.path("used_by_kind")));
            hold.end(step.path("end").asText(""));
            if (step.path("release").asBoolean()) {
                assertTrue(!hold.release().hasError());
            }
            for (int i = 1; i < step.path("commits").asInt(1); i++) {
                assertTrue(!hold.commit().hasError());
            }
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
