package io.github.tollkeeper;

import io.github.tollkeeper.Client.Renewed;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import tollkeeper.v1.Commit;

/**
 * Hits that are charged before the work, and replaced by what it has used. Closing it commits, however the work ends:
 *
 * <pre>{@code
 * try (Hold hold = client.hold(400, Descriptor.on("user", user))) {
 *     if (!hold.allowed()) {
 *         return "too many tokens";
 *     }
 *     Answer answer = ask(question);
 *     hold.commit(answer.tokens());
 *     return answer.text();
 * }
 * }</pre>
 *
 * <p>Any thread may call its methods.
 */
public final class Hold implements AutoCloseable {
    private final Client client;
    private final Call call;
    private Decision decision;
    /** What is to be committed; without a token if nothing is. */
    private Commit.Builder commit;
    /** What was used before a renewal that has ended nothing: it is committed too. */
    private Commit before;
    private volatile boolean isCommitted;

    Hold(Client client, Call call, Decision decision) {
        this.client = client;
        this.call = call;
        begin(decision, decision.hold());
    }

    private void begin(Decision made, String token) {
        decision = made;
        commit = Commit.newBuilder().setHold(token);
        before = Commit.getDefaultInstance();
        isCommitted = false;
    }

    /** The last decision about the hold. One that is denied has nothing to commit. */
    public synchronized Decision decision() {
        return decision;
    }

    /** Whether the work may begin, or go on after {@link #renew}. */
    public boolean allowed() {
        return decision().allowed();
    }

    /** Sets the number of hits that the work has used. Without it, the estimate stays charged. */
    public synchronized void use(long hits) {
        Call.checkHits("used", hits);
        commit.setUsed(hits);
    }

    /** Sets the same by kind, for limits with {@code weights}. */
    public synchronized void useByKind(Map<String, Long> hitsByKind) {
        Call.checkKinds("usedByKind", hitsByKind);
        commit.clearUsedByKind().putAllUsedByKind(hitsByKind);
    }

    /** Sets how the work ended, such as {@code 503 UF}, which is compared with {@code unused_on} of the rule. */
    public synchronized void end(String end) {
        commit.setEnd(end);
    }

    /** Commits what was used so far, and holds an estimate for what follows. */
    public Decision renew(long used, long estimate) {
        use(used);
        return renew(new Call(Call.Mode.TAKE, OptionalLong.of(estimate), call.descriptors(), Map.of(), ""));
    }

    /**
     * Commits what {@link #use} has set, and holds the hits of a call with mode TAKE. It is a decision: it is not repeated.
     * If it is not allowed, the work must end here, and closing commits what the service has not committed. Where nothing is
     * held, it only decides the call.
     */
    public Decision renew(Call next) {
        Commit used = pending();
        Renewed renewed = used.getHold().isEmpty() ? new Renewed(client.decide(next), true) : client.renew(used, next);
        synchronized (this) {
            if (renewed.endsHold()) {
                begin(renewed.decision(), renewed.decision().hold());
            } else {
                before = used;
                commit.clearUsed().clearUsedByKind();
            }
            decision = renewed.decision();
        }
        try {
            client.requireLimits(List.of(next), false, List.of(renewed.decision()));
        } catch (IllegalArgumentException mistake) {
            synchronized (this) {
                commit.clearHold();
            }
            throw mistake;
        }
        return renewed.decision();
    }

    /** Gives back all that is held, now. */
    public CommitResult release() {
        synchronized (this) {
            before = Commit.getDefaultInstance();
            commit.clearUsedByKind();
        }
        return commit(0);
    }

    /** Sets the number of hits that the work has used, and commits. */
    public CommitResult commit(long used) {
        use(used);
        return commit();
    }

    /**
     * Replaces what is held by what was used. It may be repeated: only the first commit counts. Without an answer it is
     * sent again until the commit timeout ends. It never throws, also if the thread is interrupted: the result has the
     * error.
     */
    public CommitResult commit() {
        return commitAsync().join();
    }

    /** The same without waiting. */
    public CompletableFuture<CommitResult> commitAsync() {
        Commit sent = pending();
        return sent.getHold().isEmpty() ? CompletableFuture.completedFuture(CommitResult.NONE)
                : client.commit(sent).thenApply(result -> noted(sent, result));
    }

    private synchronized Commit pending() {
        Commit.Builder sum = commit.clone();
        if (before.hasUsed()) {
            sum.setUsed(before.getUsed() + commit.getUsed());
        }
        before.getUsedByKindMap().forEach(
                (kind, hits) -> sum.putUsedByKind(kind, hits + commit.getUsedByKindOrDefault(kind, 0)));
        return sum.build();
    }

    private synchronized CommitResult noted(Commit sent, CommitResult result) {
        isCommitted |= !result.failed() && sent.getHold().equals(commit.getHold());
        return result;
    }

    /** Commits, unless a commit has succeeded. */
    @Override
    public void close() {
        if (!isCommitted) {
            commit();
        }
    }
}
