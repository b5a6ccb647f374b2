package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.Fake;
import io.grpc.Status;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.boot.test.context.TestConfiguration;
import org.springframework.boot.webmvc.test.autoconfigure.AutoConfigureMockMvc;
import org.springframework.context.annotation.Bean;
import org.springframework.test.web.servlet.assertj.MockMvcTester;

@SpringBootTest
@AutoConfigureMockMvc
class RoutesTest {
    @TestConfiguration
    static class InMemory {
        @Bean
        Fake fake() {
            return new Fake();
        }

        /** Takes the place of the client of application.properties. */
        @Bean
        Client client(Fake fake) {
            return fake.client("shop");
        }
    }

    @Autowired
    private Fake fake;
    @Autowired
    private MockMvcTester http;

    private int login() {
        return http.post().uri("/login").param("user", "alice").param("password", "guess").exchange()
                .getResponse().getStatus();
    }

    private int reports(String key) {
        return http.get().uri("/reports").header("Authorization", "Bearer " + key).exchange()
                .getResponse().getStatus();
    }

    @BeforeEach
    void answer() {
        fake.fail(Status.Code.OK);
    }

    @Test
    void theSixthLoginIsDenied() {
        fake.limit(5, Descriptor.on("route", "/login").and("user", "alice"));
        for (int i = 0; i < 5; i++) {
            assertEquals(401, login());
        }
        assertEquals(429, login());
    }

    @Test
    void withoutAnAnswerLoginsAreDeniedAndReportsPass() {
        fake.fail(Status.Code.UNAVAILABLE);
        assertEquals(503, login());
        assertEquals(200, reports("key-of-alice"));
        assertEquals(401, reports("another key"));
    }
}
