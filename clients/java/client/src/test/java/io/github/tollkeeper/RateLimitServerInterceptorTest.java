package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.rpc.RetryInfo;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import tollkeeper.v1.DecideRequest;
import tollkeeper.v1.DecideResponse;
import tollkeeper.v1.TollkeeperGrpc;

/** What the callers of a gRPC server get. */
class RateLimitServerInterceptorTest {
    private static final Metadata.Key<String> CALLER = Metadata.Key.of("caller", Metadata.ASCII_STRING_MARSHALLER);

    private static List<Descriptor> byCaller(ServerCall<?, ?> call, Metadata headers) {
        String caller = headers.get(CALLER);
        return switch (String.valueOf(caller)) {
            case "free" -> List.of();
            case "without a list" -> null;
            case "broken" -> throw new IllegalStateException("a secret");
            case "stranger" -> throw io.grpc.Status.UNAUTHENTICATED.withDescription("log in").asRuntimeException();
            default -> List.of(Descriptor.on("caller", caller));
        };
    }

    /** Any service will do. */
    private static final class Echo extends TollkeeperGrpc.TollkeeperImplBase {
        @Override
        public void decide(DecideRequest request, StreamObserver<DecideResponse> answer) {
            answer.onNext(DecideResponse.getDefaultInstance());
            answer.onCompleted();
        }
    }

    private interface Session {
        void run(ManagedChannel channel) throws Exception;
    }

    private static void serve(Client client, Session session) throws Exception {
        Server server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
                .addService(new Echo())
                .intercept(new RateLimitServerInterceptor(client, RateLimitServerInterceptorTest::byCaller))
                .build().start();
        ManagedChannel channel = Grpc.newChannelBuilder("localhost:" + server.getPort(), InsecureChannelCredentials.create())
                .build();
        try {
            session.run(channel);
        } finally {
            channel.shutdownNow();
            server.shutdownNow().awaitTermination();
        }
    }

    /** The value of this header of the answer. */
    private static String call(ManagedChannel channel, String caller, String header) {
        Metadata headers = new Metadata();
        if (caller != null) {
            headers.put(CALLER, caller);
        }
        AtomicReference<Metadata> received = new AtomicReference<>();
        TollkeeperGrpc.newBlockingStub(channel).withInterceptors(
                MetadataUtils.newAttachHeadersInterceptor(headers),
                MetadataUtils.newCaptureMetadataInterceptor(received, new AtomicReference<>()))
                .decide(DecideRequest.getDefaultInstance());
        return received.get().get(Metadata.Key.of(header, Metadata.ASCII_STRING_MARSHALLER));
    }

    private static StatusRuntimeException failure(ManagedChannel channel, String caller) {
        return assertThrows(StatusRuntimeException.class, () -> call(channel, caller, "any"));
    }

    @Test
    void aCallPassesWithinItsLimitAndIsDeniedBeyond() throws Exception {
        Fake fake = new Fake().limit(1, Descriptor.on("caller", "alice"));
        serve(fake.client("example"), channel -> {
            assertEquals("0", call(channel, "alice", "ratelimit-remaining"));
            StatusRuntimeException denied = failure(channel, "alice");
            assertEquals(Code.RESOURCE_EXHAUSTED, denied.getStatus().getCode());
            assertEquals("60", denied.getTrailers().get(Metadata.Key.of("retry-after", Metadata.ASCII_STRING_MARSHALLER)));
            RetryInfo info = StatusProto.fromThrowable(denied).getDetails(0).unpack(RetryInfo.class);
            assertEquals(60, info.getRetryDelay().getSeconds());
            assertEquals(null, call(channel, "bob", "ratelimit-remaining"));
            assertEquals(null, call(channel, "free", "ratelimit-remaining"));
            assertEquals(3, fake.calls().size());
        });
    }

    @Test
    void aCallThatOnFailureDeniesIsUnavailable() throws Exception {
        Client client = new Fake().fail(Code.UNAVAILABLE).client(Options.of("example").onFailure(Client.OnFailure.DENY));
        serve(client, channel -> assertEquals(Code.UNAVAILABLE, failure(channel, "alice").getStatus().getCode()));
    }

    @Test
    void aCallThatTheServiceRefusesAsTooLargeIsDenied() throws Exception {
        serve(new Fake().fail(Code.OUT_OF_RANGE).client("example"), channel ->
                assertEquals(Code.RESOURCE_EXHAUSTED, failure(channel, "alice").getStatus().getCode()));
    }

    @Test
    void mistakesAreNotShownAndAreLoggedOnceAMinute() throws Exception {
        List<String> lines = Services.log();
        serve(new Fake().client("example"), channel -> {
            for (String caller : Arrays.asList(null, "without a list", "broken")) {
                assertEquals("INTERNAL: internal error", failure(channel, caller).getMessage());
            }
        });
        assertEquals(1, lines.size(), lines::toString);
    }

    @Test
    void aStatusOfTheFunctionEndsTheCall() throws Exception {
        List<String> lines = Services.log();
        serve(new Fake().client("example"), channel ->
                assertEquals("UNAUTHENTICATED: log in", failure(channel, "stranger").getMessage()));
        assertEquals(List.of(), lines);
    }
}
