package io.github.tollkeeper;

import com.google.protobuf.UInt64Value;
import io.grpc.StatusRuntimeException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import tollkeeper.v1.DecideRequest;

/**
 * One thing to decide. All of its descriptors pass, or none.
 *
 * @param hits absent where the service chooses: 1, or the estimate of a rule with {@code hold}
 * @param hitsByKind estimates of a hold, for limits with {@code weights}
 * @param id names the call so that it can be repeated; may be empty
 */
public record Call(
        Mode mode, OptionalLong hits, List<Descriptor> descriptors, Map<String, Long> hitsByKind, String id) {
    /** The largest number of hits: 2^53 - 1. */
    public static final long HITS_MAX = (1L << 53) - 1;

    private static final int CALLS_MAX = 1_000;
    private static final int ID_BYTES_MAX = 128;
    /**
     * The most bytes of keys and values in a request. End users may send long values, and more would take longer than the
     * timeout, or be refused by the service, which takes 4 MiB.
     */
    private static final int ENTRIES_BYTES_MAX = 512 << 10;

    /** The methods of {@link Client} with these names describe them. TAKE is {@code decide}. */
    public enum Mode { TAKE, CHECK, READ, DEBIT, PART, REFUND }

    public Call {
        descriptors = List.copyOf(descriptors);
        hitsByKind = Map.copyOf(hitsByKind);
    }

    private Call(Mode mode, OptionalLong hits, Descriptor[] descriptors) {
        this(mode, hits, List.of(descriptors), Map.of(), "");
    }

    /** Charges the hits if all of them fit, or nothing. With 0 hits it is a check. */
    public static Call take(long hits, Descriptor... descriptors) {
        return new Call(Mode.TAKE, OptionalLong.of(hits), descriptors);
    }

    /** Charges 1 hit, or holds the estimate of the rule. */
    public static Call take(Descriptor... descriptors) {
        return new Call(Mode.TAKE, OptionalLong.empty(), descriptors);
    }

    /** Charges nothing, and answers as for one hit. */
    public static Call check(Descriptor... descriptors) {
        return new Call(Mode.CHECK, OptionalLong.empty(), descriptors);
    }

    /** Charges nothing and denies nothing. */
    public static Call read(Descriptor... descriptors) {
        return new Call(Mode.READ, OptionalLong.empty(), descriptors);
    }

    /** Charges the hits in any case. */
    public static Call debit(long hits, Descriptor... descriptors) {
        return new Call(Mode.DEBIT, OptionalLong.of(hits), descriptors);
    }

    /** Charges as many of the hits as fit. */
    public static Call part(long hits, Descriptor... descriptors) {
        return new Call(Mode.PART, OptionalLong.of(hits), descriptors);
    }

    /** Gives hits back. */
    public static Call refund(long hits, Descriptor... descriptors) {
        return new Call(Mode.REFUND, OptionalLong.of(hits), descriptors);
    }

    /** This call with estimates by kind, such as {@code Map.of("input", 900L, "output", 500L)}. */
    public Call withHitsByKind(Map<String, Long> estimates) {
        return new Call(mode, hits, descriptors, estimates, id);
    }

    /** This call with an id: the same call is charged once, also if it is repeated within 60 s. */
    public Call withId(String name) {
        return new Call(mode, hits, descriptors, hitsByKind, name);
    }

    /** The request, whose calls are checked. In a batch, errors name the index of the call. */
    static DecideRequest encode(String domain, List<Call> calls, boolean isBatch) {
        require(calls.size() <= CALLS_MAX, "calls: must be at most " + CALLS_MAX + ", not " + calls.size());
        DecideRequest.Builder request = DecideRequest.newBuilder().setDomain(domain);
        for (int i = 0; i < calls.size(); i++) {
            request.addCalls(calls.get(i).encode(isBatch ? "calls[" + i + "]." : ""));
        }
        return request.build();
    }

    /** Why these calls are denied without a request, if they are. */
    static Optional<StatusRuntimeException> tooLarge(List<Call> calls) {
        long bytes = calls.stream().flatMap(call -> call.descriptors.stream())
                .flatMap(descriptor -> descriptor.entries().stream())
                .mapToLong(entry -> (long) entry.key().size() + entry.value().size()).sum();
        return bytes <= ENTRIES_BYTES_MAX ? Optional.empty() : Optional.of(io.grpc.Status.OUT_OF_RANGE.withDescription(
                "keys and values must have at most " + ENTRIES_BYTES_MAX + " bytes, not " + bytes).asRuntimeException());
    }

    private tollkeeper.v1.Call encode(String path) {
        hits.ifPresent(number -> checkHits(path + "hits", number));
        checkKinds(path + "hitsByKind", hitsByKind);
        int idBytes = id.getBytes(StandardCharsets.UTF_8).length;
        require(idBytes <= ID_BYTES_MAX, path + "id: must be at most " + ID_BYTES_MAX + " bytes, not " + idBytes);
        require(!descriptors.isEmpty(), path + "descriptors: must have at least 1 item");
        tollkeeper.v1.Call.Builder call = tollkeeper.v1.Call.newBuilder().putAllHitsByKind(hitsByKind).setId(id);
        if (mode != Mode.REFUND) {
            call.setMode(tollkeeper.v1.Call.Mode.valueOf(mode.name()));
            hits.ifPresent(call::setHits);
        }
        for (int i = 0; i < descriptors.size(); i++) {
            tollkeeper.v1.Descriptor.Builder added = call.addDescriptorsBuilder();
            descriptors.get(i).encode(path + "descriptors[" + i + "]", added);
            if (mode == Mode.REFUND) {
                added.setIsNegativeHits(true);
                hits.ifPresent(number -> added.setHitsAddend(UInt64Value.of(number)));
            }
        }
        return call.build();
    }

    /** The call that was encoded. */
    static Call decode(tollkeeper.v1.Call call) {
        tollkeeper.v1.Descriptor first = call.getDescriptors(0);
        OptionalLong hits = call.hasHits() ? OptionalLong.of(call.getHits())
                : first.hasHitsAddend() ? OptionalLong.of(first.getHitsAddend().getValue()) : OptionalLong.empty();
        return new Call(first.getIsNegativeHits() ? Mode.REFUND : Mode.valueOf(call.getMode().name()), hits,
                call.getDescriptorsList().stream().map(Descriptor::decode).toList(), call.getHitsByKindMap(), call.getId());
    }

    static void require(boolean isValid, String mistake) {
        if (!isValid) {
            throw new IllegalArgumentException(mistake);
        }
    }

    static void checkHits(String field, long hits) {
        require(hits >= 0 && hits <= HITS_MAX, field + ": must be from 0 to " + HITS_MAX + ", not " + hits);
    }

    static void checkKinds(String field, Map<String, Long> hitsByKind) {
        hitsByKind.forEach((kind, hits) -> checkHits(field + "[" + kind + "]", hits));
    }
}
