package io.github.tollkeeper.spring;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.RateLimitFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.springframework.web.ErrorResponse;
import org.springframework.web.context.request.async.WebAsyncUtils;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.servlet.HandlerInterceptor;
import org.springframework.web.servlet.HandlerMapping;

/** Limits requests to what has {@link RateLimited}. */
final class RateLimitInterceptor implements HandlerInterceptor {
    private final Client client;
    private final RateLimited.Values values;
    private final RateLimitFilter.Denial denial;

    RateLimitInterceptor(Client client, RateLimited.Values values, RateLimitFilter.Denial denial) {
        this.client = client;
        this.values = values;
        this.denial = denial;
    }

    @Override
    public boolean preHandle(HttpServletRequest request, HttpServletResponse response, Object handler) throws IOException {
        if (!(handler instanceof HandlerMethod called)) {
            return true;
        }
        // A request that is served later comes here again with its result.
        boolean isResult = WebAsyncUtils.getAsyncManager(request).hasConcurrentResult();
        Optional<RateLimited> limited = Annotations.find(called);
        return isResult || limited.isEmpty()
                || new RateLimitFilter(client, descriptors(limited.get(), request), denial).passes(request, response);
    }

    private RateLimitFilter.Descriptors descriptors(RateLimited limited, HttpServletRequest request) {
        try {
            List<Descriptor> found = Annotations.descriptors(limited, key -> value(request, key));
            return it -> found;
        } catch (RuntimeException thrown) {
            if (thrown instanceof ErrorResponse) {
                throw thrown;
            }
            return it -> {
                throw thrown;
            };
        }
    }

    private String value(HttpServletRequest request, String key) {
        return switch (key) {
            case "route" -> text(request.getAttribute(HandlerMapping.BEST_MATCHING_PATTERN_ATTRIBUTE));
            case "method" -> Annotations.method(request.getMethod());
            case "user" -> request.getRemoteUser();
            case "address" -> Annotations.address(request.getRemoteAddr());
            default -> request.getAttribute(HandlerMapping.URI_TEMPLATE_VARIABLES_ATTRIBUTE) instanceof Map<?, ?> variables
                    && variables.containsKey(key) ? text(variables.get(key)) : values.of(request, key);
        };
    }

    private static String text(Object value) {
        return value == null ? null : value.toString();
    }
}
