package readme;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.RateLimitFilter;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.Ordered;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

/** Applications of Spring Boot with the starter, in Tomcat. */
class StarterTest {
    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    static class Bare {}

    @RestController
    @EnableAutoConfiguration
    static class Limited {
        @Bean
        RateLimitFilter.Descriptors descriptors() {
            return request -> List.of(Descriptor.on("user", request.getHeader("X-User")));
        }

        @Bean
        MeterRegistry registry() {
            return new SimpleMeterRegistry();
        }

        @GetMapping("/")
        String hello() {
            return "served";
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    static class Own {
        @Bean
        Client.OnFailure onFailure() {
            return (error, descriptors) -> descriptors.size() == 2;
        }
    }

    private static ConfigurableApplicationContext start(Class<?> application, String... properties) {
        Stream<String> all = Stream.concat(Arrays.stream(properties), Stream.of("server.port=0", "logging.level.root=warn",
                "spring.main.banner-mode=off"));
        return SpringApplication.run(application, all.map(property -> "--" + property).toArray(String[]::new));
    }

    private static HttpResponse<String> get(ConfigurableApplicationContext context, String user) throws Exception {
        URI uri = URI.create("http://127.0.0.1:" + context.getEnvironment().getProperty("local.server.port"));
        HttpRequest request = HttpRequest.newBuilder(uri).header("X-User", user).build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
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
            HttpResponse<String> allowed = get(context, user);
            assertEquals(200, allowed.statusCode());
            assertEquals("served", allowed.body());
            assertEquals("999", allowed.headers().firstValue("RateLimit-Remaining").orElse(""));
            context.getBean(Client.class).debit(1000, Descriptor.on("user", user));
            HttpResponse<String> denied = get(context, user);
            assertEquals(429, denied.statusCode());
            assertEquals("too many requests\n", denied.body());
            assertTrue(denied.headers().firstValue("Retry-After").isPresent());
            long count = context.getBean(MeterRegistry.class).get("tollkeeper.calls")
                    .tags("method", "decide", "outcome", "ok").timer().count();
            assertEquals(3, count);
            assertEquals(Ordered.LOWEST_PRECEDENCE, context.getBean(FilterRegistrationBean.class).getOrder());
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
    void withoutAnAddressThereIsNoClient() {
        try (var context = start(Bare.class)) {
            assertEquals(0, context.getBeanNamesForType(Client.class).length);
        }
    }

    @Test
    void withoutAnAnswerThePropertyOrTheBeanDecides() {
        Descriptor user = Descriptor.on("user", "a");
        // Nothing listens on port 1.
        String[] properties = {"tollkeeper.address=127.0.0.1:1", "tollkeeper.domain=shop", "tollkeeper.on-failure=deny"};
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
        for (List<String> mistake : List.of(List.of("tollkeeper.timeout=1s", "domain: must not be empty"),
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
