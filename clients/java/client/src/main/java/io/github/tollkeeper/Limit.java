package io.github.tollkeeper;

import java.util.Locale;

/**
 * A limit as its rule has it.
 *
 * @param name the name of the limit; empty if it has none
 * @param hits the most hits in one window; 0 admits none
 * @param units number of units in one window
 * @param unit such as {@code minute}; {@code unknown} for a limit on what is in flight
 */
public record Limit(String name, long hits, int units, String unit) {
    Limit(tollkeeper.v1.Limit limit) {
        this(limit.getName(), limit.getRequestsPerUnit(), limit.getUnitMultiplier(),
                limit.getUnit().name().toLowerCase(Locale.ROOT));
    }
}
