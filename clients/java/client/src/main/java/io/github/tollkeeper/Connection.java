package io.github.tollkeeper;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ConnectivityState;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import java.lang.System.Logger.Level;
import java.lang.ref.Cleaner;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** A channel to all replicas, which a client shares with those that {@link Client#with} makes of it. */
final class Connection {
    private static final System.Logger LOGGER = System.getLogger(Client.class.getName());
    private static final StatusRuntimeException CLOSED =
            Status.UNAVAILABLE.withDescription("the client is closed").asRuntimeException();
    private static final StatusRuntimeException NOT_OURS = Status.UNKNOWN
            .withDescription("the answer has another number of items than the request").asRuntimeException();
    private static final Cleaner CLEANER = Cleaner.create();
    private static final long LOG_PAUSE_NANOS = TimeUnit.MINUTES.toNanos(1);
    /** Other targets are not in DNS. */
    private static final Pattern NAME = Pattern.compile("(?:dns:///)?([^/:]+)(?::\\d+)?");

    private final Channel channel;
    private final String target;
    private final Runnable shutdown;
    private final Set<CompletableFuture<?>> commits = ConcurrentHashMap.newKeySet();
    final Denials denials = new Denials();
    private volatile boolean isClosed;
    /** Concurrent, since what gets a line may ask for a decision. */
    private final Map<String, Unlogged> kinds = new ConcurrentHashMap<>();
    private volatile boolean hasUnlogged;

    /** Over a channel that somebody else closes. */
    Connection(Channel channel) {
        this.channel = channel;
        target = channel.authority();
        shutdown = () -> {};
    }

    /** Over a channel of its own, which is also closed if the client is forgotten. */
    Connection(String target, ChannelCredentials credentials, Consumer<ManagedChannelBuilder<?>> settings) {
        ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(target, credentials)
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
        if (builder instanceof NettyChannelBuilder netty) {
            netty.withOption(ChannelOption.CONNECT_TIMEOUT_MILLIS, 2_000);
        }
        settings.accept(builder);
        ManagedChannel own = builder.build();
        channel = own;
        this.target = target + (credentials instanceof InsecureChannelCredentials ? ", without TLS" : ", with TLS");
        shutdown = CLEANER.register(this, own::shutdownNow)::clean;
        connect(own, target);
    }

    /** Connects now, and each second after a failure, since gRPC's own backoff grows to two minutes and cannot be set. */
    private static void connect(ManagedChannel channel, String target) {
        ConnectivityState state = channel.getState(true);
        switch (state) {
            case SHUTDOWN -> {}
            case TRANSIENT_FAILURE -> CompletableFuture.delayedExecutor(1, TimeUnit.SECONDS).execute(() -> {
                if (hasAddress(target)) {
                    channel.resetConnectBackoff();
                }
                connect(channel, target);
            });
            default -> channel.notifyWhenStateChanged(state, () -> connect(channel, target));
        }
    }

    /** Whether a name is in DNS: otherwise, gRPC would look for it each second, and log each failure with its stack. */
    private static boolean hasAddress(String target) {
        Matcher name = NAME.matcher(target);
        try {
            return !name.matches() || InetAddress.getByName(name.group(1)) != null;
        } catch (UnknownHostException isNot) {
            return false;
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

    /** A request on its way. */
    record Sent<A>(CompletableFuture<Answer<A>> answer, Runnable cancel) {}

    /** What a request gets that is not sent, such as after {@link #close}. */
    <A> Optional<Answer<A>> refused(List<Call> calls) {
        return Call.tooLarge(calls).or(() -> isClosed ? Optional.of(CLOSED) : Optional.empty())
                .map(error -> new Answer<>(null, Optional.of(error), Duration.ZERO));
    }

    /** Sends the request of these calls, unless it is refused. */
    <Q, A> Sent<A> ask(
            MethodDescriptor<Q, A> method, List<Call> calls, Q request, CallOptions options, Duration timeout) {
        return this.<A>refused(calls).map(answer -> new Sent<>(CompletableFuture.completedFuture(answer), () -> {}))
                .orElseGet(() -> send(method, request, options, timeout, Context.current()));
    }

    <Q, A> Sent<A> send(MethodDescriptor<Q, A> method, Q request, CallOptions options, Duration timeout, Context context) {
        Answering<A> answering = new Answering<>();
        try {
            ClientCall<Q, A> call = context.call(() ->
                    channel.newCall(method, options.withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS)));
            context.run(() -> ClientCalls.asyncUnaryCall(call, request, answering));
            return new Sent<>(answering.answer, () -> call.cancel("cancelled by the caller", null));
        } catch (Exception thrownByInterceptor) {
            answering.onError(thrownByInterceptor);
            return new Sent<>(answering.answer, () -> {});
        }
    }

    /** Begins a commit, which {@link #close} waits for. */
    <R> CompletableFuture<R> await(Supplier<CompletableFuture<R>> commit) {
        CompletableFuture<Void> begin = new CompletableFuture<>();
        CompletableFuture<R> result = begin.thenCompose(begun -> commit.get());
        commits.add(result);
        begin.complete(null);
        result.whenComplete((value, error) -> commits.remove(result));
        return result;
    }

    /** Waits for commits, which end within their timeouts, and ends decisions. */
    void close() {
        isClosed = true;
        CompletableFuture.allOf(commits.toArray(CompletableFuture[]::new)).join();
        logDue(System.nanoTime() + LOG_PAUSE_NANOS);
        shutdown.run();
    }

    /** What the log does not say yet of a kind of event. */
    private static final class Unlogged {
        long events;
        long quietUntil = System.nanoTime();
        /** Writes the line of them, which is due when it is no longer quiet; null if there is none. */
        LongConsumer write;
    }

    /** Logs one line for each kind at once, and then at most one a minute. The line is made of the number of events. */
    private synchronized void log(Level level, String kind, long events, LongFunction<String> line, Throwable thrown) {
        Unlogged unlogged = kinds.computeIfAbsent(kind, it -> new Unlogged());
        unlogged.events += events;
        unlogged.write = count -> LOGGER.log(level, "tollkeeper: " + line.apply(count), thrown);
        logUnlogged(System.nanoTime());
        if (thrown != null) {
            // A stack trace is not for later.
            unlogged.write = null;
        }
    }

    /** Logs the numbers of events whose minute is over by then. */
    void logDue(long now) {
        if (hasUnlogged) {
            logUnlogged(now);
        }
    }

    private synchronized void logUnlogged(long now) {
        hasUnlogged = false;
        for (Unlogged unlogged : kinds.values()) {
            if (unlogged.write != null && now - unlogged.quietUntil >= 0) {
                LongConsumer write = unlogged.write;
                long events = unlogged.events;
                unlogged.write = null;
                unlogged.events = 0;
                unlogged.quietUntil = now + LOG_PAUSE_NANOS;
                write.accept(events);
            }
            hasUnlogged |= unlogged.write != null;
        }
    }

    void logFailures(long calls, String domain, StatusRuntimeException last) {
        logErrors(calls, domain, last, "call of the domain \"%s\" had no answer and was decided by on_failure",
                "calls of the domain \"%s\" had no answer and were decided by on_failure");
    }

    void logFailedCommit(String domain, StatusRuntimeException error) {
        logErrors(1, domain, error,
                "commit of the domain \"%s\" failed, and its estimate may count in place of what was used",
                "commits of the domain \"%s\" failed, and their estimates may count in place of what was used");
    }

    private void logErrors(long number, String domain, StatusRuntimeException last, String one, String many) {
        log(Level.WARNING, one.formatted(domain), number, count -> count + " " + (count == 1 ? one : many).formatted(domain)
                + "; the last: " + reason(last) + " (target " + target + ")", null);
    }

    private static String reason(Throwable error) {
        return Stream.iterate(error, Objects::nonNull, Throwable::getCause)
                // Messages of gRPC may have lines, also those of stack traces.
                .map(cause -> String.valueOf(cause.getMessage()).replaceAll("\\s+at [^()]+\\([^()]*\\)", "")
                        .replaceAll("\\s+", " "))
                .collect(Collectors.joining(": "));
    }

    /** Logs what code of the application has thrown. */
    void logThrown(Level level, String effect, Throwable thrown) {
        log(level, effect, 1, count -> effect + "; times since the last such line: " + count, thrown);
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
            complete(message == null ? Optional.of(NOT_OURS) : Optional.empty());
        }

        private void complete(Optional<StatusRuntimeException> error) {
            answer.complete(new Answer<>(message, error, Duration.ofNanos(System.nanoTime() - start)));
        }
    }
}
