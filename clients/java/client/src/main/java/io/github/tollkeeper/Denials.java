package io.github.tollkeeper;

import com.google.protobuf.ByteString;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

/** Denials of the service, which are given again without a request. */
final class Denials {
    private static final int MOST = 10_000;
    /** Callers may send long values. This bounds the memory that they take. */
    private static final int REQUEST_BYTES_MAX = 1_024;

    private record Denial(Decision decision, long since) {}

    /** Sorted, so that nobody can slow it down by values with equal hashes. */
    private final Map<ByteString, Denial> denials = new TreeMap<>(ByteString.unsignedLexicographicalComparator());

    /** The denial of an equal request, if it is not older than this. */
    synchronized Optional<Decision> find(ByteString request, Duration most) {
        Denial denial = denials.get(request);
        if (denial == null) {
            return Optional.empty();
        }
        Duration passed = Duration.ofNanos(System.nanoTime() - denial.since());
        boolean isOver = passed.compareTo(most) >= 0 || passed.compareTo(denial.decision().retryAfter().orElseThrow()) >= 0;
        return isOver ? Optional.empty() : Optional.of(denial.decision().later(passed));
    }

    synchronized void add(ByteString request, Decision decision) {
        if (request.size() <= REQUEST_BYTES_MAX) {
            denials.put(request, new Denial(decision, System.nanoTime()));
        }
        if (denials.size() > MOST) {
            denials.clear();
        }
    }
}
