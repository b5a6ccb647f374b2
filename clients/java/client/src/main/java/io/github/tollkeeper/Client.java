package io.github.tollkeeper;

import io.github.tollkeeper.Connection.Answer;
import io.github.tollkeeper.Connection.Sent;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.Context;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import tollkeeper.v1.Commit;
import tollkeeper.v1.CommitRequest;
import tollkeeper.v1.CommitResponse;
import tollkeeper.v1.DecideRequest;
import tollkeeper.v1.DecideResponse;
import tollkeeper.v1.RenewRequest;
import tollkeeper.v1.RenewResponse;
import tollkeeper.v1.RenewResult;
import tollkeeper.v1.Renewal;
import tollkeeper.v1.TollkeeperGrpc;
import tollkeeper.v1.Verdict;

/**
 * Decides calls in one domain. Make one for the process: its threads share its connections.
 *
 * <p>Every decision is made within the timeout, whatever the service does: without an answer, {@link OnFailure} decides.
 * An {@link IllegalArgumentException} is thrown only for a mistake of the caller: before anything is sent, but for
 * {@link Options#requireLimit}.
 */
public final class Client implements AutoCloseable {
    private static final int WARM_UP_CALLS = 10;
    private static final Duration COMMIT_PAUSE = Duration.ofMillis(100);
    /** The thread that reads the answer only wakes the one that waits, which does the rest itself. */
    private static final CallOptions BLOCKING = CallOptions.DEFAULT.withExecutor(Runnable::run);

    /** Decides calls that the service does not answer. If it throws, the call is denied. */
    @FunctionalInterface
    public interface OnFailure {
        /** Fails open: calls pass while the service does not answer. */
        OnFailure ALLOW = (error, descriptors) -> true;
        /** Fails closed: calls are denied while the service does not answer. */
        OnFailure DENY = (error, descriptors) -> false;

        boolean allows(StatusRuntimeException error, List<Descriptor> descriptors);
    }

    /** Is called after each decision, and once for each commit, for metrics. What it throws is logged. */
    @FunctionalInterface
    public interface OnCall {
        /** Does nothing. */
        OnCall NONE = (method, elapsed, outcome) -> {};

        /**
         * @param method {@code decide}, {@code renew} or {@code commit}
         * @param elapsed of a commit, over all attempts
         * @param outcome {@code ok}, or a gRPC code such as {@code DEADLINE_EXCEEDED}
         */
        void called(String method, Duration elapsed, String outcome);
    }

    private final Connection connection;
    private final Options options;
    private final boolean ownsConnection;

    private Client(Connection connection, Options options, boolean ownsConnection) {
        this.connection = connection;
        this.options = options;
        this.ownsConnection = ownsConnection;
    }

    /** A client of the service at a target, such as {@code localhost:8081}, for a domain of its rules. */
    public static Client connect(String target, String domain) {
        return connect(target, Options.of(domain));
    }

    /**
     * The same with options. It begins to connect, and does not wait. Calls go to all addresses of the name in turn, so
     * use the name of a headless Service in Kubernetes.
     */
    public static Client connect(String target, Options options) {
        return connect(target, InsecureChannelCredentials.create(), options);
    }

    /** The same with TLS. {@link io.grpc.TlsChannelCredentials} makes the credentials of PEM files. */
    public static Client connect(String target, ChannelCredentials credentials, Options options) {
        return connect(target, credentials, options, channel -> {});
    }

    /** The same with further settings of the channel, such as interceptors, or another name in the certificate. */
    public static Client connect(
            String target, ChannelCredentials credentials, Options options, Consumer<ManagedChannelBuilder<?>> channel) {
        Call.require(target != null && !target.isEmpty(), "target: must not be empty");
        return new Client(new Connection(target, credentials, channel), options, true);
    }

    /** The same over a channel of the caller, who also closes it. */
    public static Client over(Channel channel, Options options) {
        return new Client(new Connection(channel), options, true);
    }

    /**
     * A client with other options over the same connections, which {@link #close} of this one closes. It costs little, so
     * that one call can have it: {@code client.with(it -> it.timeout(Duration.ofSeconds(1))).decideAll(calls)}.
     */
    public Client with(UnaryOperator<Options> change) {
        return new Client(connection, change.apply(options), false);
    }

    /**
     * Connects, and loads the classes that decisions need, so that the first ones do not spend their timeout on it. It
     * charges nothing.
     *
     * @return whether the service has answered in time
     */
    public boolean warmUp(Duration atMost) {
        Fake.rehearse();
        long end = System.nanoTime() + TimeUnit.NANOSECONDS.convert(atMost);
        List<Call> calls = List.of(Call.read(Descriptor.on("warm-up", "")));
        for (int i = 0; i < WARM_UP_CALLS; i++) {
            long left = Math.max(1, end - System.nanoTime());
            Client patient = with(it -> it.timeout(Duration.ofNanos(left)).onFailure(OnFailure.ALLOW).onCall(OnCall.NONE)
                    .requireLimit(false));
            if (patient.decideAll(calls, false, BLOCKING.withWaitForReady()).get(0).failed()) {
                return false;
            }
        }
        return true;
    }

    /** Charges one hit to each descriptor if all of them have room, or else nothing. */
    public Decision decide(Descriptor... descriptors) {
        return decide(Call.take(1, descriptors));
    }

    /** Charges the hits to each descriptor if all of them fit, or else nothing. */
    public Decision decide(long hits, Descriptor... descriptors) {
        return decide(Call.take(hits, descriptors));
    }

    /** Charges nothing, and answers as for one hit. */
    public Decision check(Descriptor... descriptors) {
        return decide(Call.check(descriptors));
    }

    /** Charges nothing and denies nothing: there is a status for each limit of each descriptor. */
    public Decision read(Descriptor... descriptors) {
        return decide(Call.read(descriptors));
    }

    /** Charges the hits in any case, since the work is done. The decision shows whether they fit. */
    public Decision debit(long hits, Descriptor... descriptors) {
        return decide(Call.debit(hits, descriptors));
    }

    /** Charges as many of the hits as fit, which {@link Decision#hits} shows, and is denied if none does. */
    public Decision part(long hits, Descriptor... descriptors) {
        return decide(Call.part(hits, descriptors));
    }

    /** Gives hits back. */
    public Decision refund(long hits, Descriptor... descriptors) {
        return decide(Call.refund(hits, descriptors));
    }

    /** Decides one call. */
    public Decision decide(Call call) {
        return decideAll(List.of(call), false, BLOCKING).get(0);
    }

    /** Decides one call without waiting. To cancel the future ends the request. */
    public CompletableFuture<Decision> decideAsync(Call call) {
        return decideAsync(List.of(call), false, decisions -> decisions.get(0));
    }

    /** Decides up to 1,000 calls in one request, each for itself, in their order. */
    public List<Decision> decideAll(List<Call> calls) {
        return calls.isEmpty() ? List.of() : decideAll(calls, true, BLOCKING);
    }

    /** The same without waiting. */
    public CompletableFuture<List<Decision>> decideAllAsync(List<Call> calls) {
        return calls.isEmpty() ? CompletableFuture.completedFuture(List.of())
                : decideAsync(calls, true, Function.identity());
    }

    /** Holds an estimate for work that begins now. All descriptors have room for it, or nothing is held. */
    public Hold hold(long estimate, Descriptor... descriptors) {
        Call.checkHits("estimate", estimate);
        return hold(Call.take(estimate, descriptors));
    }

    /** Holds the estimate of the rule. */
    public Hold hold(Descriptor... descriptors) {
        return hold(Call.take(descriptors));
    }

    /** Holds the hits of a call with mode TAKE, which may have {@link Call#withHitsByKind estimates by kind}. */
    public Hold hold(Call call) {
        return new Hold(this, call, detached(() -> decide(call)));
    }

    /** The same without waiting. What is held after the future was cancelled, or has ended otherwise, is given back. */
    public CompletableFuture<Hold> holdAsync(Call call) {
        CompletableFuture<Decision> decided = detached(() -> decideAsync(call));
        CompletableFuture<Hold> future = decided.thenApply(decision -> new Hold(this, call, decision));
        future.whenComplete((hold, error) -> {
            if (hold == null) {
                connection.await(options.commitTimeout, () -> decided.thenAccept(this::giveBack));
            }
        });
        return future;
    }

    private void giveBack(Decision decision) {
        if (!decision.hold().isEmpty()) {
            commit(Commit.newBuilder().setHold(decision.hold()).setUsed(0).build());
        }
    }

    /** With the values of the caller's context, and not ended with it: the caller could not commit what is held then. */
    static <R> R detached(Supplier<R> request) {
        Context context = Context.current().fork();
        Context before = context.attach();
        try {
            return request.get();
        } finally {
            context.detach(before);
        }
    }

    /** A hold that another process has taken, to be committed here. Its name is {@link Decision#hold}. */
    public Hold resume(String hold) {
        return new Hold(this, Call.take(), Decision.without(true, Optional.empty(), hold));
    }

    /** For middleware: logs why a request could not be limited, at most once a minute. */
    public void logMistake(Throwable mistake) {
        connection.logThrown(Level.ERROR, "a request could not be limited, and ended with an internal error", mistake);
    }

    /**
     * Waits for commits in progress, at most the commit timeout and a second, and closes the connections. Decisions in
     * progress and later calls get no answer. A client that {@link #with} has made closes nothing. {@link OnCall} and
     * loggers may close it.
     */
    @Override
    public void close() {
        if (ownsConnection) {
            connection.close(options.commitTimeout);
        }
    }

    private List<Decision> decideAll(List<Call> calls, boolean isBatch, CallOptions callOptions) {
        DecideRequest request = Call.encode(options.domain, calls, isBatch);
        return remembered(calls, request).map(List::of).orElseGet(() -> {
            Sent<DecideResponse> sent = send(calls, request, callOptions);
            return awaited(sent, answer -> decisions(calls, isBatch, request, answer));
        });
    }

    private static <A, R> R awaited(Sent<A> sent, Function<Answer<A>, R> decide) {
        try {
            return decide.apply(sent.answer().join());
        } finally {
            sent.end().complete(null);
        }
    }

    private <R> CompletableFuture<R> decideAsync(List<Call> calls, boolean isBatch, Function<List<Decision>, R> result) {
        DecideRequest request = Call.encode(options.domain, calls, isBatch);
        Optional<Decision> denial = remembered(calls, request);
        if (denial.isPresent()) {
            return CompletableFuture.completedFuture(result.apply(List.of(denial.get())));
        }
        Sent<DecideResponse> sent = send(calls, request, CallOptions.DEFAULT);
        CompletableFuture<R> future = sent.answer()
                .thenApply(answer -> result.apply(awaited(sent, it -> decisions(calls, isBatch, request, it))));
        future.whenComplete((decided, error) -> {
            if (future.isCancelled()) {
                // Nothing is decided for a caller that has left.
                if (!sent.answer().isDone()) {
                    sent.answer().thenAccept(answer -> report("decide", answer.elapsed(), answer.error()));
                }
                sent.end().complete(null);
                sent.cancel().run();
            }
        });
        return future;
    }

    private Sent<DecideResponse> send(List<Call> calls, DecideRequest request, CallOptions callOptions) {
        return connection.ask(TollkeeperGrpc.getDecideMethod(), calls, request, callOptions, options.timeout);
    }

    private boolean remembers(List<Call> calls) {
        return !options.rememberDenials.isZero() && calls.size() == 1 && calls.get(0).mode() == Call.Mode.TAKE
                && calls.get(0).id().isEmpty() && connection.refused(calls).isEmpty();
    }

    private Optional<Decision> remembered(List<Call> calls, DecideRequest request) {
        return remembers(calls) ? connection.denials.find(request.toByteString(), options.rememberDenials)
                : Optional.empty();
    }

    private List<Decision> decisions(
            List<Call> calls, boolean isBatch, DecideRequest request, Answer<DecideResponse> answer) {
        List<Decision> decisions =
                decisions("decide", calls, answer.items(DecideResponse::getVerdictsList, calls.size()));
        requireLimits(calls, isBatch, decisions);
        // Only the service says when to come again.
        if (remembers(calls) && decisions.get(0).retryAfter().isPresent()) {
            connection.denials.add(request.toByteString(), decisions.get(0));
        }
        return decisions;
    }

    private List<Decision> decisions(String method, List<Call> calls, Answer<List<Verdict>> verdicts) {
        List<Decision> decisions = IntStream.range(0, calls.size()).mapToObj(i -> verdicts.error()
                .or(() -> Decision.errorOf(verdicts.message().get(i), calls.get(i)))
                .map(error -> failed(calls.get(i), error))
                .orElseGet(() -> Decision.of(verdicts.message().get(i), Optional.empty()))).toList();
        List<StatusRuntimeException> failures =
                decisions.stream().filter(Decision::failed).flatMap(it -> it.error().stream()).toList();
        long withoutDomain = IntStream.range(0, calls.size()).filter(i ->
                decisions.get(i).error().isEmpty() && verdicts.message().get(i).getDomainUnknown()).count();
        if (!failures.isEmpty()) {
            connection.countFailures(failures.size(), options.domain, failures.get(failures.size() - 1));
        }
        if (withoutDomain > 0) {
            connection.countWithoutDomain(withoutDomain, options.domain);
        }
        report(method, verdicts.elapsed(), decisions.stream().flatMap(it -> it.error().stream()).findFirst());
        connection.logDue(System.nanoTime());
        return decisions;
    }

    void requireLimits(List<Call> calls, boolean isBatch, List<Decision> decisions) {
        try {
            for (int i = 0; options.requiresLimit && i < calls.size(); i++) {
                decisions.get(i).requireLimits(isBatch ? "calls[" + i + "]." : "", calls.get(i), options.domain);
            }
        } catch (IllegalArgumentException mistake) {
            // The caller does not get what they hold.
            decisions.forEach(this::giveBack);
            throw mistake;
        }
    }

    private Decision failed(Call call, StatusRuntimeException error) {
        boolean allowed = false;
        try {
            allowed = !Decision.isRefusal(error) && options.onFailure.allows(error, call.descriptors());
        } catch (Throwable thrown) {
            connection.logThrown(Level.WARNING, "on_failure has failed, and the call is denied", thrown);
        }
        return Decision.without(allowed, Optional.of(error), "");
    }

    private void report(String method, Duration elapsed, Optional<StatusRuntimeException> error) {
        try {
            options.onCall.called(method, elapsed, error.map(it -> it.getStatus().getCode().name()).orElse("ok"));
        } catch (Throwable thrown) {
            connection.logThrown(Level.WARNING, "on_call has failed", thrown);
        }
    }

    /** A decision about the next part of the work of a hold, and whether the last one has nothing more to commit. */
    record Renewed(Decision decision, boolean endsHold) {}

    Renewed renew(Commit commit, Call next) {
        Renewal renewal = Renewal.newBuilder().setCommit(commit)
                .setCall(Call.encode(options.domain, List.of(next), false).getCalls(0)).build();
        RenewRequest request = RenewRequest.newBuilder().setDomain(options.domain).addRenewals(renewal).build();
        return awaited(detached(() -> connection.ask(
                TollkeeperGrpc.getRenewMethod(), List.of(next), request, BLOCKING, options.timeout)),
                answer -> renewed(next, answer));
    }

    private Renewed renewed(Call next, Answer<RenewResponse> answer) {
        List<RenewResult> results = answer.error().isPresent() ? List.of() : answer.message().getResultsList();
        Decision decision = decisions("renew", List.of(next),
                answer.items(it -> results.stream().map(RenewResult::getVerdict).toList(), 1)).get(0);
        boolean isCommitted = results.size() == 1 && results.get(0).hasCommit() && !results.get(0).getCommit().hasError();
        return new Renewed(decision, isCommitted || !decision.hold().isEmpty());
    }

    CompletableFuture<CommitResult> commit(Commit commit) {
        CommitRequest request = CommitRequest.newBuilder().setDomain(options.domain).addCommits(commit).build();
        // It has the values of the caller's context, such as a trace, and does not end with it.
        Committing committing = new Committing(request, Context.current().fork(), System.nanoTime());
        return connection.await(options.commitTimeout, () -> connection.<CommitResponse>refusedCommit()
                .map(CompletableFuture::completedFuture).orElseGet(() -> attempt(committing, COMMIT_PAUSE)).thenApply(last -> {
            Answer<List<tollkeeper.v1.CommitResult>> results = last.items(CommitResponse::getResultsList, 1);
            CommitResult result = results.error().map(error -> new CommitResult(List.of(), Optional.of(error)))
                    .orElseGet(() -> new CommitResult(results.message().get(0)));
            result.error().ifPresent(error -> connection.countFailedCommit(options.domain, error));
            return result;
        })).thenApply(result -> {
            report("commit", Duration.ofNanos(System.nanoTime() - committing.start()), result.error());
            connection.logDue(System.nanoTime());
            return result;
        });
    }

    private record Committing(CommitRequest request, Context context, long start) {
        Duration left(Options options) {
            return options.commitTimeout.minusNanos(System.nanoTime() - start);
        }
    }

    private CompletableFuture<Answer<CommitResponse>> attempt(Committing commit, Duration pause) {
        Duration most = options.commitTimeout.dividedBy(4);
        Duration left = commit.left(options);
        Duration timeout = left.compareTo(most) < 0 ? left : most;
        // In contrast to a decision, a commit may wait for a connection.
        CallOptions waiting = CallOptions.DEFAULT.withWaitForReady();
        return connection.send(TollkeeperGrpc.getCommitMethod(), commit.request(), waiting, timeout, commit.context())
                .answer().thenCompose(answer -> {
            CompletableFuture<Answer<CommitResponse>> given = CompletableFuture.completedFuture(answer);
            if (!isUnanswered(answer, timeout) || commit.left(options).compareTo(pause) <= 0) {
                return given;
            }
            return given.thenComposeAsync(last -> commit.left(options).isNegative() ? given
                    : attempt(commit, pause.multipliedBy(2)), Connection.later(pause));
        });
    }

    /** The service itself keeps a commit that its store has not answered. */
    private static boolean isUnanswered(Answer<CommitResponse> answer, Duration timeout) {
        Code code = answer.error().map(error -> error.getStatus().getCode()).orElse(Code.OK);
        return code == Code.UNAVAILABLE || code == Code.UNKNOWN || code == Code.RESOURCE_EXHAUSTED
                // Of the attempt itself, not of the service.
                || code == Code.DEADLINE_EXCEEDED && answer.elapsed().compareTo(timeout) >= 0;
    }
}
