package readme;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static readme.Applications.fake;
import static readme.Applications.get;
import static readme.Applications.request;
import static readme.Applications.send;
import static readme.Applications.start;

import io.github.tollkeeper.Call;
import io.github.tollkeeper.Client;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.Fake;
import io.github.tollkeeper.Options;
import io.github.tollkeeper.spring.RateLimitWebFilter;
import io.github.tollkeeper.spring.RateLimited;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.net.http.HttpClient;
import java.net.http.HttpResponse;
import java.security.Principal;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Import;
import org.springframework.core.annotation.Order;
import org.springframework.web.bind.annotation.CrossOrigin;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PutMapping;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.reactive.result.method.annotation.RequestMappingHandlerMapping;
import org.springframework.web.server.WebFilter;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;
import tollkeeper.v1.DecideRequest;
import tollkeeper.v1.DecideResponse;
import tollkeeper.v1.TollkeeperGrpc;
import tollkeeper.v1.Verdict;

/** Applications of WebFlux with the starter, in Netty. */
class WebFluxTest {
    static class Base {
        @Bean
        Fake fake() {
            return new Fake();
        }

        @Bean
        Client client(Fake fake) {
            return fake.client(Options.of("example").onFailure(Client.OnFailure.DENY));
        }

        /** Stands for an authentication, which finds the user. */
        @Bean
        @Order(0)
        WebFilter users() {
            return (exchange, chain) -> {
                String name = exchange.getRequest().getHeaders().getFirst("X-User");
                // As an access log may: the address has its name from then on.
                exchange.getRequest().getRemoteAddress().getHostName();
                Mono<Principal> principal = Mono.justOrEmpty(name).map(user -> () -> user);
                return chain.filter(exchange.mutate().principal(principal).build());
            };
        }
    }

    @RestController
    @EnableAutoConfiguration
    static class Limited extends Base {
        @Bean
        RateLimitWebFilter.Descriptors descriptors() {
            return exchange -> exchange.getPrincipal().map(user -> List.of(Descriptor.on("user", user.getName())));
        }

        @GetMapping("/")
        Mono<String> hello() {
            return Mono.just("served");
        }
    }

    @RestController
    @RateLimited("nobody")
    @EnableAutoConfiguration
    static class Routes extends Base {
        @Bean
        RateLimitWebFilter.Values values() {
            return (exchange, key) -> Applications.value(key);
        }

        @Bean
        RateLimitWebFilter.Denial denial() {
            return (exchange, decision) -> exchange.getResponse().writeWith(
                    Mono.just(exchange.getResponse().bufferFactory().wrap("slower".getBytes())));
        }

        @RateLimited({"route,user", "address"})
        @GetMapping("/orders/{order}")
        String order(@PathVariable String order) {
            return "order " + order;
        }

        @RateLimited("method, tenant, region")
        @RequestMapping("/regions/{region}")
        Mono<String> region(@PathVariable String region) {
            return Mono.just("region " + region);
        }

        @CrossOrigin
        @RateLimited("user")
        @PutMapping("/carts")
        String cart() {
            return "served";
        }

        @GetMapping("/mistake")
        String mistake() {
            return "served";
        }

        @RateLimited("broken")
        @GetMapping("/broken")
        String broken() {
            return "served";
        }

        @RateLimited("stranger")
        @GetMapping("/stranger")
        String stranger() {
            return "served";
        }
    }

    @Import(Routes.class)
    static class TwoMappings {
        @Bean
        RequestMappingHandlerMapping below() {
            var mapping = new RequestMappingHandlerMapping();
            mapping.setPathPrefixes(Map.of("/below", type -> true));
            // Before that of resources.
            mapping.setOrder(1);
            return mapping;
        }
    }

    @RestController
    @EnableAutoConfiguration
    static class Open {
        @Bean
        RateLimitWebFilter.Descriptors descriptors() {
            return exchange -> switch (exchange.getRequest().getPath().value()) {
                case "/healthz" -> Mono.just(List.of());
                case "/null" -> null;
                default -> Mono.just(List.of(Descriptor.on("user", "alice")));
            };
        }

        @GetMapping({"/", "/healthz"})
        String hello() {
            return Schedulers.isInNonBlockingThread() ? "served" : "served where a handler may block";
        }
    }

    @Test
    void thereAreNoServlets() {
        assertThrows(ClassNotFoundException.class, () -> Class.forName("jakarta.servlet.Filter"));
    }

    @Test
    void anApplicationIsLimited() throws Exception {
        try (var context = start(Limited.class)) {
            fake(context).limit(1, Descriptor.on("user", "alice"));
            HttpResponse<String> allowed = get(context, "/", "X-User", "alice");
            assertEquals("served", allowed.body());
            assertEquals("0", allowed.headers().firstValue("RateLimit-Remaining").orElse(""));
            HttpResponse<String> denied = get(context, "/", "X-User", "alice");
            assertEquals(429, denied.statusCode());
            assertEquals("Too Many Requests\n", denied.body());
            assertEquals("60", denied.headers().firstValue("Retry-After").orElse(""));
            assertEquals("served", get(context, "/", "X-User", "bob").body());
            HttpResponse<String> nobody = get(context, "/");
            assertEquals(500, nobody.statusCode());
            assertFalse(nobody.body().contains("descriptors"), nobody.body());
            fake(context).fail(Status.Code.UNAVAILABLE);
            HttpResponse<String> failed = get(context, "/", "X-User", "bob");
            assertEquals(503, failed.statusCode());
            assertTrue(failed.headers().firstValue("RateLimit-Limit").isEmpty());
        }
    }

    @Test
    void anAnnotationLimitsARoute() throws Exception {
        try (var context = start(Routes.class)) {
            assertEquals("order 7", get(context, "/orders/7", "X-User", "alice").body());
            assertEquals("region eu", get(context, "/regions/eu").body());
            Descriptor address = Descriptor.on("address", "127.0.0.1");
            Descriptor alice = Descriptor.on("route", "/orders/{order}").and("user", "alice");
            Descriptor region = Descriptor.on("method", "GET").and("tenant", "acme").and("region", "eu");
            assertEquals(List.of(Call.take(1, alice, address), Call.take(1, region)), fake(context).calls());
            fake(context).deny(alice);
            HttpResponse<String> denied = get(context, "/orders/8", "X-User", "alice");
            assertEquals(429, denied.statusCode());
            assertEquals("slower", denied.body());
            assertEquals(200, get(context, "/orders/8", "X-User", "bob").statusCode());
            List<String> lines = Applications.log();
            assertEquals(500, get(context, "/orders/8").statusCode());
            assertEquals(500, get(context, "/mistake").statusCode());
            assertEquals(500, get(context, "/broken").statusCode());
            assertEquals(1, lines.size(), lines::toString);
            assertTrue(lines.get(0).contains("nobody is logged in; Spring Security, which logs users in"), lines::toString);
            assertEquals(403, get(context, "/stranger").statusCode());
            assertEquals(404, get(context, "/elsewhere").statusCode());
        }
    }

    @Test
    void methodsWithOneHandlerShareACounter() throws Exception {
        Applications.countsMethodsOfAHandlerAsOne(Routes.class);
    }

    @Test
    void aPreflightIsNotLimited() throws Exception {
        try (var context = start(Routes.class)) {
            HttpResponse<String> answer = send(context, "OPTIONS", "/carts", "Origin", "https://shop.example",
                    "Access-Control-Request-Method", "PUT");
            assertEquals(200, answer.statusCode());
            assertEquals("*", answer.headers().firstValue("Access-Control-Allow-Origin").orElse(""));
            assertEquals(List.of(), fake(context).calls());
        }
    }

    @Test
    void anAnnotationLimitsARouteOfEachMapping() throws Exception {
        try (var context = start(TwoMappings.class)) {
            fake(context).deny(Descriptor.on("user", "alice"));
            assertEquals(429, send(context, "PUT", "/carts", "X-User", "alice").statusCode());
            assertEquals(429, send(context, "PUT", "/below/carts", "X-User", "alice").statusCode());
            assertEquals(200, send(context, "PUT", "/below/carts", "X-User", "bob").statusCode());
        }
    }

    /** Otherwise, a script of a page could not read when to come again. */
    @Test
    void aDenialOfAnotherOriginsRequestHasTheHeadersOfCors() throws Exception {
        try (var context = start(Routes.class)) {
            fake(context).deny(Descriptor.on("user", "alice"));
            for (String user : List.of("alice", "bob")) {
                HttpResponse<String> answer = send(context, "PUT", "/carts", "X-User", user, "Origin", "https://shop.example");
                assertEquals(user.equals("alice") ? 429 : 200, answer.statusCode());
                assertEquals(List.of("*"), answer.headers().allValues("Access-Control-Allow-Origin"));
            }
        }
    }

    @Test
    void theAddressIsWithoutTheBracketsOfAForwardedOne() throws Exception {
        try (var context = start(Routes.class, "server.forward-headers-strategy=framework")) {
            get(context, "/orders/7", "X-User", "alice", "Forwarded", "for=\"[2001:db8:0:1::7]:4711\"");
            Descriptor address = fake(context).calls().get(0).descriptors().get(1);
            assertEquals(Descriptor.on("address", "2001:db8:0:1:0:0:0:0/64"), address);
        }
    }

    /** The service answers when all requests have come: more than there are threads that could wait. */
    @Test
    void noThreadWaitsForADecision() throws Exception {
        int requests = 5 * Runtime.getRuntime().availableProcessors() + 5;
        List<StreamObserver<DecideResponse>> waiting = new ArrayList<>();
        Server server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
                .addService(new TollkeeperGrpc.TollkeeperImplBase() {
                    @Override
                    public synchronized void decide(DecideRequest request, StreamObserver<DecideResponse> answers) {
                        waiting.add(answers);
                        if (waiting.size() == requests) {
                            Verdict allowed = Verdict.newBuilder().setCode(Verdict.Code.OK).build();
                            waiting.forEach(it -> {
                                it.onNext(DecideResponse.newBuilder().addVerdicts(allowed).build());
                                it.onCompleted();
                            });
                        }
                    }
                }).build().start();
        try (var context = start(Open.class, "tollkeeper.address=127.0.0.1:" + server.getPort(), "tollkeeper.domain=example",
                "tollkeeper.warm-up=0s", "tollkeeper.timeout=60s", "tollkeeper.on-failure=deny")) {
            assertEquals(200, get(context, "/healthz").statusCode());
            assertEquals(500, get(context, "/null").statusCode());
            HttpClient client = HttpClient.newHttpClient();
            List<CompletableFuture<HttpResponse<String>>> responses = Stream.generate(() ->
                    client.sendAsync(request(context, "/"), HttpResponse.BodyHandlers.ofString())).limit(requests).toList();
            for (CompletableFuture<HttpResponse<String>> response : responses) {
                assertEquals("served", response.join().body());
            }
        } finally {
            server.shutdownNow();
        }
    }
}
