package io.github.tollkeeper.spring;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Descriptor;
import io.github.tollkeeper.RateLimitFilter;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.springframework.core.annotation.AnnotatedElementUtils;
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
        RateLimited limited = handler instanceof HandlerMethod method ? find(method) : null;
        // A request that is served later comes here again with its result.
        return limited == null || request.getDispatcherType() == DispatcherType.ASYNC
                || new RateLimitFilter(client, it -> descriptors(limited, it), denial).passes(request, response);
    }

    private static RateLimited find(HandlerMethod method) {
        RateLimited own = method.getMethodAnnotation(RateLimited.class);
        return own != null ? own : AnnotatedElementUtils.findMergedAnnotation(method.getBeanType(), RateLimited.class);
    }

    private List<Descriptor> descriptors(RateLimited limited, HttpServletRequest request) {
        return Arrays.stream(limited.value()).map(keys -> {
            Descriptor descriptor = new Descriptor(List.of());
            for (String key : keys.split(",")) {
                descriptor = descriptor.and(key.trim(), value(request, key.trim()));
            }
            return descriptor;
        }).toList();
    }

    private String value(HttpServletRequest request, String key) {
        return switch (key) {
            case "route" -> text(request.getAttribute(HandlerMapping.BEST_MATCHING_PATTERN_ATTRIBUTE));
            case "method" -> request.getMethod();
            case "user" -> request.getRemoteUser();
            case "address" -> request.getRemoteAddr();
            default -> request.getAttribute(HandlerMapping.URI_TEMPLATE_VARIABLES_ATTRIBUTE) instanceof Map<?, ?> variables
                    && variables.containsKey(key) ? text(variables.get(key)) : values.of(request, key);
        };
    }

    private static String text(Object value) {
        return value == null ? null : value.toString();
    }
}
