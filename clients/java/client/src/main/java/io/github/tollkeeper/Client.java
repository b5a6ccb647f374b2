package io.github.tollkeeper;

import io.github.tollkeeper.Transport.Answer;
import io.grpc.CallOptions;
import io.grpc.ChannelCredentials;
import io.grpc.Context;
import io.grpc.InsecureChannelCredentials;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.IntStream;
import tollkeeper.v1.Commit;
import tollkeeper.v1.CommitRequest;
import tollkeeper.v1.CommitResponse;
import tollkeeper.v1.CommitResult;
import tollkeeper.v1.DecideResponse;
import tollkeeper.v1.TollkeeperGrpc;
import tollkeeper.v1.Verdict;

/**
 * Decides calls in one domain. Make one for the process: its threads share its connections.
 *
 * <p>Every decision is made within the timeout, whatever the service does: without an answer, {@link OnFailure} decides.
 * An {@link IllegalArgumentException} is thrown only for a mistake of the caller, before anything is sent.
 */
public final class Client implements AutoCloseable {
    private static final int COMMIT_ATTEMPTS = 3;
    private static final Executor COMMIT_PAUSE = CompletableFuture.delayedExecutor(100, TimeUnit.MILLISECONDS);

    /** Decides calls that the service does not answer. */
    @FunctionalInterface
    public interface OnFailure {
        /** Fails open: calls pass while the service does not answer. */
        OnFailure ALLOW = (error, descriptors) -> true;
        /** Fails closed: calls are denied while the service does not answer. */
        OnFailure DENY = (error, descriptors) -> false;

        boolean allows(StatusRuntimeException error, List<Descriptor> descriptors);
    }

    /** Is called after each request, for metrics. What it throws is logged. */
    @FunctionalInterface
    public interface OnCall {
        /**
         * @param method {@code decide} or {@code commit}
         * @param outcome {@code ok}, or a gRPC code such as {@code DEADLINE_EXCEEDED}
         */
        void called(String method, Duration elapsed, String outcome);
    }

    private final Builder settings;
    private final Transport transport;

    private Client(Builder settings) {
        this.settings = settings;
        transport = new Transport(settings);
    }

    /**
     * Settings of a client of the service at a target, such as {@code localhost:8081}. Calls go to all addresses of the
     * name in turn, so use the name of a headless Service in Kubernetes.
     */
    public static Builder builder(String target, String domain) {
        return new Builder(target, domain);
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
        return decideAll(List.of(call), false).get(0);
    }

    /** Decides one call without waiting. */
    public CompletableFuture<Decision> decideAsync(Call call) {
        return decideAllAsync(List.of(call), false).thenApply(decisions -> decisions.get(0));
    }

    /** Decides up to 1,000 calls in one request, each for itself, in their order. */
    public List<Decision> decideAll(List<Call> calls) {
        return calls.isEmpty() ? List.of() : decideAll(calls, true);
    }

    /** The same without waiting. */
    public CompletableFuture<List<Decision>> decideAllAsync(List<Call> calls) {
        return calls.isEmpty() ? CompletableFuture.completedFuture(List.of()) : decideAllAsync(calls, true);
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
        return new Hold(this, decide(call));
    }

    /** The same without waiting. */
    public CompletableFuture<Hold> holdAsync(Call call) {
        return decideAsync(call).thenApply(decision -> new Hold(this, decision));
    }

    /** A hold that another process has taken, to be committed here. Its name is {@link Decision#hold}. */
    public Hold resume(String hold) {
        return new Hold(this, Decision.without(true, Optional.empty(), hold));
    }

    /** Closes the connections when the calls in progress have ended. */
    @Override
    public void close() {
        transport.close();
    }

    private List<Decision> decideAll(List<Call> calls, boolean isBatch) {
        // The thread that reads the answer only wakes the one that waits, which does the rest itself.
        CallOptions options = CallOptions.DEFAULT.withExecutor(Runnable::run);
        return decisions(calls, send(calls, isBatch, options).join());
    }

    private CompletableFuture<List<Decision>> decideAllAsync(List<Call> calls, boolean isBatch) {
        return send(calls, isBatch, CallOptions.DEFAULT).thenApply(answer -> decisions(calls, answer));
    }

    private CompletableFuture<Answer<DecideResponse>> send(List<Call> calls, boolean isBatch, CallOptions options) {
        return transport.send(TollkeeperGrpc.getDecideMethod(), Call.encode(settings.domain, calls, isBatch), options,
                Context.current());
    }

    private List<Decision> decisions(List<Call> calls, Answer<DecideResponse> answer) {
        Answer<List<Verdict>> verdicts = answer.items(DecideResponse::getVerdictsList, calls.size());
        transport.report("decide", answer.elapsed(), verdicts.error());
        return IntStream.range(0, calls.size()).mapToObj(i -> verdicts.error()
                .or(() -> Decision.errorOf(verdicts.message().get(i)))
                .map(error -> failed(calls.get(i), error))
                .orElseGet(() -> Decision.of(verdicts.message().get(i), Optional.empty()))).toList();
    }

    private Decision failed(Call call, StatusRuntimeException error) {
        return Decision.without(settings.onFailure.allows(error, call.descriptors()), Optional.of(error), "");
    }

    CompletableFuture<CommitResult> commit(Commit commit) {
        CommitRequest request = CommitRequest.newBuilder().setDomain(settings.domain).addCommits(commit).build();
        // It has the values of the caller's context, such as a trace, and does not end with it.
        return commit(request, Context.current().fork(), COMMIT_ATTEMPTS);
    }

    private CompletableFuture<CommitResult> commit(CommitRequest request, Context context, int attempts) {
        // In contrast to a decision, a commit may wait for a connection.
        CallOptions options = CallOptions.DEFAULT.withWaitForReady();
        return transport.send(TollkeeperGrpc.getCommitMethod(), request, options, context).thenCompose(answer -> {
            Answer<List<CommitResult>> results = answer.items(CommitResponse::getResultsList, 1);
            CommitResult result = results.error().map(Client::failed).orElseGet(() -> results.message().get(0));
            transport.report("commit", answer.elapsed(), result.hasError()
                    ? Optional.of(StatusProto.toStatusRuntimeException(result.getError())) : Optional.empty());
            // The service itself keeps a commit that its store has not answered.
            return attempts > 1 && answer.error().filter(Client::isRepeated).isPresent()
                    ? CompletableFuture.supplyAsync(() -> commit(request, context, attempts - 1), COMMIT_PAUSE)
                            .thenCompose(Function.identity())
                    : CompletableFuture.completedFuture(result);
        });
    }

    private static CommitResult failed(StatusRuntimeException error) {
        return CommitResult.newBuilder().setError(StatusProto.fromStatusAndTrailers(error.getStatus(), null)).build();
    }

    private static boolean isRepeated(StatusRuntimeException error) {
        return switch (error.getStatus().getCode()) {
            case UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNKNOWN -> true;
            default -> false;
        };
    }

    /** Settings of a client. Each has a default. */
    public static final class Builder {
        final String target;
        final String domain;
        Duration timeout = Duration.ofMillis(50);
        OnFailure onFailure = OnFailure.ALLOW;
        OnCall onCall = (method, elapsed, outcome) -> {};
        ChannelCredentials credentials = InsecureChannelCredentials.create();
        Optional<String> serverName = Optional.empty();

        private Builder(String target, String domain) {
            Call.require(target != null && !target.isEmpty(), "target: must not be empty");
            Call.require(domain != null && !domain.isEmpty(), "domain: must not be empty");
            this.target = target;
            this.domain = domain;
        }

        /** How long a decision, and each attempt of a commit, waits for the service; 50 ms by default. */
        public Builder timeout(Duration timeout) {
            Call.require(timeout.compareTo(Duration.ZERO) > 0, "timeout: must be more than 0, not " + timeout);
            this.timeout = timeout;
            return this;
        }

        /** Decides calls that the service does not answer; {@link OnFailure#ALLOW} by default. */
        public Builder onFailure(OnFailure onFailure) {
            this.onFailure = onFailure;
            return this;
        }

        /** Is called after each request, for metrics. */
        public Builder onCall(OnCall onCall) {
            this.onCall = onCall;
            return this;
        }

        /** Encrypts the connections. {@link io.grpc.TlsChannelCredentials} makes it of PEM files. */
        public Builder tls(ChannelCredentials credentials) {
            this.credentials = credentials;
            return this;
        }

        /** The name in the service's certificate, if it is not the one of the target. */
        public Builder serverName(String serverName) {
            this.serverName = Optional.of(serverName);
            return this;
        }

        /** Makes the client, and begins to connect. It does not wait for the service. */
        public Client build() {
            return new Client(this);
        }
    }
}
