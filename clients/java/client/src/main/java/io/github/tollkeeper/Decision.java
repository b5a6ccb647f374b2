package io.github.tollkeeper;

import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import tollkeeper.v1.Verdict;

/**
 * Whether a call may pass.
 *
 * <p>Limit, remaining hits, reset and rule are from one status: of a denied call, from the last one that is over its
 * limit, otherwise from the first one with the fewest remaining hits.
 *
 * @param error why the call failed; or OUT_OF_RANGE or INVALID_ARGUMENT: the service has refused the call, so it is denied
 * @param limit empty if no limit applies; a limit of 0 hits admits nothing
 * @param remaining number of hits that would still pass; 0 without a limit
 * @param reset the time until the window ends; without a fixed window, until the hits fit, or until no hit counts
 * @param retryAfter when a call that the service has denied may be made again, at least 1 s; otherwise empty
 * @param rule the path of the rule that the limit belongs to
 * @param statuses one for each descriptor in their order; of a read, one for each limit of each
 * @param hits number of hits that a call with mode PART has charged
 * @param hold names what is held, for {@link Client#resume}; empty if nothing is
 */
public record Decision(boolean allowed, Optional<StatusRuntimeException> error, Optional<Limit> limit, long remaining,
        Duration reset, Optional<Duration> retryAfter, String rule, List<Status> statuses, long hits, String hold) {
    /** Whether the service gave no answer to this call, so that {@link Client.OnFailure} has decided. */
    public boolean failed() {
        return error.isPresent() && !isRefusal(error.get());
    }

    /**
     * Whether the service has refused a call for its size or its form. Otherwise an end user who chooses the number of items
     * or a value could pass any limit.
     */
    static boolean isRefusal(StatusRuntimeException error) {
        Code code = error.getStatus().getCode();
        return code == Code.OUT_OF_RANGE || code == Code.INVALID_ARGUMENT;
    }

    /**
     * Headers for a response over HTTP: the RateLimit headers if a limit applies, and Retry-After if the service has
     * denied the call.
     */
    public Map<String, String> headers() {
        Map<String, String> headers = new LinkedHashMap<>();
        limit.ifPresent(shown -> {
            headers.put("RateLimit-Limit", Long.toString(shown.hits()));
            headers.put("RateLimit-Remaining", Long.toString(remaining));
            headers.put("RateLimit-Reset", seconds(reset));
        });
        retryAfter.ifPresent(time -> headers.put("Retry-After", seconds(time)));
        return headers;
    }

    /** Rounded up, since a call that comes too early is denied. */
    private static String seconds(Duration time) {
        return Long.toString(time.plusNanos(999_999_999).toSeconds());
    }

    /** This denial some time later. Its retryAfter is still at least 1 s. */
    Decision later(Duration passed) {
        return new Decision(allowed, error, limit, remaining, Status.less(reset, passed),
                retryAfter.map(time -> Status.less(time.minusSeconds(1), passed).plusSeconds(1)), rule,
                statuses.stream().map(status -> status.later(passed)).toList(), hits, hold);
    }

    /** Refuses an answer to a call with a descriptor that met neither a limit nor a rule. */
    void requireLimits(String path, Call call, String domain) {
        for (Status status : statuses) {
            int index = status.descriptor();
            Call.require(status.limit().isPresent() || !status.rule().isEmpty(),
                    path + "descriptors[" + index + "]: no limit applies to " + call.descriptors().get(index).keys()
                            + " in the domain " + domain + " (require_limit)");
        }
    }

    /** A decision that the service has not made, or not for this client. */
    static Decision without(boolean allowed, Optional<StatusRuntimeException> error, String hold) {
        Verdict.Code code = allowed ? Verdict.Code.OK : Verdict.Code.OVER_LIMIT;
        return of(Verdict.newBuilder().setCode(code).setHold(hold).build(), error);
    }

    static Decision of(Verdict verdict, Optional<StatusRuntimeException> error) {
        boolean allowed = verdict.getCode() == Verdict.Code.OK;
        List<Status> statuses = verdict.getStatusesList().stream().map(Status::new).toList();
        List<Status> limited = statuses.stream().filter(status -> status.limit().isPresent()).toList();
        List<Status> over = limited.stream().filter(status -> !allowed && !status.allowed()).toList();
        Optional<Status> shown = over.isEmpty()
                ? limited.stream().min(Comparator.comparingLong(Status::remaining))
                : Optional.of(over.get(over.size() - 1));
        Stream<Duration> resets = Stream.concat(Stream.of(Duration.ofSeconds(1)), over.stream().map(Status::reset));
        return new Decision(allowed, error, shown.flatMap(Status::limit), shown.map(Status::remaining).orElse(0L),
                shown.map(Status::reset).orElse(Duration.ZERO),
                allowed || error.isPresent() ? Optional.empty() : resets.max(Comparator.naturalOrder()),
                shown.or(() -> statuses.stream().findFirst()).map(Status::rule).orElse(""),
                statuses, Status.count(verdict.getHits()), verdict.getHold());
    }

    /** Why a verdict is no decision about a call, if it is not one. */
    static Optional<StatusRuntimeException> errorOf(Verdict verdict, Call call) {
        if (verdict.hasError()) {
            return Optional.of(error(verdict.getError()));
        }
        boolean isOfCall = verdict.getStatusesList().stream().map(tollkeeper.v1.Status::getDescriptorIndex)
                .allMatch(index -> index >= 0 && index < call.descriptors().size());
        return switch (verdict.getCode()) {
            case OK, OVER_LIMIT -> isOfCall ? Optional.empty() : unknown("a status is of no descriptor of the call");
            default -> unknown("the verdict is unknown");
        };
    }

    private static Optional<StatusRuntimeException> unknown(String description) {
        return Optional.of(io.grpc.Status.UNKNOWN.withDescription(description).asRuntimeException());
    }

    /** The error of an item. A code for which gRPC has no error counts as UNKNOWN. */
    static StatusRuntimeException error(com.google.rpc.Status status) {
        int code = status.getCode();
        boolean isKnown = code != 0 && io.grpc.Status.fromCodeValue(code).getCode().value() == code;
        return StatusProto.toStatusRuntimeException(isKnown ? status : status.toBuilder().setCode(Code.UNKNOWN.value())
                .setMessage("code " + code + ": " + status.getMessage()).build());
    }
}
