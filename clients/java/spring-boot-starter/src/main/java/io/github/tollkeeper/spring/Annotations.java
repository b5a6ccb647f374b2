package io.github.tollkeeper.spring;

import io.github.tollkeeper.Descriptor;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.UnaryOperator;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.util.ClassUtils;
import org.springframework.web.bind.annotation.RequestMethod;
import org.springframework.web.method.HandlerMethod;

/** What {@link RateLimited} says, for servlets and WebFlux. */
final class Annotations {
    private static final String NOBODY = "@RateLimited: the key user has no value, since nobody is logged in"
            + (ClassUtils.isPresent("org.springframework.security.core.Authentication", null) ? ""
                    : "; Spring Security, which logs users in (spring-boot-starter-security), is not on the class path");

    private Annotations() {}

    /** The annotation of a method, or else of its controller. */
    static Optional<RateLimited> find(HandlerMethod method) {
        RateLimited own = method.getMethodAnnotation(RateLimited.class);
        return Optional.ofNullable(own != null ? own
                : AnnotatedElementUtils.findMergedAnnotation(method.getBeanType(), RateLimited.class));
    }

    /** The descriptors with the values of a request's keys. */
    static List<Descriptor> descriptors(RateLimited limited, UnaryOperator<String> value) {
        return Arrays.stream(limited.value()).map(keys -> {
            Descriptor descriptor = new Descriptor(List.of());
            for (String key : keys.split(",")) {
                String found = value.apply(key.trim());
                if (found == null && key.trim().equals("user")) {
                    throw new IllegalArgumentException(NOBODY);
                }
                descriptor = descriptor.and(key.trim(), found);
            }
            return descriptor;
        }).toList();
    }

    /** Of IPv6, the network of 64 bits, since a client has all of its addresses. */
    static String address(String written) {
        // Proxies write some addresses in brackets, and some with the port, which a client can change.
        String address = written.replaceFirst("^\\[(.*)](:\\d+)?$", "$1").replaceFirst("^([\\d.]+):\\d+$", "$1");
        // Only what is written as an address of IPv6: a name would be looked up.
        if (!address.contains(":") || !address.matches("[0-9a-fA-F:][0-9a-fA-F:.]*(%.*)?")) {
            return address;
        }
        try {
            InetAddress found = InetAddress.getByName(address.split("%")[0]);
            byte[] network = Arrays.copyOf(Arrays.copyOf(found.getAddress(), 8), 16);
            // One that stands for an address of IPv4 is found as that.
            return found instanceof Inet6Address ? InetAddress.getByAddress(network).getHostAddress() + "/64"
                    : found.getHostAddress();
        } catch (UnknownHostException noAddress) {
            return address;
        }
    }

    /**
     * Spring serves HEAD as GET, and any name where a mapping has none, so a client could have a counter for each that it
     * invents.
     */
    static String method(String name) {
        return name.equals("HEAD") ? "GET" : RequestMethod.resolve(name) == null ? "other" : name;
    }
}
