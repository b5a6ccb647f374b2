package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Context;
import io.grpc.EquivalentAddressGroup;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.Server;
import io.grpc.Status.Code;
import io.grpc.StatusOr;
import io.grpc.stub.StreamObserver;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import tollkeeper.v1.Commit;
import tollkeeper.v1.CommitRequest;
import tollkeeper.v1.CommitResponse;
import tollkeeper.v1.CommitResult;
import tollkeeper.v1.DecideRequest;
import tollkeeper.v1.DecideResponse;
import tollkeeper.v1.TollkeeperGrpc;
import tollkeeper.v1.Verdict;

/** What becomes of decisions and holds when the network, the service or the caller fails. */
class FailureTest {
    private static final Descriptor USER = Descriptor.on("user", "a");

    /** Answers takes, unless the domain is {@code short}, and fails the first commits with the codes that it has. */
    private static final class Unreliable extends TollkeeperGrpc.TollkeeperImplBase {
        final Queue<Code> failures = new ConcurrentLinkedQueue<>();
        final Queue<Commit> commits = new ConcurrentLinkedQueue<>();
        final AtomicInteger decisions = new AtomicInteger();

        @Override
        public void decide(DecideRequest request, StreamObserver<DecideResponse> answers) {
            decisions.incrementAndGet();
            DecideResponse.Builder response = DecideResponse.newBuilder();
            if (!request.getDomain().equals("short")) {
                response.addVerdictsBuilder().setCode(Verdict.Code.OK).setHold("token");
            }
            answers.onNext(response.build());
            answers.onCompleted();
        }

        @Override
        public void commit(CommitRequest request, StreamObserver<CommitResponse> answers) {
            commits.addAll(request.getCommitsList());
            Code failure = failures.poll();
            if (failure != null) {
                answers.onError(failure.toStatus().asRuntimeException());
                return;
            }
            answers.onNext(CommitResponse.newBuilder().addResults(CommitResult.getDefaultInstance()).build());
            answers.onCompleted();
        }
    }

    private static Server serve(int port, Unreliable service) throws Exception {
        return Grpc.newServerBuilderForPort(port, InsecureServerCredentials.create()).addService(service).build().start();
    }

    private static Client.Builder at(Server server, String domain) {
        return Client.builder("127.0.0.1:" + server.getPort(), domain).timeout(Services.LONG);
    }

    /** Commits 3 hits twice, the second time by closing, and returns what the hook has got of it. */
    private static List<String> outcomes(Unreliable service) throws Exception {
        Server server = serve(0, service);
        Queue<String> outcomes = new ConcurrentLinkedQueue<>();
        Client.OnCall hook = (method, elapsed, outcome) -> {
            assertTrue(elapsed.toNanos() > 0);
            outcomes.add(method + " " + outcome);
            throw new IllegalStateException("the hook fails");
        };
        try (Client client = at(server, "shop").onCall(hook).build()) {
            try (Hold hold = client.hold(5, USER)) {
                hold.commit(3);
            }
        } finally {
            server.shutdownNow();
        }
        service.commits.forEach(commit -> {
            assertEquals("token", commit.getHold());
            assertEquals(3, commit.getUsed());
        });
        return List.copyOf(outcomes);
    }

    private static List<String> outcomes(Code... failures) throws Exception {
        Unreliable service = new Unreliable();
        service.failures.addAll(List.of(failures));
        return outcomes(service);
    }

    @Test
    void aCommitIsRepeatedUntilItIsAnswered() throws Exception {
        assertEquals(List.of("decide ok", "commit UNAVAILABLE", "commit INTERNAL", "commit ok"),
                outcomes(Code.UNAVAILABLE, Code.INTERNAL));
    }

    @Test
    void aCommitIsSentOnceIfItIsAnswered() throws Exception {
        assertEquals(List.of("decide ok", "commit ok"), outcomes());
    }

    @Test
    void aCommitEndsAfterThreeAttemptsAndTheEndOfTheBlockMakesMore() throws Exception {
        assertEquals(
                List.of("decide ok", "commit UNAVAILABLE", "commit UNAVAILABLE", "commit UNAVAILABLE", "commit ok"),
                outcomes(Code.UNAVAILABLE, Code.UNAVAILABLE, Code.UNAVAILABLE));
    }

    @Test
    void aRefusedCommitIsNotRepeated() throws Exception {
        assertEquals(List.of("decide ok", "commit PERMISSION_DENIED", "commit PERMISSION_DENIED"),
                outcomes(Code.PERMISSION_DENIED, Code.PERMISSION_DENIED));
    }

    @Test
    void anInterruptedThreadGetsItsDecisionAndCommits() throws Exception {
        Unreliable service = new Unreliable();
        Thread.currentThread().interrupt();
        List<String> outcomes = outcomes(service);
        assertTrue(Thread.interrupted());
        assertEquals(List.of("decide ok", "commit ok"), outcomes);
    }

    @Test
    void aCallerThatHasLeftGetsTheDecisionOfOnFailureAndItsHoldIsCommitted() throws Exception {
        Unreliable service = new Unreliable();
        Server server = serve(0, service);
        Context.CancellableContext caller = Context.current().withCancellation();
        try (Client client = at(server, "shop").build()) {
            caller.run(() -> {
                try (Hold hold = client.hold(5, USER)) {
                    assertFalse(hold.decision().failed());
                    caller.cancel(null);
                    Decision late = client.decide(USER);
                    assertTrue(late.allowed());
                    assertEquals(Code.CANCELLED, late.error().orElseThrow().getStatus().getCode());
                }
            });
        } finally {
            server.shutdownNow();
        }
        assertEquals(1, service.commits.size());
    }

    @Test
    void aHoldOfAnotherProcessIsCommitted() throws Exception {
        Unreliable service = new Unreliable();
        Server server = serve(0, service);
        try (Client client = at(server, "shop").build()) {
            assertFalse(client.resume("elsewhere").commit(42).hasError());
        } finally {
            server.shutdownNow();
        }
        assertEquals(List.of(Commit.newBuilder().setHold("elsewhere").setUsed(42).build()), List.copyOf(service.commits));
    }

    @Test
    void withoutWaitingTheSameIsDecidedAndCommitted() throws Exception {
        Unreliable service = new Unreliable();
        Server server = serve(0, service);
        try (Client client = at(server, "shop").build()) {
            Call call = Call.take(5, USER);
            assertTrue(client.decideAsync(call).join().allowed());
            assertFalse(client.decideAllAsync(List.of(call)).join().get(0).failed());
            assertEquals(List.of(), client.decideAllAsync(List.of()).join());
            assertFalse(client.holdAsync(call).thenCompose(Hold::commitAsync).join().hasError());
        } finally {
            server.shutdownNow();
        }
        assertEquals(1, service.commits.size());
    }

    @Test
    void anAnswerWithTooFewItemsIsAFailure() throws Exception {
        Server server = serve(0, new Unreliable());
        try (Client client = at(server, "short").onFailure(Client.OnFailure.DENY).build()) {
            Decision decision = client.decide(USER);
            assertFalse(decision.allowed());
            assertEquals(Code.INTERNAL, decision.error().orElseThrow().getStatus().getCode());
            assertEquals(Optional.empty(), decision.retryAfter());
        } finally {
            server.shutdownNow();
        }
    }

    @Test
    void aClosedClientDecidesByOnFailure() throws Exception {
        Server server = serve(0, new Unreliable());
        AtomicReference<String> outcome = new AtomicReference<>();
        Client client = at(server, "shop").onCall((method, elapsed, code) -> outcome.set(code)).build();
        client.close();
        assertTrue(client.decide(USER).failed());
        assertEquals("UNAVAILABLE", outcome.get());
        server.shutdownNow();
    }

    /** A name with an address for each of these servers, like the one of a headless Service. */
    private static NameResolverProvider name(String scheme, Server... replicas) {
        return new NameResolverProvider() {
            @Override
            public NameResolver newNameResolver(URI target, NameResolver.Args args) {
                return new NameResolver() {
                    @Override
                    public String getServiceAuthority() {
                        return "localhost";
                    }

                    @Override
                    public void start(Listener2 listener) {
                        List<EquivalentAddressGroup> addresses = Stream.of(replicas)
                                .map(replica -> new InetSocketAddress("127.0.0.1", replica.getPort()))
                                .map(EquivalentAddressGroup::new).toList();
                        listener.onResult(ResolutionResult.newBuilder()
                                .setAddressesOrError(StatusOr.fromValue(addresses)).build());
                    }

                    @Override
                    public void shutdown() {}
                };
            }

            @Override
            protected boolean isAvailable() {
                return true;
            }

            @Override
            protected int priority() {
                return 5;
            }

            @Override
            public String getDefaultScheme() {
                return scheme;
            }
        };
    }

    @Test
    void replicasBehindOneNameGetCallsInTurn() throws Exception {
        Unreliable one = new Unreliable();
        Unreliable other = new Unreliable();
        Server first = serve(0, one);
        Server second = serve(0, other);
        NameResolverProvider name = name("replicas", first, second);
        NameResolverRegistry.getDefaultRegistry().register(name);
        try (Client client = Client.builder("replicas:///shop", "shop").timeout(Services.LONG).build()) {
            long until = System.nanoTime() + Services.LONG.toNanos();
            // Both connections are open.
            while ((one.decisions.get() == 0 || other.decisions.get() == 0) && System.nanoTime() < until) {
                client.decide(USER);
            }
            int before = one.decisions.get();
            for (int call = 0; call < 10; call++) {
                assertFalse(client.decide(USER).failed());
            }
            assertEquals(5, one.decisions.get() - before);
        } finally {
            NameResolverRegistry.getDefaultRegistry().deregister(name);
            first.shutdownNow();
            second.shutdownNow();
        }
    }

    @Test
    void aServiceThatIsDownGetsAnAttemptToConnectEachSecond() throws Exception {
        try (ServerSocket down = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
                Client client = Client.builder("127.0.0.1:" + down.getLocalPort(), "shop").build()) {
            // With gRPC's own backoff, the eighth attempt comes after 34 s at the earliest.
            down.setSoTimeout(25_000);
            long start = System.nanoTime();
            for (int attempt = 0; attempt < 8; attempt++) {
                down.accept().close();
            }
            Duration took = Duration.ofNanos(System.nanoTime() - start);
            assertTrue(took.toSeconds() < 25, "eight attempts took " + took);
            assertTrue(client.decide(USER).failed());
        }
    }
}
