package io.github.tollkeeper;

import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.rpc.Code;
import com.google.rpc.RetryInfo;
import io.grpc.ForwardingServerCall.SimpleForwardingServerCall;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.List;
import java.util.Optional;

/**
 * Limits the calls of a gRPC server when they begin. A denied call ends with RESOURCE_EXHAUSTED, or with UNAVAILABLE if
 * {@link Client.OnFailure} has denied it. Retry-After, the RateLimit headers and {@link RetryInfo} are in the trailers of a
 * denied call, and the headers in those of an allowed one. A mistake, such as a descriptor without a value, ends with
 * INTERNAL, and is logged at most once a minute.
 *
 * <p>It waits for the decision in the thread of the call, which the server's executor must have to spare.
 */
public final class RateLimitServerInterceptor implements ServerInterceptor {
    /** What a call is limited by. */
    @FunctionalInterface
    public interface Descriptors {
        /**
         * An empty list lets the call pass. A {@link StatusRuntimeException} is the application's own answer: the call ends
         * with its status, of which the caller gets the description and the trailers. Anything else that it throws, and
         * null, is a mistake.
         */
        List<Descriptor> of(ServerCall<?, ?> call, Metadata headers);
    }

    private final Client client;
    private final Descriptors descriptors;

    /** An interceptor that asks this client. */
    public RateLimitServerInterceptor(Client client, Descriptors descriptors) {
        this.client = client;
        this.descriptors = descriptors;
    }

    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(
            ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
        Decision decision;
        try {
            List<Descriptor> limited = descriptors.of(call, headers);
            // A caller that leaves, or has no time left, must not end its own decision.
            decision = limited.isEmpty() ? null
                    : Client.detached(() -> client.decide(limited.toArray(Descriptor[]::new)));
        } catch (StatusRuntimeException own) {
            return ended(call, own.getStatus(), Optional.ofNullable(own.getTrailers()).orElseGet(Metadata::new));
        } catch (RuntimeException mistake) {
            client.logMistake(mistake);
            return ended(call, io.grpc.Status.INTERNAL.withDescription("internal error"), new Metadata());
        }
        if (decision == null) {
            return next.startCall(call, headers);
        }
        Metadata shown = new Metadata();
        decision.headers().forEach(
                (name, value) -> shown.put(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER), value));
        if (!decision.allowed()) {
            StatusRuntimeException denial = denial(decision);
            shown.merge(denial.getTrailers());
            return ended(call, denial.getStatus(), shown);
        }
        return next.startCall(new SimpleForwardingServerCall<>(call) {
            @Override
            public void sendHeaders(Metadata own) {
                own.merge(shown);
                super.sendHeaders(own);
            }
        }, headers);
    }

    private static StatusRuntimeException denial(Decision decision) {
        com.google.rpc.Status.Builder denial = com.google.rpc.Status.newBuilder();
        if (decision.failed()) {
            denial.setCode(Code.UNAVAILABLE_VALUE).setMessage("rate limits are unavailable");
        } else {
            denial.setCode(Code.RESOURCE_EXHAUSTED_VALUE).setMessage("too many requests");
        }
        decision.retryAfter().ifPresent(time -> denial.addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(
                Duration.newBuilder().setSeconds(time.getSeconds()).setNanos(time.getNano())).build())));
        return StatusProto.toStatusRuntimeException(denial.build());
    }

    private static <Q> ServerCall.Listener<Q> ended(ServerCall<Q, ?> call, io.grpc.Status status, Metadata trailers) {
        call.close(status, trailers);
        return new ServerCall.Listener<>() {};
    }
}
