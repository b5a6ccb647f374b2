package io.github.tollkeeper;

import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import tollkeeper.v1.Verdict;

/**
 * The state of one descriptor after the call; of a read, of one limit.
 *
 * @param descriptor the index of the descriptor in the call
 * @param rule the path of the rule, such as {@code plan=free|user}; empty if no rule matched
 * @param limit empty if no limit applies
 * @param remaining number of hits that would still pass; 0 without a limit
 * @param reset the time until the window ends; without a fixed window, until the hits fit, or until no hit counts
 * @param used number of hits that count; only of a read
 * @param held number of hits that holds without a name hold beside {@code used}; only of a read
 */
public record Status(boolean allowed, int descriptor, String rule, Optional<Limit> limit, long remaining, Duration reset,
        OptionalLong used, OptionalLong held) {
    /** The most of a duration of protobuf: 10,000 years. */
    private static final long SECONDS_MAX = 315_576_000_000L;

    Status(tollkeeper.v1.Status status) {
        this(status.getCode() != Verdict.Code.OVER_LIMIT, status.getDescriptorIndex(), status.getRule(),
                status.hasCurrentLimit() ? Optional.of(new Limit(status.getCurrentLimit())) : Optional.empty(),
                count(status.getLimitRemaining()), duration(status.getDurationUntilReset()),
                status.hasUsed() ? OptionalLong.of(count(status.getUsed())) : OptionalLong.empty(),
                status.hasHeld() ? OptionalLong.of(count(status.getHeld())) : OptionalLong.empty());
    }

    /** This status some time later. */
    Status later(Duration passed) {
        return new Status(allowed, descriptor, rule, limit, remaining, less(reset, passed), used, held);
    }

    static Duration less(Duration time, Duration passed) {
        return time.compareTo(passed) > 0 ? time.minus(passed) : Duration.ZERO;
    }

    /** What a long can show of a number of the service, which has no sign. */
    static long count(long unsigned) {
        return unsigned < 0 ? Long.MAX_VALUE : unsigned;
    }

    private static Duration duration(com.google.protobuf.Duration time) {
        long seconds = Math.max(-SECONDS_MAX, Math.min(time.getSeconds(), SECONDS_MAX));
        Duration found = Duration.ofSeconds(seconds, time.getNanos());
        return found.isNegative() ? Duration.ZERO : found;
    }
}
