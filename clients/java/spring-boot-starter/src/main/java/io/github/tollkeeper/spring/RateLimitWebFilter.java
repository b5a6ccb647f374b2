package io.github.tollkeeper.spring;

import io.github.tollkeeper.Call;
import io.github.tollkeeper.Client;
import io.github.tollkeeper.Decision;
import io.github.tollkeeper.Descriptor;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.function.Function;
import org.springframework.core.Ordered;
import org.springframework.http.HttpStatus;
import org.springframework.http.MediaType;
import org.springframework.http.server.reactive.ServerHttpResponse;
import org.springframework.web.ErrorResponse;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebFilter;
import org.springframework.web.server.WebFilterChain;
import reactor.core.publisher.Mono;
import reactor.core.scheduler.Schedulers;

/**
 * Limits the requests of an application of WebFlux, and never blocks a thread. A denied request gets 429 with Retry-After
 * and the RateLimit headers, or 503 if {@link Client.OnFailure} has denied it. An allowed one gets the RateLimit headers.
 * A mistake, such as a descriptor without a value, gets 500, and is logged at most once a minute.
 */
public final class RateLimitWebFilter implements WebFilter, Ordered {
    /** What a request is limited by. */
    @FunctionalInterface
    public interface Descriptors {
        /**
         * An empty list lets the request pass. A Mono that is empty is a mistake, since that of the principal is empty
         * where nobody is logged in. A {@code ResponseStatusException} of Spring is the application's own answer, and any
         * other exception is a mistake, also one that {@link Values} throw.
         */
        Mono<List<Descriptor>> of(ServerWebExchange exchange);
    }

    /** Writes the body of the response to a denied request, whose status and headers are set. */
    @FunctionalInterface
    public interface Denial {
        /** A line of text. */
        Denial TEXT = (exchange, decision) -> {
            String text = decision.failed() ? "Service Unavailable\n" : "Too Many Requests\n";
            ServerHttpResponse response = exchange.getResponse();
            response.getHeaders().setContentType(MediaType.TEXT_PLAIN);
            return response.writeWith(Mono.just(response.bufferFactory().wrap(text.getBytes(StandardCharsets.UTF_8))));
        };

        /** May also set another status. */
        Mono<Void> write(ServerWebExchange exchange, Decision decision);
    }

    /** Values of an application's own keys in {@link RateLimited}, such as a tenant. */
    @FunctionalInterface
    public interface Values {
        /** The value of a key, or null if the request has none. */
        String of(ServerWebExchange exchange, String key);
    }

    private final Client client;
    private final Descriptors descriptors;
    private final Denial denial;
    private final int order;

    /** A filter behind all others that denies with a line of text. */
    public RateLimitWebFilter(Client client, Descriptors descriptors) {
        this(client, descriptors, Denial.TEXT, LOWEST_PRECEDENCE);
    }

    /** A filter with a body of the application's own, and its place among the filters. */
    public RateLimitWebFilter(Client client, Descriptors descriptors, Denial denial, int order) {
        this.client = client;
        this.descriptors = descriptors;
        this.denial = denial;
        this.order = order;
    }

    @Override
    public int getOrder() {
        return order;
    }

    @Override
    public Mono<Void> filter(ServerWebExchange exchange, WebFilterChain chain) {
        return Mono.defer(() -> descriptors.of(exchange))
                .switchIfEmpty(Mono.error(() -> new IllegalArgumentException("descriptors: must not be an empty Mono")))
                .flatMap(limited -> limited.isEmpty() ? Mono.just(chain.filter(exchange))
                        : decide(limited).map(decision -> Mono.defer(() -> answer(exchange, chain, decision))))
                .onErrorResume(Exception.class, thrown -> {
                    if (thrown instanceof ErrorResponse) {
                        return Mono.error(thrown);
                    }
                    client.logMistake(thrown);
                    exchange.getResponse().setStatusCode(HttpStatus.INTERNAL_SERVER_ERROR);
                    return Mono.just(exchange.getResponse().setComplete());
                })
                .flatMap(Function.identity());
    }

    private Mono<Void> answer(ServerWebExchange exchange, WebFilterChain chain, Decision decision) {
        decision.headers().forEach(exchange.getResponse().getHeaders()::set);
        if (decision.allowed()) {
            return chain.filter(exchange);
        }
        exchange.getResponse().setStatusCode(
                decision.failed() ? HttpStatus.SERVICE_UNAVAILABLE : HttpStatus.TOO_MANY_REQUESTS);
        return denial.write(exchange, decision);
    }

    /** A caller that leaves does not end the decision: it would count as one without an answer. */
    private Mono<Decision> decide(List<Descriptor> limited) {
        return Mono.fromFuture(() -> client.decideAsync(Call.take(1, limited.toArray(Descriptor[]::new))), true)
                // Not in a thread of gRPC, which nobody expects: there, a handler that blocks is no error.
                .publishOn(Schedulers.parallel());
    }
}
