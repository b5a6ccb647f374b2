package io.github.tollkeeper;

import com.google.protobuf.ByteString;
import com.google.protobuf.UInt32Value;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * What to limit: entries in the order of the rules. {@link #on} makes it of the first one.
 *
 * @param limit the caller's own, in place of the one of the rules
 */
public record Descriptor(List<Entry> entries, Optional<Limit> limit) {
    private static final long UINT32_MAX = (1L << 32) - 1;

    /** A key and a value, which may be any bytes. */
    public record Entry(ByteString key, ByteString value) {
        @Override
        public String toString() {
            return key.toStringUtf8() + "=" + value.toStringUtf8();
        }
    }

    public Descriptor {
        entries = List.copyOf(entries);
    }

    /** A descriptor of these entries. */
    public Descriptor(List<Entry> entries) {
        this(entries, Optional.empty());
    }

    /**
     * A descriptor of one entry. A value that is null is a mistake: everybody without a name would share a counter. If
     * they should, pass a text that stands for them.
     */
    public static Descriptor on(String key, String value) {
        return new Descriptor(List.of()).and(key, value);
    }

    /** This descriptor with one more entry at its end. */
    public Descriptor and(String key, String value) {
        Call.require(value != null, "descriptors: the value of the key " + key + " must not be null");
        return and(key, ByteString.copyFromUtf8(value));
    }

    /** The same for a value that is bytes. */
    public static Descriptor on(String key, ByteString value) {
        return new Descriptor(List.of()).and(key, value);
    }

    /** The same for a value that is bytes. */
    public Descriptor and(String key, ByteString value) {
        Entry entry = new Entry(ByteString.copyFromUtf8(key), value);
        return new Descriptor(Stream.concat(entries.stream(), Stream.of(entry)).toList(), limit);
    }

    /** This descriptor with a limit of the caller's own, such as 100 hits in a day. */
    public Descriptor withLimit(long hits, Limit.Unit unit) {
        return withLimit(hits, 1, unit);
    }

    /** The same with several units in a window. */
    public Descriptor withLimit(long hits, int units, Limit.Unit unit) {
        return new Descriptor(entries, Optional.of(new Limit("", hits, units, Optional.of(unit))));
    }

    /** The keys of the entries, such as {@code path|user}. */
    String keys() {
        return entries.stream().map(entry -> entry.key().toStringUtf8()).collect(Collectors.joining("|"));
    }

    static Descriptor decode(tollkeeper.v1.Descriptor descriptor) {
        tollkeeper.v1.Descriptor.Override own = descriptor.getLimit();
        return new Descriptor(
                descriptor.getEntriesList().stream().map(it -> new Entry(it.getKey(), it.getValue())).toList(),
                descriptor.hasLimit() ? Optional.of(new Limit("", Integer.toUnsignedLong(own.getRequestsPerUnit()),
                        own.getUnitMultiplier().getValue(), Limit.unit(own.getUnit()))) : Optional.empty());
    }

    void encode(String path, tollkeeper.v1.Descriptor.Builder descriptor) {
        Call.require(!entries.isEmpty(), path + ".entries: must have at least 1 item");
        for (int i = 0; i < entries.size(); i++) {
            Entry entry = entries.get(i);
            Call.require(!entry.key().isEmpty(), path + ".entries[" + i + "].key: must not be empty");
            descriptor.addEntriesBuilder().setKey(entry.key()).setValue(entry.value());
        }
        limit.ifPresent(own -> {
            Call.require(own.hits() >= 0 && own.hits() <= UINT32_MAX,
                    path + ".limit.hits: must be from 0 to " + UINT32_MAX + ", not " + own.hits());
            Call.require(own.units() >= 1, path + ".limit.units: must be at least 1, not " + own.units());
            Call.require(own.unit().isPresent(), path + ".limit.unit: must not be empty");
            descriptor.getLimitBuilder().setRequestsPerUnit((int) own.hits())
                    .setUnit(tollkeeper.v1.Limit.Unit.valueOf(own.unit().orElseThrow().name()))
                    .setUnitMultiplier(UInt32Value.of(own.units()));
        });
    }
}
