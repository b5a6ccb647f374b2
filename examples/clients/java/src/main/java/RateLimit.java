import io.envoyproxy.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitRequest;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitResponse;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitServiceGrpc;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitServiceGrpc.RateLimitServiceBlockingStub;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Calls a rate-limit service. Make one for the process: its threads share its connections. */
final class RateLimit implements AutoCloseable {
    /** The decision when the service does not answer: true fails open, false closed. */
    private static final boolean ALLOWED_ON_FAILURE = true;

    /**
     * Whether the request may pass.
     *
     * @param limit the limit of the descriptor, or 0 if no rule limits it
     * @param headers for the response to your own client; the service's --headers selects them
     * @param failure why the service did not decide, or null
     */
    record Decision(
            boolean allowed,
            int limit,
            int remaining,
            Duration reset,
            Map<String, String> headers,
            Status.Code failure) {}

    private final ManagedChannel channel;
    private final RateLimitServiceBlockingStub service;
    private final Duration deadline;

    /** Connects to host:port when the first request comes. */
    RateLimit(String address, Duration deadline) {
        this.channel =
                NettyChannelBuilder.forTarget("dns:///" + address)
                        // With TLS: sslContext(GrpcSslContexts.forClient()…).
                        .usePlaintext()
                        // Uses every address of the name, so that all replicas of a headless Service get calls.
                        .defaultLoadBalancingPolicy("round_robin")
                        // Notices a peer that disappeared without closing the connection.
                        .keepAliveTime(10, TimeUnit.SECONDS)
                        .keepAliveTimeout(2, TimeUnit.SECONDS)
                        .build();
        this.service = RateLimitServiceGrpc.newBlockingStub(channel);
        this.deadline = deadline;
    }

    /**
     * Charges one hit to the descriptor, whose keys are in the rules' order: use a LinkedHashMap for several. Returns
     * within the deadline, whatever the service does.
     */
    Decision allow(String domain, Map<String, String> descriptor) {
        RateLimitDescriptor.Builder entries = RateLimitDescriptor.newBuilder();
        descriptor.forEach((key, value) -> entries.addEntriesBuilder().setKey(key).setValue(value));
        RateLimitRequest request =
                RateLimitRequest.newBuilder().setDomain(domain).addDescriptors(entries).build();
        try {
            // A deadline begins where it is set: set one for each call.
            return decision(
                    service.withDeadlineAfter(deadline.toNanos(), TimeUnit.NANOSECONDS)
                            .shouldRateLimit(request));
        } catch (StatusRuntimeException failure) {
            // By default it may be two minutes until the service is found again.
            if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
                channel.resetConnectBackoff();
            }
            Status.Code code = failure.getStatus().getCode();
            return new Decision(ALLOWED_ON_FAILURE, 0, 0, Duration.ZERO, Map.of(), code);
        }
    }

    private static Decision decision(RateLimitResponse response) {
        Map<String, String> headers = new LinkedHashMap<>();
        response.getResponseHeadersToAddList()
                .forEach(header -> headers.put(header.getKey(), header.getValue()));
        // One status for each descriptor, in their order.
        RateLimitResponse.DescriptorStatus status =
                response.getStatusesList().stream()
                        .findFirst()
                        .orElseGet(RateLimitResponse.DescriptorStatus::getDefaultInstance);
        return new Decision(
                response.getOverallCode() != RateLimitResponse.Code.OVER_LIMIT,
                status.getCurrentLimit().getRequestsPerUnit(),
                status.getLimitRemaining(),
                Duration.ofSeconds(status.getDurationUntilReset().getSeconds()),
                headers,
                null);
    }

    /** Closes the connections. */
    @Override
    public void close() {
        channel.shutdown();
    }
}
