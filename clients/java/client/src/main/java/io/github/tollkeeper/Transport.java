package io.github.tollkeeper;

import io.grpc.CallOptions;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/** The connections to all replicas, and requests, which end within the timeout. */
final class Transport {
    private static final System.Logger LOGGER = System.getLogger(Client.class.getName());
    private static final StatusRuntimeException NOT_OURS = Status.INTERNAL
            .withDescription("the answer has another number of items than the request").asRuntimeException();

    private final Client.Builder settings;
    private final ManagedChannel channel;

    Transport(Client.Builder settings) {
        this.settings = settings;
        ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(settings.target, settings.credentials)
                // The name of a headless Service has the addresses of all replicas.
                .defaultLoadBalancingPolicy("round_robin")
                // A configuration in DNS could add retries, which charge twice.
                .disableServiceConfigLookUp()
                // Notices a peer that disappeared without closing its connection, also if calls are rare.
                .keepAliveTime(10, TimeUnit.SECONDS)
                .keepAliveTimeout(2, TimeUnit.SECONDS)
                .keepAliveWithoutCalls(true)
                // A decision after a quiet time would spend its timeout on a new connection.
                .idleTimeout(Long.MAX_VALUE, TimeUnit.DAYS);
        settings.serverName.ifPresent(builder::overrideAuthority);
        channel = builder.build();
        channel.getState(true);
        connectAgain();
    }

    /** Each second, since gRPC's own backoff grows to two minutes and cannot be set. */
    private void connectAgain() {
        if (!channel.isShutdown()) {
            channel.resetConnectBackoff();
            CompletableFuture.delayedExecutor(1, TimeUnit.SECONDS).execute(this::connectAgain);
        }
    }

    /** What a request has got: a message, or an error. */
    record Answer<A>(A message, Optional<StatusRuntimeException> error, Duration elapsed) {
        /** The items of the answer, one for each item of the request. */
        <I> Answer<List<I>> items(Function<A, List<I>> list, int count) {
            List<I> items = error.isPresent() ? List.of() : list.apply(message);
            return new Answer<>(items, items.size() == count ? error : error.or(() -> Optional.of(NOT_OURS)), elapsed);
        }
    }

    <Q, A> CompletableFuture<Answer<A>> send(
            MethodDescriptor<Q, A> method, Q request, CallOptions options, Context context) {
        Answering<A> answering = new Answering<>();
        CallOptions bounded = options.withDeadlineAfter(settings.timeout.toNanos(), TimeUnit.NANOSECONDS);
        context.run(() -> ClientCalls.asyncUnaryCall(channel.newCall(method, bounded), request, answering));
        return answering.answer;
    }

    /** Reports a request to the hook. */
    void report(String method, Duration elapsed, Optional<StatusRuntimeException> error) {
        String outcome = error.map(it -> it.getStatus().getCode().name()).orElse("ok");
        try {
            settings.onCall.called(method, elapsed, outcome);
        } catch (RuntimeException thrown) {
            LOGGER.log(System.Logger.Level.WARNING, "onCall has failed", thrown);
        }
    }

    void close() {
        channel.shutdown();
    }

    private static final class Answering<A> implements StreamObserver<A> {
        final CompletableFuture<Answer<A>> answer = new CompletableFuture<>();
        private final long start = System.nanoTime();
        private A message;

        @Override
        public void onNext(A value) {
            message = value;
        }

        @Override
        public void onError(Throwable error) {
            complete(Optional.of(Status.fromThrowable(error).asRuntimeException()));
        }

        @Override
        public void onCompleted() {
            complete(Optional.empty());
        }

        private void complete(Optional<StatusRuntimeException> error) {
            answer.complete(new Answer<>(message, error, Duration.ofNanos(System.nanoTime() - start)));
        }
    }
}
