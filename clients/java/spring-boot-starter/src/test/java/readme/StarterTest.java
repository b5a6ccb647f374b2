package readme;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static readme.Applications.fake;
import static readme.Applications.get;
import static readme.Applications.start;

import io.github.tollkeeper.Call;
import io.github.tollkeeper.Client;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.Fake;
import io.github.tollkeeper.RateLimitFilter;
import io.github.tollkeeper.spring.RateLimited;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.stub.StreamObserver;
import io.micrometer.core.instrument.MeterRegistry;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.URL;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.Order;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.servlet.config.annotation.WebMvcConfigurationSupport;
import tollkeeper.v1.Call.Mode;
import tollkeeper.v1.DecideRequest;
import tollkeeper.v1.DecideResponse;
import tollkeeper.v1.TollkeeperGrpc;
import tollkeeper.v1.Verdict;

/** Applications of Spring Boot with the starter, in Tomcat. */
class StarterTest {
    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    static class Bare {}

    /** Stands for an authentication, which finds the user. */
    @Order(0)
    static class Users extends HttpFilter {
        private static final long serialVersionUID = 1;

        @Override
        protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
                throws IOException, ServletException {
            chain.doFilter(new HttpServletRequestWrapper(request) {
                @Override
                public String getRemoteUser() {
                    return getHeader("X-User");
                }
            }, response);
        }
    }

    @RestController
    @EnableAutoConfiguration
    static class Limited {
        @Bean
        RateLimitFilter.Descriptors descriptors() {
            return request -> List.of(Descriptor.on("user", request.getRemoteUser()));
        }

        @Bean
        Users users() {
            return new Users();
        }

        @GetMapping("/")
        String hello() {
            return "served";
        }
    }

    @RestController
    @RateLimited("nobody")
    @EnableAutoConfiguration
    static class Routes {
        @Bean
        Fake fake() {
            return new Fake();
        }

        @Bean
        Client client(Fake fake) {
            return fake.client("example");
        }

        @Bean
        Users users() {
            return new Users();
        }

        @Bean
        RateLimited.Values values() {
            return (request, key) -> Applications.value(key);
        }

        @Bean
        RateLimitFilter.Denial denial() {
            return (request, response, decision) -> response.getWriter().print("slower…");
        }

        @RateLimited({"route,user", "address"})
        @GetMapping("/orders/{order}")
        String order(@PathVariable String order) {
            return "order " + order;
        }

        @RateLimited("method, tenant, region")
        @RequestMapping("/regions/{region}")
        String region(@PathVariable String region) {
            return "region " + region;
        }

        @RateLimited("route")
        @GetMapping("/later")
        Callable<String> later() {
            return () -> "served later";
        }

        @RateLimited("route, step")
        @GetMapping("/steps/{step}")
        void step(HttpServletRequest request, @PathVariable int step) {
            if (step > 0) {
                request.startAsync().dispatch("/steps/" + (step - 1));
            }
        }

        @RateLimited("tenant")
        @GetMapping("/dispatched")
        void dispatched(HttpServletRequest request) {
            request.startAsync().dispatch("/regions/eu");
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

    /** Makes the mappings in place of Spring Boot. */
    @Import(Routes.class)
    static class OwnMappings extends WebMvcConfigurationSupport {}

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    static class Own {
        @Bean
        Client.OnFailure onFailure() {
            return (error, descriptors) -> descriptors.size() == 2;
        }
    }

    private static String address(String variable) {
        return "tollkeeper.address=" + System.getenv(variable);
    }

    @Test
    @EnabledIfEnvironmentVariable(named = "TOLLKEEPER_ADDR", matches = ".+")
    void anApplicationIsLimitedByItsProperties() throws Exception {
        String user = UUID.randomUUID().toString();
        try (var context = start(Limited.class, address("TOLLKEEPER_ADDR"), "tollkeeper.domain=conformance",
                "tollkeeper.timeout=10s", "tollkeeper.on-failure=deny")) {
            HttpResponse<String> allowed = get(context, "/", "X-User", user);
            assertEquals(200, allowed.statusCode());
            assertEquals("served", allowed.body());
            assertEquals("999", allowed.headers().firstValue("RateLimit-Remaining").orElse(""));
            context.getBean(Client.class).debit(1000, Descriptor.on("user", user));
            HttpResponse<String> denied = get(context, "/", "X-User", user);
            assertEquals(429, denied.statusCode());
            assertEquals("Too Many Requests\n", denied.body());
            assertTrue(denied.headers().firstValue("Retry-After").isPresent());
            long count = context.getBean(MeterRegistry.class).get("tollkeeper.calls")
                    .tags("method", "decide", "outcome", "ok").timer().count();
            assertEquals(3, count);
            assertEquals(Ordered.LOWEST_PRECEDENCE,
                    context.getBean("tollkeeperFilter", FilterRegistrationBean.class).getOrder());
            HttpResponse<String> nobody = get(context, "/");
            assertEquals(500, nobody.statusCode());
            assertFalse(nobody.body().contains("descriptors"), nobody.body());
        }
    }

    @Test
    void anAnnotationLimitsARoute() throws Exception {
        try (var context = start(Routes.class)) {
            assertEquals("order 7", get(context, "/orders/7", "X-User", "alice").body());
            Descriptor address = Descriptor.on("address", "127.0.0.1");
            Descriptor alice = Descriptor.on("route", "/orders/{order}").and("user", "alice");
            Descriptor region = Descriptor.on("method", "GET").and("tenant", "acme").and("region", "eu");
            assertEquals("region eu", get(context, "/regions/eu").body());
            assertEquals(List.of(Call.take(1, alice, address), Call.take(1, region)), fake(context).calls());
            fake(context).deny(alice);
            HttpResponse<String> denied = get(context, "/orders/8", "X-User", "alice");
            assertEquals(429, denied.statusCode());
            assertEquals("slower…", denied.body());
            assertEquals(200, get(context, "/orders/8", "X-User", "bob").statusCode());
            List<String> lines = Applications.log();
            assertEquals(500, get(context, "/orders/8").statusCode());
            assertEquals(500, get(context, "/mistake").statusCode());
            assertEquals(500, get(context, "/broken").statusCode());
            assertEquals(1, lines.size(), lines::toString);
            assertTrue(lines.get(0).contains("nobody is logged in; Spring Security, which logs users in"), lines::toString);
            assertEquals(403, get(context, "/stranger").statusCode());
        }
    }

    @Test
    void aRequestThatIsServedLaterIsDecidedOnce() throws Exception {
        try (var context = start(Routes.class)) {
            assertEquals("served later", get(context, "/later").body());
            assertEquals(List.of(Call.take(1, Descriptor.on("route", "/later"))), fake(context).calls());
        }
    }

    @Test
    void aRequestThatIsDispatchedToARouteIsLimited() throws Exception {
        try (var context = start(Routes.class)) {
            fake(context).deny(Descriptor.on("method", "GET").and("tenant", "acme").and("region", "eu"));
            assertEquals(429, get(context, "/dispatched").statusCode());
            Descriptor step = Descriptor.on("route", "/steps/{step}");
            fake(context).deny(step.and("step", "1"));
            assertEquals(429, get(context, "/steps/3").statusCode());
            assertEquals(List.of("3", "2", "1"), fake(context).calls().stream().skip(2)
                    .map(call -> call.descriptors().get(0).entries().get(1).value().toStringUtf8()).toList());
        }
    }

    @Test
    void anAnnotationAlsoLimitsWhereAnApplicationMakesTheMappings() throws Exception {
        try (var context = start(OwnMappings.class)) {
            fake(context).deny(Descriptor.on("route", "/later"));
            assertEquals(429, get(context, "/later").statusCode());
        }
    }

    @Test
    void methodsWithOneHandlerShareACounter() throws Exception {
        Applications.countsMethodsOfAHandlerAsOne(Routes.class);
    }

    @Test
    void behindAProxyTheAddressIsTheOneThatTheProxyHasSeen() throws Exception {
        for (List<String> expected : List.of(
                List.of("none", "203.0.113.9", "127.0.0.1"), List.of("native", "203.0.113.9", "203.0.113.9"),
                List.of("native", "::ffff:203.0.113.9", "203.0.113.9"),
                List.of("native", "203.0.113.9:4711", "203.0.113.9"),
                List.of("native", "2001:db8:0:1:2:3:4:5", "2001:db8:0:1:0:0:0:0/64"),
                List.of("native", "[2001:db8:0:1::7]:4711", "2001:db8:0:1:0:0:0:0/64"))) {
            try (var context = start(Routes.class, "server.forward-headers-strategy=" + expected.get(0))) {
                // The client has sent an address of its own to the proxy, which is the peer.
                get(context, "/orders/7", "X-User", "alice", "X-Forwarded-For", "198.51.100.7, " + expected.get(1));
                assertEquals(Descriptor.on("address", expected.get(2)), fake(context).calls().get(0).descriptors().get(1));
            }
        }
    }

    @Test
    void theStartOfTheApplicationWaitsForTheServiceAndChargesNothing() throws Exception {
        Queue<Mode> decided = new ConcurrentLinkedQueue<>();
        Server server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
                .addService(new TollkeeperGrpc.TollkeeperImplBase() {
                    @Override
                    public void decide(DecideRequest request, StreamObserver<DecideResponse> answers) {
                        decided.add(request.getCalls(0).getMode());
                        Verdict allowed = Verdict.newBuilder().setCode(Verdict.Code.OK).build();
                        answers.onNext(DecideResponse.newBuilder().addVerdicts(allowed).build());
                        answers.onCompleted();
                    }
                }).build().start();
        String[] properties = {"tollkeeper.address=127.0.0.1:" + server.getPort(), "tollkeeper.domain=shop"};
        start(Bare.class, properties[0], properties[1], "tollkeeper.warm-up=60s").close();
        assertEquals(Set.of(Mode.READ), Set.copyOf(decided));
        decided.clear();
        start(Bare.class, properties[0], properties[1], "tollkeeper.warm-up=0s").close();
        assertEquals(Set.of(), Set.copyOf(decided));
        server.shutdownNow();
    }

    @Test
    void editorsKnowThePropertiesAndTheirDefaults() throws Exception {
        URL file = Client.class.getClassLoader().resources("META-INF/spring-configuration-metadata.json")
                .filter(it -> read(it).contains("\"tollkeeper\"")).findFirst().orElseThrow();
        for (String property : List.of("address", "domain", "timeout", "commit-timeout", "on-failure", "require-limit",
                "remember-denials", "warm-up", "filter-order", "tls.enabled", "tls.ca", "tls.cert", "tls.key",
                "tls.server-name")) {
            assertTrue(read(file).matches("(?s).*\"tollkeeper." + property + "\",\\s+\"type\": \"[^\"]+\",\\s+\"description\".*"),
                    property);
        }
    }

    private static String read(URL file) {
        try (InputStream in = file.openStream()) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Test
    @EnabledIfEnvironmentVariable(named = "TOLLKEEPER_ADDR", matches = ".+")
    void aClientShowsTheCertificateOfItsProperties() {
        try (var context = start(Bare.class, address("TOLLKEEPER_TLS_ADDR"), "tollkeeper.domain=conformance",
                "tollkeeper.timeout=10s", "tollkeeper.tls.ca=" + System.getenv("TOLLKEEPER_CA"),
                "tollkeeper.tls.cert=" + System.getenv("TOLLKEEPER_CERT"),
                "tollkeeper.tls.key=" + System.getenv("TOLLKEEPER_KEY"), "tollkeeper.tls.server-name=localhost")) {
            assertFalse(context.getBean(Client.class).check(Descriptor.on("user", "tls")).failed());
            assertEquals(0, context.getBeanProvider(FilterRegistrationBean.class).stream()
                    .filter(bean -> bean.getFilter() instanceof RateLimitFilter).count());
        }
    }

    @Test
    void withoutAnAddressOrAClientAnApplicationDoesNotStart() {
        Exception error = assertThrows(Exception.class, () -> start(Bare.class, "tollkeeper.domain=example").close());
        assertTrue(error.getMessage().contains("tollkeeper.address: must not be empty"), error::getMessage);
    }

    @Test
    void withoutAnAnswerThePropertyOrTheBeanDecides() {
        Descriptor user = Descriptor.on("user", "a");
        // Nothing listens on port 1.
        String[] properties = {"tollkeeper.address=127.0.0.1:1", "tollkeeper.domain=shop", "tollkeeper.on-failure=deny",
                "tollkeeper.warm-up=10ms"};
        try (var context = start(Bare.class, properties)) {
            assertFalse(context.getBean(Client.class).decide(user).allowed());
        }
        try (var context = start(Own.class, properties)) {
            assertFalse(context.getBean(Client.class).decide(user).allowed());
            assertTrue(context.getBean(Client.class).decide(user, user).allowed());
        }
    }

    @Test
    void mistakesOfPropertiesNameTheField() {
        for (List<String> mistake : List.of(List.of("tollkeeper.timeout=1s", "tollkeeper.domain: must not be empty"),
                List.of("tollkeeper.tls.cert=client.pem", "cert and key must be given together"))) {
            Exception error = assertThrows(Exception.class,
                    () -> start(Bare.class, "tollkeeper.address=localhost:1", mistake.get(0)).close());
            StringBuilder causes = new StringBuilder();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                causes.append(cause.getMessage()).append('\n');
            }
            assertTrue(causes.toString().contains(mistake.get(1)), causes::toString);
        }
    }
}
