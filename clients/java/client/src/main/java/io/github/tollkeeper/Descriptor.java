package io.github.tollkeeper;

import com.google.protobuf.ByteString;
import java.util.List;
import java.util.stream.Stream;

/** What to limit: entries in the order of the rules. {@link #on} makes it of the first one. */
public record Descriptor(List<Entry> entries) {
    /** A key and a value, which may be any bytes. */
    public record Entry(ByteString key, ByteString value) {}

    public Descriptor {
        entries = List.copyOf(entries);
    }

    /** A descriptor of one entry. A value that is null, such as an absent header, is empty. */
    public static Descriptor on(String key, String value) {
        return new Descriptor(List.of()).and(key, value);
    }

    /** This descriptor with one more entry at its end. */
    public Descriptor and(String key, String value) {
        return and(key, ByteString.copyFromUtf8(value == null ? "" : value));
    }

    /** The same for a value that is bytes. */
    public static Descriptor on(String key, ByteString value) {
        return new Descriptor(List.of()).and(key, value);
    }

    /** The same for a value that is bytes. */
    public Descriptor and(String key, ByteString value) {
        Entry entry = new Entry(ByteString.copyFromUtf8(key), value);
        return new Descriptor(Stream.concat(entries.stream(), Stream.of(entry)).toList());
    }

    void encode(String path, tollkeeper.v1.Descriptor.Builder descriptor) {
        Call.require(!entries.isEmpty(), path + ": must be at least 1");
        for (int i = 0; i < entries.size(); i++) {
            Entry entry = entries.get(i);
            Call.require(!entry.key().isEmpty(), path + "[" + i + "].key: must not be empty");
            descriptor.addEntriesBuilder().setKey(entry.key()).setValue(entry.value());
        }
    }
}
