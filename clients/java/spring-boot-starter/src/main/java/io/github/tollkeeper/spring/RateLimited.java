package io.github.tollkeeper.spring;

import jakarta.servlet.http.HttpServletRequest;
import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** Limits the requests to a method of a controller, or to all of its methods. */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.METHOD, ElementType.TYPE})
public @interface RateLimited {
    /**
     * Descriptors, each with the keys of its entries, such as {@code "route,user"}.
     *
     * <p>{@code route} is the template of the path, {@code method} the method of HTTP ({@code GET} also for HEAD, and
     * {@code other} for one that a client has invented), {@code user} the user that is logged in, and {@code address} the
     * address of the client, of IPv6 its network of 64 bits. Any other key is a variable of the path, or a value of
     * {@link Values}, of WebFlux {@link RateLimitWebFilter.Values}. A request without one of them gets 500.
     */
    String[] value();

    /** Values of an application's own keys, such as a tenant. */
    @FunctionalInterface
    interface Values {
        /**
         * The value of a key, or null if the request has none. A {@code ResponseStatusException} of Spring is the
         * application's own answer. Anything else that it throws gets 500.
         */
        String of(HttpServletRequest request, String key);
    }
}
