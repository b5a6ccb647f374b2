package io.github.tollkeeper;

import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.List;

/**
 * Limits the requests of a servlet container. A denied request gets 429 with Retry-After and the RateLimit headers, or
 * 503 if {@link Client.OnFailure} has denied it. An allowed one gets the RateLimit headers. A mistake, such as a
 * descriptor without a value, gets 500, and is logged at most once a minute.
 */
public final class RateLimitFilter extends HttpFilter {
    private static final long serialVersionUID = 1;

    /** What a request is limited by. */
    @FunctionalInterface
    public interface Descriptors {
        /** An empty list lets the request pass. Anything that it throws, and null, is a mistake. */
        List<Descriptor> of(HttpServletRequest request);
    }

    /** Writes the body of the response to a denied request, whose status and headers are set. */
    @FunctionalInterface
    public interface Denial {
        /** A line of text. */
        Denial TEXT = (request, response, decision) -> {
            response.setContentType("text/plain");
            response.getWriter().print(decision.failed() ? "Service Unavailable\n" : "Too Many Requests\n");
        };

        /** May also set another status. */
        void write(HttpServletRequest request, HttpServletResponse response, Decision decision) throws IOException;
    }

    private final transient Client client;
    private final transient Descriptors descriptors;
    private final transient Denial denial;

    /** A filter that denies with a line of text. */
    public RateLimitFilter(Client client, Descriptors descriptors) {
        this(client, descriptors, Denial.TEXT);
    }

    /** A filter with a body of the application's own. */
    public RateLimitFilter(Client client, Descriptors descriptors, Denial denial) {
        this.client = client;
        this.descriptors = descriptors;
        this.denial = denial;
    }

    @Override
    protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        if (passes(request, response)) {
            chain.doFilter(request, response);
        }
    }

    /** Whether a request may pass. If not, it has its response. */
    public boolean passes(HttpServletRequest request, HttpServletResponse response) throws IOException {
        Decision decision;
        try {
            List<Descriptor> limited = descriptors.of(request);
            if (limited.isEmpty()) {
                return true;
            }
            decision = client.decide(limited.toArray(Descriptor[]::new));
        } catch (RuntimeException mistake) {
            client.logMistake(mistake);
            response.sendError(HttpServletResponse.SC_INTERNAL_SERVER_ERROR);
            return false;
        }
        decision.headers().forEach(response::setHeader);
        if (!decision.allowed()) {
            response.setStatus(decision.failed() ? HttpServletResponse.SC_SERVICE_UNAVAILABLE : 429);
            // The default of servlets has no more than Latin letters.
            response.setCharacterEncoding("UTF-8");
            denial.write(request, response, decision);
        }
        return decision.allowed();
    }
}
