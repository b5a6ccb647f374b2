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
 * 503 if {@link Client.OnFailure} has denied it. An allowed one gets the RateLimit headers.
 */
public final class RateLimitFilter extends HttpFilter {
    private static final long serialVersionUID = 1;

    /** What a request is limited by. */
    @FunctionalInterface
    public interface Descriptors {
        /** An empty list lets the request pass. */
        List<Descriptor> of(HttpServletRequest request);
    }

    private final transient Client client;
    private final transient Descriptors descriptors;

    public RateLimitFilter(Client client, Descriptors descriptors) {
        this.client = client;
        this.descriptors = descriptors;
    }

    @Override
    protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        List<Descriptor> limited = descriptors.of(request);
        if (limited.isEmpty()) {
            chain.doFilter(request, response);
            return;
        }
        Decision decision = client.decide(limited.toArray(Descriptor[]::new));
        decision.headers().forEach(response::setHeader);
        if (decision.allowed()) {
            chain.doFilter(request, response);
            return;
        }
        response.setStatus(decision.failed() ? HttpServletResponse.SC_SERVICE_UNAVAILABLE : 429);
        response.setContentType("text/plain");
        response.getWriter().print(decision.failed() ? "rate limits are unavailable\n" : "too many requests\n");
    }
}
