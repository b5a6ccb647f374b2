package shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.Fake;
import io.grpc.Status;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.boot.test.context.SpringBootTest.WebEnvironment;
import org.springframework.boot.test.context.TestConfiguration;
import org.springframework.boot.test.system.CapturedOutput;
import org.springframework.boot.test.system.OutputCaptureExtension;
import org.springframework.boot.test.web.server.LocalServerPort;
import org.springframework.boot.webmvc.test.autoconfigure.AutoConfigureMockMvc;
import org.springframework.context.annotation.Bean;
import org.springframework.test.web.servlet.assertj.MockMvcTester;

@SpringBootTest(webEnvironment = WebEnvironment.RANDOM_PORT)
@AutoConfigureMockMvc
@ExtendWith(OutputCaptureExtension.class)
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

    @Test
    void anUnreadableFormIsNotLogged(@LocalServerPort int port, CapturedOutput log) throws Exception {
        for (String type : List.of("application/x-www-form-urlencoded", "multipart/form-data; boundary=b")) {
            HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/login"))
                    .header("Content-Type", type).POST(BodyPublishers.ofString("user=%ff")).build();
            assertEquals(400, HttpClient.newHttpClient().send(request, BodyHandlers.discarding()).statusCode());
        }
        assertFalse(log.getAll().contains("Exception"), log::getAll);
    }
}
