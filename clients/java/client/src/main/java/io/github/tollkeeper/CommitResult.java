package io.github.tollkeeper;

import io.grpc.StatusRuntimeException;
import java.util.List;
import java.util.Optional;
import tollkeeper.v1.CommittedCharge;

/**
 * What has become of a commit.
 *
 * @param charges one for each counter of the hold
 * @param error why nothing was committed
 */
public record CommitResult(List<Charge> charges, Optional<StatusRuntimeException> error) {
    /** Of a hold that has nothing to commit. */
    static final CommitResult NONE = new CommitResult(List.of(), Optional.empty());

    /**
     * What a commit was to a counter. APPLIED: {@code used} counts now. REPEATED: the hold was committed before. LATE: its
     * time had passed. UNKNOWN: the service sends the commit when its store answers.
     */
    public enum Outcome { UNKNOWN, APPLIED, REPEATED, LATE }

    /**
     * One counter's part of a commit.
     *
     * @param held number of hits that were held
     * @param used number of hits that the commit stands for
     */
    public record Charge(Outcome outcome, long held, long used) {
        private Charge(CommittedCharge charge) {
            this(switch (charge.getOutcome()) {
                case APPLIED -> Outcome.APPLIED;
                case REPEATED -> Outcome.REPEATED;
                case LATE -> Outcome.LATE;
                default -> Outcome.UNKNOWN;
            }, Status.count(charge.getHeld()), Status.count(charge.getUsed()));
        }
    }

    CommitResult(tollkeeper.v1.CommitResult result) {
        this(result.getChargesList().stream().map(Charge::new).toList(), result.hasError()
                ? Optional.of(Decision.error(result.getError())) : Optional.empty());
    }

    /** Whether nothing was committed. */
    public boolean failed() {
        return error.isPresent();
    }
}
