package io.github.tollkeeper;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import tollkeeper.v1.Commit;
import tollkeeper.v1.CommitResult;

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
    private final Decision decision;
    private final Commit.Builder commit = Commit.newBuilder();
    private boolean isAnswered;

    Hold(Client client, Decision decision) {
        this.client = client;
        this.decision = decision;
        commit.setHold(decision.hold());
    }

    /** The decision about the hold. One that is denied has nothing to commit. */
    public Decision decision() {
        return decision;
    }

    /** Whether the work may begin. */
    public boolean allowed() {
        return decision.allowed();
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

    /** Gives back all that is held, now. */
    public CommitResult release() {
        useByKind(Map.of());
        return commit(0);
    }

    /** Sets the number of hits that the work has used, and commits. */
    public CommitResult commit(long used) {
        use(used);
        return commit();
    }

    /**
     * Replaces what is held by what was used. It may be repeated: only the first commit counts. Without an answer it is
     * sent up to three times. It never throws, also if the thread is interrupted: the result has the error.
     */
    public CommitResult commit() {
        return commitAsync().join();
    }

    /** The same without waiting. */
    public synchronized CompletableFuture<CommitResult> commitAsync() {
        return decision.hold().isEmpty()
                ? CompletableFuture.completedFuture(CommitResult.getDefaultInstance())
                : client.commit(commit.build()).thenApply(this::noted);
    }

    private synchronized CommitResult noted(CommitResult result) {
        isAnswered |= !result.hasError();
        return result;
    }

    private synchronized boolean isAnswered() {
        return isAnswered;
    }

    /** Commits, unless a commit was answered. */
    @Override
    public void close() {
        if (!isAnswered()) {
            commit();
        }
    }
}
