package io.github.tollkeeper;

import io.grpc.ChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.logging.Logger;

/** The services that the tests of the repository start. ../../conformance/README.md describes the variables. */
final class Services {
    static final String ADDR = "TOLLKEEPER_ADDR";
    /** Long, for busy machines. */
    static final Duration LONG = Duration.ofSeconds(10);

    private static final Logger LOGGER = Logger.getLogger(Client.class.getName());

    private Services() {}

    /** The lines that clients log from now on. */
    static List<String> log() {
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        LOGGER.setFilter(line -> lines.add(line.getMessage()));
        return lines;
    }

    static Options options() {
        return Options.of("conformance").timeout(LONG).commitTimeout(LONG);
    }

    static Client client(String variable, Client.OnFailure onFailure) {
        return Client.connect(System.getenv(variable), options().onFailure(onFailure));
    }

    static ChannelCredentials tls(boolean hasCertificate) throws IOException {
        TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder().trustManager(file("CA"));
        if (hasCertificate) {
            tls.keyManager(file("CERT"), file("KEY"));
        }
        return tls.build();
    }

    private static File file(String name) {
        return new File(System.getenv("TOLLKEEPER_" + name));
    }

    /** A text that no other test uses. */
    static String random() {
        return UUID.randomUUID().toString();
    }
}
