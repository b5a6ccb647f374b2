package io.github.tollkeeper;

import java.util.Arrays;
import java.util.Optional;

/**
 * A limit as its rule has it, or a caller's own.
 *
 * @param name the name of the limit; empty if it has none
 * @param hits the most hits in one window; 0 admits none
 * @param units number of units in one window
 * @param unit empty for a limit on what is in flight
 */
public record Limit(String name, long hits, int units, Optional<Unit> unit) {
    /** Units of windows. */
    public enum Unit { SECOND, MINUTE, HOUR, DAY, WEEK, MONTH, YEAR }

    Limit(tollkeeper.v1.Limit limit) {
        this(limit.getName(), Status.count(limit.getRequestsPerUnit()), limit.getUnitMultiplier(), unit(limit.getUnit()));
    }

    static Optional<Unit> unit(tollkeeper.v1.Limit.Unit unit) {
        return Arrays.stream(Unit.values()).filter(it -> it.name().equals(unit.name())).findFirst();
    }
}
