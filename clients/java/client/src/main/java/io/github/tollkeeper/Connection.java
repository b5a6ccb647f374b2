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
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
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
    private static final Duration GRACE = Duration.ofSeconds(1);
    /** In contrast to the JDK's own, its thread ends when nothing is due: it would keep the class loader of an application. */
    private static final ScheduledExecutorService TIMER = timer();
    /** Other targets are not in DNS. */
    private static final Pattern NAME = Pattern.compile("(?:dns:///)?([^/:]+)(?::\\d+)?");
    private static final int CHARACTERS_MAX = 300;
    private static final int LINES_MAX = 100;
    private static final int CAUSES_MAX = 10;
    /** A line of a stack trace, which messages of gRPC may have. */
    private static final Pattern FRAME = Pattern.compile("\\s*+at [^()]+\\([^()]*\\)\\s*");
    /** What could begin a line of the log, or show it in another order. */
    private static final Pattern CONTROLS =
            Pattern.compile("[\\s\\p{Cc}\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]+");

    private final Channel channel;
    private final String target;
    /** Closes the channel, and waits for its end for at most these nanoseconds. */
    private final LongConsumer shutdown;
    /** The ends of commits under way. */
    private final Set<CompletableFuture<Void>> commits = ConcurrentHashMap.newKeySet();
    /** The requests whose calls are not decided yet. */
    private final Set<Sent<?>> underWay = ConcurrentHashMap.newKeySet();
    final Denials denials = new Denials();
    private volatile boolean isClosed;
    /** Whether {@link #close} waits for no further commit. */
    private volatile boolean isOver;
    /** The kinds of events with a line in the last minute, in the order in which their next ones are due. */
    final Map<String, Unlogged> kinds = new LinkedHashMap<>();
    private List<Runnable> unwritten = new ArrayList<>();
    private volatile boolean isLogging;

    /** Over a channel that somebody else closes. */
    Connection(Channel channel) {
        this.channel = channel;
        target = channel.authority();
        shutdown = most -> {};
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
        Cleaner.Cleanable closing = CLEANER.register(this, own::shutdownNow);
        shutdown = most -> {
            closing.clean();
            try {
                own.awaitTermination(most, TimeUnit.NANOSECONDS);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        };
        connect(own, target);
    }

    /** Connects now, and each second after a failure, since gRPC's own backoff grows to two minutes and cannot be set. */
    private static void connect(ManagedChannel channel, String target) {
        ConnectivityState state = channel.getState(true);
        switch (state) {
            case SHUTDOWN -> {}
            case TRANSIENT_FAILURE -> later(Duration.ofSeconds(1)).execute(() -> {
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

    /** A request on its way. It has ended when what it asks for is decided. */
    record Sent<A>(CompletableFuture<Answer<A>> answer, Runnable cancel, CompletableFuture<Void> end) {
        Sent(CompletableFuture<Answer<A>> answer, Runnable cancel) {
            this(answer, cancel, new CompletableFuture<>());
        }

        private void refuse(StatusRuntimeException error) {
            answer.complete(new Answer<>(null, Optional.of(error), Duration.ZERO));
            cancel.run();
        }
    }

    /** What a request gets that is not sent, such as after {@link #close}. */
    <A> Optional<Answer<A>> refused(List<Call> calls) {
        return Call.tooLarge(calls).or(() -> isClosed ? Optional.of(CLOSED) : Optional.empty())
                .map(error -> new Answer<>(null, Optional.of(error), Duration.ZERO));
    }

    /** What a commit gets that is not sent. While {@link #close} waits for others, it is. */
    <A> Optional<Answer<A>> refusedCommit() {
        return isOver ? Optional.of(new Answer<>(null, Optional.of(CLOSED), Duration.ZERO)) : Optional.empty();
    }

    /** Sends the request of these calls, unless it is refused. {@link Sent#end} is to be completed. */
    <Q, A> Sent<A> ask(
            MethodDescriptor<Q, A> method, List<Call> calls, Q request, CallOptions options, Duration timeout) {
        Sent<A> sent = this.<A>refused(calls)
                .map(answer -> new Sent<>(CompletableFuture.completedFuture(answer), () -> {}))
                .orElseGet(() -> send(method, request, options, timeout, Context.current()));
        underWay.add(sent);
        sent.end().thenRun(() -> underWay.remove(sent));
        return sent;
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

    /** Begins a commit, which {@link #close} waits for, at most until its timeout is over. What follows it may close. */
    <R> CompletableFuture<R> await(Duration timeout, Supplier<CompletableFuture<R>> commit) {
        CompletableFuture<Void> end = new CompletableFuture<>();
        // Its last attempt has this timeout too, and should end first: its error is for the log.
        commits.add(end);
        bound(end, TimeUnit.NANOSECONDS.convert(timeout.plus(GRACE))).thenRun(() -> commits.remove(end));
        return commit.get().whenComplete((value, error) -> end.complete(null));
    }

    /**
     * Waits for commits, ends decisions, so that the log has their number, and waits for what is given back then: at most
     * this time, and {@link #GRACE}.
     */
    void close(Duration most) {
        long end = System.nanoTime() + TimeUnit.NANOSECONDS.convert(most.plus(GRACE));
        isClosed = true;
        // The decisions need a part of the grace.
        awaitAll(commits.stream(), end - System.nanoTime() - GRACE.toNanos() / 2);
        List<Sent<?>> unanswered = underWay.stream().filter(sent -> !sent.answer().isDone()).toList();
        // Not in this thread: what the application does with its decision may take long.
        unanswered.forEach(sent -> CompletableFuture.runAsync(() -> sent.refuse(CLOSED)));
        awaitAll(unanswered.stream().map(Sent::end), Math.min(end - System.nanoTime(), GRACE.toNanos()));
        awaitAll(commits.stream(), end - System.nanoTime());
        isOver = true;
        // Nor do timers wait for them any more.
        commits.forEach(commit -> commit.complete(null));
        shutdown.accept(end - System.nanoTime());
        logDue(System.nanoTime() + LOG_PAUSE_NANOS);
    }

    private static void awaitAll(Stream<CompletableFuture<Void>> futures, long mostNanos) {
        var all = CompletableFuture.allOf(futures.toArray(CompletableFuture[]::new)).exceptionally(error -> null);
        bound(all, mostNanos).join();
    }

    /** Completes the future after some time, unless it is complete before. */
    private static CompletableFuture<Void> bound(CompletableFuture<Void> future, long nanos) {
        Future<?> late = TIMER.schedule(() -> future.complete(null), nanos, TimeUnit.NANOSECONDS);
        future.thenRun(() -> late.cancel(false));
        return future;
    }

    /** Runs tasks after some time. */
    static Executor later(Duration pause) {
        return task -> TIMER.schedule(() -> CompletableFuture.runAsync(task), pause.toNanos(), TimeUnit.NANOSECONDS);
    }

    private static ScheduledExecutorService timer() {
        ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, task -> {
            Thread thread = new Thread(task, "tollkeeper-timer");
            thread.setDaemon(true);
            return thread;
        });
        timer.setRemoveOnCancelPolicy(true);
        timer.setKeepAliveTime(1, TimeUnit.SECONDS);
        timer.allowCoreThreadTimeOut(true);
        return timer;
    }

    /** What the log does not say yet of a kind of event, and what writes its line, which is due then; null if nothing is. */
    record Unlogged(long due, long events, LongConsumer write) {}

    /** Counts events. The first line of a kind is written by the next {@link #logDue}, and then at most one a minute. */
    private synchronized void count(
            Level level, String kind, long events, LongFunction<String> line, Throwable thrown) {
        long now = System.nanoTime();
        Unlogged before = kinds.getOrDefault(kind, new Unlogged(now, 0, null));
        LongConsumer write = count -> LOGGER.log(level, "tollkeeper: " + line.apply(count), thrown);
        if (now - before.due() >= 0) {
            take(kind, before.events() + events, write, now);
        } else {
            // A stack trace is not for later.
            kinds.put(kind, new Unlogged(before.due(), before.events() + events, thrown == null ? write : null));
        }
        isLogging = true;
    }

    private void take(String kind, long events, LongConsumer write, long now) {
        unwritten.add(() -> write.accept(events));
        // It is the last one that is due.
        kinds.remove(kind);
        kinds.put(kind, new Unlogged(now + LOG_PAUSE_NANOS, 0, null));
    }

    /**
     * Logs the numbers of events whose minute is over by then, and forgets kinds without one. It writes without the lock:
     * the logger is the application's, and may be slow, ask for a decision, close the client, or throw.
     */
    void logDue(long now) {
        for (Runnable line : isLogging ? due(now) : List.<Runnable>of()) {
            try {
                line.run();
            } catch (Throwable lost) {
                // It must not change what the caller gets.
            }
        }
    }

    private synchronized List<Runnable> due(long now) {
        List<Map.Entry<String, Unlogged>> over = kinds.entrySet().stream()
                .takeWhile(kind -> now - kind.getValue().due() >= 0).map(Map.Entry::copyOf).toList();
        over.forEach(kind -> {
            Unlogged unlogged = kind.getValue();
            if (unlogged.write() != null) {
                take(kind.getKey(), unlogged.events(), unlogged.write(), now);
            } else if (unlogged.events() == 0) {
                kinds.remove(kind.getKey());
            }
        });
        isLogging = !kinds.isEmpty();
        List<Runnable> due = unwritten;
        unwritten = new ArrayList<>();
        return due;
    }

    void countFailures(long calls, String domain, StatusRuntimeException last) {
        countNumber(calls, domain, Optional.of(last), "call of the domain \"%s\" had no answer and was decided by on_failure",
                "calls of the domain \"%s\" had no answer and were decided by on_failure");
    }

    void countWithoutDomain(long calls, String domain) {
        countNumber(calls, domain, Optional.empty(),
                "call of the domain \"%s\" met no limit, because the service has no such domain",
                "calls of the domain \"%s\" met no limit, because the service has no such domain");
    }

    void countFailedCommit(String domain, StatusRuntimeException error) {
        countNumber(1, domain, Optional.of(error),
                "commit of the domain \"%s\" failed, and its estimate may count in place of what was used",
                "commits of the domain \"%s\" failed, and their estimates may count in place of what was used");
    }

    private void countNumber(
            long number, String domain, Optional<StatusRuntimeException> last, String one, String many) {
        count(Level.WARNING, one.formatted(domain), number, count -> count + " "
                + (count == 1 ? one : many).formatted(shown(domain))
                + last.map(error -> "; the last: " + reason(error)).orElse("") + " (target " + target + ")", null);
    }

    private static String reason(Throwable error) {
        return Stream.iterate(error, Objects::nonNull, Throwable::getCause).limit(CAUSES_MAX)
                .map(cause -> shown(String.valueOf(cause.getMessage()))).collect(Collectors.joining(": "));
    }

    /** A text of the service or of the caller in one short line of the log. */
    private static String shown(String text) {
        // Cut before it is searched, since it may have megabytes.
        String line = text.lines().limit(LINES_MAX).map(Connection::cut).filter(it -> !FRAME.matcher(it).matches())
                .collect(Collectors.joining(" "));
        return cut(CONTROLS.matcher(line).replaceAll(" "));
    }

    private static String cut(String text) {
        if (text.length() <= CHARACTERS_MAX) {
            return text;
        }
        boolean splits = Character.isHighSurrogate(text.charAt(CHARACTERS_MAX - 1));
        return text.substring(0, splits ? CHARACTERS_MAX - 1 : CHARACTERS_MAX) + "…";
    }

    /** Logs what code of the application has thrown. */
    void logThrown(Level level, String effect, Throwable thrown) {
        count(level, effect, 1, count -> effect + "; times since the last such line: " + count, thrown);
        logDue(System.nanoTime());
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
