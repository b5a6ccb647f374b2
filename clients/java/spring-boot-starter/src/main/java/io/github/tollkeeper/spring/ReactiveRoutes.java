package io.github.tollkeeper.spring;

import io.github.tollkeeper.Descriptor;
import java.net.InetSocketAddress;
import java.security.Principal;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.reactive.HandlerMapping;
import org.springframework.web.reactive.result.method.annotation.RequestMappingHandlerMapping;
import org.springframework.web.server.ServerWebExchange;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** Limits requests to what has {@link RateLimited}. */
final class ReactiveRoutes implements RateLimitWebFilter.Descriptors {
    private final List<RequestMappingHandlerMapping> mappings;
    private final RateLimitWebFilter.Values values;

    ReactiveRoutes(List<RequestMappingHandlerMapping> mappings, RateLimitWebFilter.Values values) {
        this.mappings = mappings;
        this.values = values;
    }

    @Override
    public Mono<List<Descriptor>> of(ServerWebExchange exchange) {
        // As Spring itself does afterwards: it reads the version of the API, finds no method for a preflight, and sets the
        // headers of CORS, which a denial needs too. A request that fits no method gets its error then.
        return Flux.fromIterable(mappings).concatMap(mapping -> mapping.getHandler(exchange)).next().onErrorComplete()
                .ofType(HandlerMethod.class)
                .flatMap(handler -> Mono.justOrEmpty(Annotations.find(handler)))
                .flatMap(limited -> exchange.getPrincipal().map(Principal::getName).map(Optional::of)
                        .defaultIfEmpty(Optional.empty())
                        .map(user -> Annotations.descriptors(limited, key -> value(exchange, user, key))))
                .defaultIfEmpty(List.of());
    }

    private String value(ServerWebExchange exchange, Optional<String> user, String key) {
        return switch (key) {
            case "route" -> exchange.getRequiredAttribute(HandlerMapping.BEST_MATCHING_PATTERN_ATTRIBUTE).toString();
            case "method" -> Annotations.method(exchange.getRequest().getMethod().name());
            case "user" -> user.orElse(null);
            case "address" -> {
                InetSocketAddress address = exchange.getRequest().getRemoteAddress();
                // Not its name, which whoever owns the address chooses in DNS, once something has looked it up.
                yield Annotations.address(
                        address.isUnresolved() ? address.getHostString() : address.getAddress().getHostAddress());
            }
            default -> {
                Map<String, String> variables = exchange.getAttributeOrDefault(
                        HandlerMapping.URI_TEMPLATE_VARIABLES_ATTRIBUTE, Map.of());
                yield variables.containsKey(key) ? variables.get(key) : values.of(exchange, key);
            }
        };
    }
}
