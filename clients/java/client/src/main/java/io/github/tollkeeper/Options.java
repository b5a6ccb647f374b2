package io.github.tollkeeper;

import io.github.tollkeeper.Client.OnCall;
import io.github.tollkeeper.Client.OnFailure;
import java.time.Duration;

/** How a client decides. It does not change: each method makes another one. */
public final class Options {
    /** More is no number of nanoseconds. */
    private static final Duration TIMEOUT_MAX = Duration.ofNanos(Long.MAX_VALUE);

    final String domain;
    final Duration timeout;
    final Duration commitTimeout;
    final OnFailure onFailure;
    final OnCall onCall;
    final boolean requiresLimit;
    final Duration rememberDenials;

    private Options(String domain, Duration timeout, Duration commitTimeout, OnFailure onFailure, OnCall onCall,
            boolean requiresLimit, Duration rememberDenials) {
        Call.require(domain != null && !domain.isEmpty(), "domain: must not be empty");
        requireTimeout("timeout", timeout);
        requireTimeout("commitTimeout", commitTimeout);
        Call.require(onFailure != null, "onFailure: must not be null");
        Call.require(onCall != null, "onCall: must not be null");
        Call.require(!rememberDenials.isNegative(), "rememberDenials: must be at least 0, not " + rememberDenials);
        this.domain = domain;
        this.timeout = timeout;
        this.commitTimeout = commitTimeout;
        this.onFailure = onFailure;
        this.onCall = onCall;
        this.requiresLimit = requiresLimit;
        this.rememberDenials = rememberDenials;
    }

    private static void requireTimeout(String field, Duration time) {
        Call.require(time.compareTo(Duration.ZERO) > 0 && time.compareTo(TIMEOUT_MAX) <= 0,
                field + ": must be more than 0 and at most " + TIMEOUT_MAX + ", not " + time);
    }

    /** The defaults for a domain of the rules. */
    public static Options of(String domain) {
        return new Options(domain, Duration.ofMillis(50), Duration.ofSeconds(2), OnFailure.ALLOW, OnCall.NONE, false,
                Duration.ZERO);
    }

    /** These options for another domain. */
    public Options domain(String other) {
        return new Options(other, timeout, commitTimeout, onFailure, onCall, requiresLimit, rememberDenials);
    }

    /** How long a decision waits for the service; 50 ms by default. */
    public Options timeout(Duration time) {
        return new Options(domain, time, commitTimeout, onFailure, onCall, requiresLimit, rememberDenials);
    }

    /** How long a commit is repeated until it is answered; 2 s by default. An attempt takes at most a quarter of it. */
    public Options commitTimeout(Duration time) {
        return new Options(domain, timeout, time, onFailure, onCall, requiresLimit, rememberDenials);
    }

    /** Decides calls that the service does not answer; {@link OnFailure#ALLOW} by default. */
    public Options onFailure(OnFailure decides) {
        return new Options(domain, timeout, commitTimeout, decides, onCall, requiresLimit, rememberDenials);
    }

    /** Is called after each decision and each commit, for metrics. */
    public Options onCall(OnCall hook) {
        return new Options(domain, timeout, commitTimeout, onFailure, hook, requiresLimit, rememberDenials);
    }

    /** Makes a call that meets no limit a mistake of the caller, for tests and staging: it finds misspelt keys. */
    public Options requireLimit(boolean isRequired) {
        return new Options(domain, timeout, commitTimeout, onFailure, onCall, isRequired, rememberDenials);
    }

    /**
     * How long a denial is given again without a request, at most until its {@link Decision#retryAfter}; 0, the default,
     * asks each time. Meanwhile the client does not see what would let the call pass, such as a refund or a reset.
     */
    public Options rememberDenials(Duration time) {
        return new Options(domain, timeout, commitTimeout, onFailure, onCall, requiresLimit, time);
    }
}
