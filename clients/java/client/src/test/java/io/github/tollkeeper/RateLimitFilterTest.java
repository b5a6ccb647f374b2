package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status.Code;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.util.List;
import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** What the clients of a web application in Tomcat get. */
@EnabledIfEnvironmentVariable(named = Services.ADDR, matches = ".+")
class RateLimitFilterTest {
    @TempDir Path folder;

    private static final class Hello extends HttpServlet {
        private static final long serialVersionUID = 1;

        @Override
        protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
            response.getWriter().print("served");
        }
    }

    /** The first segment of a path is the key of a rule, the next one the value. */
    private static List<Descriptor> descriptors(HttpServletRequest request) {
        String[] segments = request.getRequestURI().split("/");
        return switch (segments[1]) {
            case "open" -> List.of();
            case "mistake" -> List.of(new Descriptor(List.of()));
            case "null" -> null;
            case "broken" -> throw new IllegalStateException("a secret of the descriptors");
            default -> List.of(Descriptor.on(segments[1], segments[2]));
        };
    }

    private interface Browser {
        HttpResponse<String> get(String path) throws Exception;
    }

    private interface Session {
        void run(Browser browser) throws Exception;
    }

    private void browse(Client client, Session session) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(folder.toString());
        tomcat.setPort(0);
        Context context = tomcat.addContext("", folder.toString());
        Tomcat.addServlet(context, "hello", new Hello());
        context.addServletMappingDecoded("/*", "hello");
        FilterDef filter = new FilterDef();
        filter.setFilterName("limits");
        filter.setFilter(new RateLimitFilter(client, RateLimitFilterTest::descriptors));
        context.addFilterDef(filter);
        FilterMap map = new FilterMap();
        map.setFilterName("limits");
        map.addURLPattern("/*");
        context.addFilterMap(map);
        try (client) {
            int port = started(tomcat);
            HttpClient http = HttpClient.newHttpClient();
            session.run(path -> http.send(
                    HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path)).build(),
                    HttpResponse.BodyHandlers.ofString()));
        } finally {
            tomcat.stop();
            tomcat.destroy();
        }
    }

    private static int started(Tomcat tomcat) throws Exception {
        tomcat.getConnector();
        tomcat.start();
        return tomcat.getConnector().getLocalPort();
    }

    /** Checks the status and the headers, of which a time is only a number of seconds. */
    private static void expect(
            HttpResponse<String> response, int status, String limit, String remaining, boolean retries) {
        assertEquals(status, response.statusCode());
        assertEquals(status == 200, response.body().equals("served"), response.body());
        assertEquals(limit, header(response, "RateLimit-Limit"));
        assertEquals(remaining, header(response, "RateLimit-Remaining"));
        assertEquals(!limit.isEmpty(), header(response, "RateLimit-Reset").matches("[1-9][0-9]*"));
        assertEquals(retries, header(response, "Retry-After").matches("[1-9][0-9]*"));
    }

    private static String header(HttpResponse<String> response, String name) {
        return response.headers().firstValue(name).orElse("");
    }

    @Test
    void aDeniedRequestGets429AndTheHeaders() throws Exception {
        String run = "/" + Services.random();
        browse(Services.client(Services.ADDR, Client.OnFailure.DENY), browser -> {
            for (String remaining : List.of("2", "1", "0")) {
                expect(browser.get("/three" + run), 200, "3", remaining, false);
            }
            HttpResponse<String> denied = browser.get("/three" + run);
            expect(denied, 429, "3", "0", true);
            assertEquals("Too Many Requests\n", denied.body());
            assertTrue(header(denied, "Content-Type").startsWith("text/plain"));
            expect(browser.get("/banned" + run), 429, "0", "0", true);
            expect(browser.get("/free" + run), 200, "", "", false);
            expect(browser.get("/open"), 200, "", "", false);
        });
    }

    @Test
    void mistakesAreNotShownAndAreLoggedOnceAMinute() throws Exception {
        List<String> lines = Services.log();
        browse(new Fake().client("example"), browser -> {
            for (String path : List.of("/mistake", "/null", "/broken")) {
                HttpResponse<String> mistake = browser.get(path);
                expect(mistake, 500, "", "", false);
                assertFalse(mistake.body().contains("descriptors"), mistake.body());
            }
        });
        assertEquals(1, lines.size(), lines::toString);
    }

    @Test
    void withoutAServiceOnFailureDecidesRequests() throws Exception {
        browse(Services.client("TOLLKEEPER_GONE_ADDR", Client.OnFailure.ALLOW), browser ->
                expect(browser.get("/three/a"), 200, "", "", false));
        browse(Services.client("TOLLKEEPER_GONE_ADDR", Client.OnFailure.DENY), browser ->
                expect(browser.get("/three/a"), 503, "", "", false));
    }

    @Test
    void aRequestThatTheServiceRefusesAsTooLargeIsDenied() throws Exception {
        browse(new Fake().fail(Code.OUT_OF_RANGE).client("example"), browser ->
                expect(browser.get("/three/a"), 429, "", "", false));
    }
}
