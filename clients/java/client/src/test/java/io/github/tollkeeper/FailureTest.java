package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Attributes;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.ClientTransportFilter;
import io.grpc.Context;
import io.grpc.EquivalentAddressGroup;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.Server;
import io.grpc.ServerTransportFilter;
import io.grpc.Status.Code;
import io.grpc.StatusOr;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import tollkeeper.v1.Commit;
import tollkeeper.v1.CommitRequest;
import tollkeeper.v1.CommitResponse;
import tollkeeper.v1.DecideRequest;
import tollkeeper.v1.DecideResponse;
import tollkeeper.v1.RenewRequest;
import tollkeeper.v1.RenewResponse;
import tollkeeper.v1.RenewResult;
import tollkeeper.v1.TollkeeperGrpc;
import tollkeeper.v1.Verdict;

/** What becomes of decisions and holds when the network, the service or the caller fails. */
class FailureTest {
    private static final Descriptor USER = Descriptor.on("user", "a");

    /** Allows takes, and notes commits. */
    private static class Unreliable extends TollkeeperGrpc.TollkeeperImplBase {
        final Queue<Commit> commits = new ConcurrentLinkedQueue<>();
        final AtomicInteger decisions = new AtomicInteger();

        @Override
        public void decide(DecideRequest request, StreamObserver<DecideResponse> answers) {
            decisions.incrementAndGet();
            Verdict allowed = Verdict.newBuilder().setCode(Verdict.Code.OK).setHold("token").build();
            answers.onNext(DecideResponse.newBuilder().addVerdicts(allowed).build());
            answers.onCompleted();
        }

        @Override
        public void commit(CommitRequest request, StreamObserver<CommitResponse> answers) {
            commits.addAll(request.getCommitsList());
            answers.onNext(CommitResponse.newBuilder().addResults(tollkeeper.v1.CommitResult.getDefaultInstance()).build());
            answers.onCompleted();
        }
    }

    private static Server serve(int port, Unreliable service) throws Exception {
        return Grpc.newServerBuilderForPort(port, InsecureServerCredentials.create()).addService(service).build().start();
    }

    private static Client at(Server server) {
        return at(server, Services.options());
    }

    private static Client at(Server server, Options options) {
        return Client.connect("127.0.0.1:" + server.getPort(), options);
    }

    @Test
    void anInterruptedThreadGetsItsDecisionAndCommits() throws Exception {
        Unreliable service = new Unreliable();
        Server server = serve(0, service);
        try (Client client = at(server)) {
            Thread.currentThread().interrupt();
            try (Hold hold = client.hold(5, USER)) {
                hold.commit(3);
            }
            assertTrue(Thread.interrupted());
        } finally {
            server.shutdownNow();
        }
        assertEquals(List.of(Commit.newBuilder().setHold("token").setUsed(3).build()), List.copyOf(service.commits));
    }

    @Test
    void aCallerThatHasLeftGetsTheDecisionOfOnFailureAndItsHoldsAreCommitted() throws Exception {
        Unreliable service = new Unreliable();
        Server server = serve(0, service);
        Context.CancellableContext caller = Context.current().withCancellation();
        try (Client client = at(server)) {
            caller.run(() -> {
                try (Hold hold = client.hold(5, USER)) {
                    assertFalse(hold.decision().failed());
                    caller.cancel(null);
                    Decision late = client.decide(USER);
                    assertTrue(late.allowed());
                    assertEquals(Code.CANCELLED, late.error().orElseThrow().getStatus().getCode());
                }
                try (Hold late = client.hold(5, USER)) {
                    assertFalse(late.decision().failed());
                }
            });
        } finally {
            server.shutdownNow();
        }
        assertEquals(2, service.commits.size());
    }

    @Test
    void withoutWaitingTheSameIsDecidedAndCommitted() throws Exception {
        Unreliable service = new Unreliable();
        Server server = serve(0, service);
        try (Client client = at(server)) {
            Call call = Call.take(5, USER);
            assertTrue(client.decideAsync(call).join().allowed());
            assertFalse(client.decideAllAsync(List.of(call)).join().get(0).failed());
            assertEquals(List.of(), client.decideAllAsync(List.of()).join());
            assertFalse(client.holdAsync(call).thenCompose(Hold::commitAsync).join().failed());
        } finally {
            server.shutdownNow();
        }
        assertEquals(1, service.commits.size());
    }

    /** A client without calls, whose first decision finds what it needs. */
    static final class Cold {
        public static void main(String[] arguments) {
            try (Client client = Client.connect(arguments[0], Services.options())) {
                boolean isWarm = client.warmUp(Services.LONG);
                long before = ManagementFactory.getClassLoadingMXBean().getTotalLoadedClassCount();
                boolean failed = client.decide(USER).failed();
                System.out.println(isWarm + " " + !failed + " "
                        + (ManagementFactory.getClassLoadingMXBean().getTotalLoadedClassCount() - before));
            }
        }
    }

    /** What a process of its own prints. */
    private static String output(Class<?> main, String... arguments) throws Exception {
        Stream<String> java = Stream.of(ProcessHandle.current().info().command().orElseThrow(), "-cp",
                System.getProperty("java.class.path"), main.getName());
        Process process = new ProcessBuilder(Stream.concat(java, Stream.of(arguments)).toList())
                .redirectErrorStream(true).start();
        return new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    }

    @Test
    void afterWarmUpADecisionLoadsNoClasses() throws Exception {
        Unreliable service = new Unreliable();
        Server server = serve(0, service);
        String output = output(Cold.class, "127.0.0.1:" + server.getPort());
        server.shutdownNow();
        // A cold decision loads more than a thousand classes.
        assertTrue(output.matches("true true \\d\\d?\\s*"), output);
    }

    @Test
    void aServiceThatIsDownEndsTheWarmUp() throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
                Client client = Client.connect("127.0.0.1:" + silent.getLocalPort(), "shop")) {
            assertFalse(client.warmUp(Duration.ofMillis(1)));
        }
    }

    @Test
    void aWarmUpMayTakeAnyTime() throws Exception {
        Server server = serve(0, new Unreliable());
        try (Client client = at(server)) {
            assertTrue(client.warmUp(Duration.ofSeconds(Long.MAX_VALUE)));
        } finally {
            server.shutdownNow();
        }
    }

    @Test
    void aNameThatIsNotInDnsIsNotLoggedEachSecond() {
        Logger grpc = Logger.getLogger("io.grpc.internal.ManagedChannelImpl");
        AtomicInteger lines = new AtomicInteger();
        grpc.setFilter(line -> lines.incrementAndGet() < 0);
        try (Client client = Client.connect("tollkeeper.invalid:8081", "shop")) {
            assertFalse(client.warmUp(Duration.ofSeconds(6)));
        } finally {
            grpc.setFilter(null);
        }
        // gRPC itself waits for 1 s, 1.6 s, 2.6 s and so on, give or take a fifth.
        assertTrue(lines.get() <= 5, lines::toString);
    }

    @Test
    void aFutureThatIsCancelledEndsTheRequest() throws Exception {
        CountDownLatch cancelled = new CountDownLatch(1);
        CountDownLatch begun = new CountDownLatch(1);
        Server server = serve(0, new Unreliable() {
            @Override
            public void decide(DecideRequest request, StreamObserver<DecideResponse> answers) {
                ((ServerCallStreamObserver<DecideResponse>) answers).setOnCancelHandler(cancelled::countDown);
                begun.countDown();
            }
        });
        BlockingQueue<String> outcomes = new LinkedBlockingQueue<>();
        List<String> lines = Services.log();
        try (Client client = at(server, Services.options().timeout(Duration.ofDays(1)).onCall(
                (method, elapsed, outcome) -> outcomes.add(outcome)).onFailure((error, descriptors) -> outcomes.add("failure")))) {
            CompletableFuture<Decision> future = client.decideAsync(Call.take(USER));
            begun.await();
            assertTrue(future.cancel(true));
            cancelled.await();
            assertEquals("CANCELLED", outcomes.take());
        } finally {
            server.shutdownNow();
        }
        assertEquals(List.of(), List.copyOf(outcomes));
        assertEquals(List.of(), lines);
    }

    @Test
    void aChannelOfTheCallerStaysOpenAndHasItsInterceptors() throws Exception {
        Server server = serve(0, new Unreliable());
        ManagedChannel channel = Grpc.newChannelBuilder(
                "127.0.0.1:" + server.getPort(), InsecureChannelCredentials.create()).build();
        Queue<String> intercepted = new ConcurrentLinkedQueue<>();
        ClientInterceptor interceptor = new ClientInterceptor() {
            @Override
            public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
                intercepted.add(method.getBareMethodName());
                return next.newCall(method, options);
            }
        };
        Client client = Client.over(ClientInterceptors.intercept(channel, interceptor), Services.options());
        assertFalse(client.decide(USER).failed());
        client.close();
        assertTrue(client.decide(USER).failed());
        assertFalse(channel.isShutdown());
        channel.shutdownNow();
        server.shutdownNow();
        assertEquals(List.of("Decide"), List.copyOf(intercepted));
    }

    /** Never ends, not even at its deadline. */
    private static class Silent extends ClientCall<Object, Object> {
        @Override
        public void start(Listener<Object> answers, Metadata headers) {}

        @Override
        public void halfClose() {}

        @Override
        public void sendMessage(Object message) {}

        @Override
        public void request(int messages) {}

        @Override
        public void cancel(String reason, Throwable cause) {}
    }

    private static Client over(Supplier<ClientCall<?, ?>> calls) {
        return over(calls, Services.options());
    }

    private static Client over(Supplier<ClientCall<?, ?>> calls, Options options) {
        return Client.over(new Channel() {
            @Override
            public String authority() {
                return "broken";
            }

            @Override
            @SuppressWarnings("unchecked")
            public <Q, A> ClientCall<Q, A> newCall(MethodDescriptor<Q, A> method, CallOptions options) {
                return (ClientCall<Q, A>) calls.get();
            }
        }, options.onFailure(Client.OnFailure.DENY));
    }

    private static void fails(Client client) {
        for (Decision decision : List.of(client.decide(USER), client.decideAsync(Call.take(USER)).join())) {
            assertFalse(decision.allowed());
            assertEquals(Code.UNKNOWN, decision.error().orElseThrow().getStatus().getCode());
        }
        client.with(options -> options.commitTimeout(Duration.ofMillis(1))).resume("token").commit(1).error().orElseThrow();
    }

    @Test
    void anInterceptorThatThrowsIsAFailure() {
        fails(over(() -> {
            throw new IllegalStateException("no call");
        }));
    }

    @Test
    void aStatusOfOkWithoutAMessageIsAFailure() {
        fails(over(() -> new Silent() {
            private Listener<Object> listener;

            @Override
            public void start(Listener<Object> answers, Metadata headers) {
                listener = answers;
            }

            @Override
            public void halfClose() {
                listener.onClose(io.grpc.Status.OK, new Metadata());
            }
        }));
    }

    @Test
    void whatAFunctionAndAHookThrowIsLoggedOnceAMinute() {
        List<String> lines = Services.log();
        Client client = new Fake().fail(Code.UNAVAILABLE).client(Services.options().onFailure((error, descriptors) -> {
            throw new IllegalStateException("the function fails");
        }).onCall((method, elapsed, outcome) -> {
            throw new IllegalStateException("the hook fails");
        }));
        assertFalse(client.decide(USER).allowed() || client.decide(USER).allowed());
        // And one of the call without an answer.
        assertEquals(3, lines.size(), lines::toString);
    }

    @Test
    void theNumberOfAnOutageIsLoggedWhenItsMinuteIsOver() {
        List<String> lines = Services.log();
        ManagedChannel channel = Grpc.newChannelBuilder("localhost:1", InsecureChannelCredentials.create()).build();
        Connection connection = new Connection(channel);
        for (int call = 0; call < 4; call++) {
            connection.countFailures(1, "shop", io.grpc.Status.UNAVAILABLE.asRuntimeException());
        }
        long now = System.nanoTime();
        connection.logDue(now + TimeUnit.SECONDS.toNanos(1));
        assertEquals(1, lines.size(), lines::toString);
        connection.logDue(now + TimeUnit.SECONDS.toNanos(60));
        connection.logDue(now + TimeUnit.SECONDS.toNanos(120));
        channel.shutdownNow();
        assertEquals(2, lines.size(), lines::toString);
        assertTrue(lines.get(1).startsWith("tollkeeper: 3 calls of the domain \"shop\" had no answer"), lines::toString);
    }

    @Test
    void aCallLooksOnlyAtTheLinesThatAreDueAndAMinuteLaterTheyAreForgotten() {
        ManagedChannel channel = Grpc.newChannelBuilder("localhost:1", InsecureChannelCredentials.create()).build();
        Connection connection = new Connection(channel);
        Services.log();
        connection.countWithoutDomain(1, "first");
        // To look at it is a NullPointerException.
        connection.kinds.put("later", null);
        connection.countWithoutDomain(1, "second");
        connection.logDue(System.nanoTime());
        connection.kinds.remove("later");
        assertEquals(2, connection.kinds.size());
        connection.countWithoutDomain(1, "second");
        long now = System.nanoTime();
        connection.logDue(now + TimeUnit.SECONDS.toNanos(60));
        assertEquals(1, connection.kinds.size(), connection.kinds::toString);
        connection.logDue(now + TimeUnit.SECONDS.toNanos(120));
        assertEquals(0, connection.kinds.size(), connection.kinds::toString);
        channel.shutdownNow();
    }

    /** Answers each call with this verdict, and each commit with this error. */
    private static Server answering(Verdict verdict, com.google.rpc.Status error) throws Exception {
        return serve(0, new Unreliable() {
            @Override
            public void decide(DecideRequest request, StreamObserver<DecideResponse> answers) {
                answers.onNext(DecideResponse.newBuilder().addVerdicts(verdict).build());
                answers.onCompleted();
            }

            @Override
            public void commit(CommitRequest request, StreamObserver<CommitResponse> answers) {
                answers.onNext(CommitResponse.newBuilder()
                        .addResults(tollkeeper.v1.CommitResult.newBuilder().setError(error)).build());
                answers.onCompleted();
            }
        });
    }

    private static com.google.rpc.Status error(int code, String message) {
        return com.google.rpc.Status.newBuilder().setCode(code).setMessage(message).build();
    }

    @Test
    void aDeniedRenewalWithoutAResultOfItsCommitLeavesTheHoldToBeCommitted() throws Exception {
        Unreliable service = new Unreliable() {
            @Override
            public void renew(RenewRequest request, StreamObserver<RenewResponse> answers) {
                Verdict denied = Verdict.newBuilder().setCode(Verdict.Code.OVER_LIMIT).build();
                answers.onNext(RenewResponse.newBuilder().addResults(RenewResult.newBuilder().setVerdict(denied)).build());
                answers.onCompleted();
            }
        };
        Server server = serve(0, service);
        try (Client client = at(server); Hold hold = client.hold(5, USER)) {
            Decision denied = hold.renew(3, 5);
            assertFalse(denied.allowed() || denied.failed());
        } finally {
            server.shutdownNow();
        }
        assertEquals(List.of(Commit.newBuilder().setHold("token").setUsed(3).build()), List.copyOf(service.commits));
    }

    /** Holds, although the second descriptor meets no limit. */
    private static final class HalfLimited extends Unreliable {
        @Override
        public void decide(DecideRequest request, StreamObserver<DecideResponse> answers) {
            answers.onNext(DecideResponse.newBuilder().addVerdicts(verdict("token")).build());
            answers.onCompleted();
        }

        @Override
        public void renew(RenewRequest request, StreamObserver<RenewResponse> answers) {
            answers.onNext(RenewResponse.newBuilder().addResults(RenewResult.newBuilder().setVerdict(verdict("renewed"))
                    .setCommit(tollkeeper.v1.CommitResult.getDefaultInstance())).build());
            answers.onCompleted();
        }

        private static Verdict verdict(String hold) {
            return Verdict.newBuilder().setCode(Verdict.Code.OK).setHold(hold)
                    .addStatuses(tollkeeper.v1.Status.newBuilder().setRule("user"))
                    .addStatuses(tollkeeper.v1.Status.newBuilder().setDescriptorIndex(1)).build();
        }
    }

    @Test
    void aHoldAndARenewalThatLackALimitAreGivenBack() throws Exception {
        HalfLimited service = new HalfLimited();
        Server server = serve(0, service);
        Client client = at(server, Services.options().requireLimit(true));
        Call call = Call.take(5, USER, Descriptor.on("typo", "a"));
        assertThrows(IllegalArgumentException.class, () -> client.hold(call));
        assertThrows(CompletionException.class, () -> client.holdAsync(call).join());
        try (Hold hold = client.resume("token")) {
            assertThrows(IllegalArgumentException.class, () -> hold.renew(call));
        }
        client.close();
        server.shutdownNow();
        Commit nothing = Commit.newBuilder().setHold("token").setUsed(0).build();
        assertEquals(Set.of(nothing, nothing.toBuilder().setHold("renewed").build()), Set.copyOf(service.commits));
        assertEquals(3, service.commits.size());
    }

    @Test
    void anErrorOfAnUnknownCodeIsAFailure() throws Exception {
        for (int code : new int[] {0, 17, 99, -5}) {
            com.google.rpc.Status error = error(code, "what");
            Server server = answering(Verdict.newBuilder().setError(error).build(), error);
            Client client = at(server);
            String expected = "UNKNOWN: code " + code + ": what";
            assertEquals(expected, client.decide(USER).error().orElseThrow().getMessage());
            CompletableFuture<CommitResult> commit = client.resume("token").commitAsync();
            client.close();
            assertEquals(expected, commit.join().error().orElseThrow().getMessage());
            server.shutdownNow();
        }
    }

    private static Decision decided(tollkeeper.v1.Status.Builder status) throws Exception {
        status.setCode(Verdict.Code.OVER_LIMIT).getCurrentLimitBuilder().setRequestsPerUnit(1);
        Server server = answering(
                Verdict.newBuilder().setCode(Verdict.Code.OVER_LIMIT).addStatuses(status).build(), error(13, ""));
        try (Client client = at(server, Services.options().requireLimit(true))) {
            return client.decide(USER);
        } finally {
            server.shutdownNow();
        }
    }

    @Test
    void aDurationThatNoWindowHasIsShownAsTheNearest() throws Exception {
        record Case(long seconds, int nanos, String reset, String retryAfter) {}
        for (Case it : List.of(new Case(Long.MAX_VALUE, Integer.MAX_VALUE, "315576000003", "315576000003"),
                new Case(Long.MIN_VALUE, Integer.MIN_VALUE, "0", "1"), new Case(0, -5, "0", "1"))) {
            tollkeeper.v1.Status.Builder status = tollkeeper.v1.Status.newBuilder();
            status.getDurationUntilResetBuilder().setSeconds(it.seconds()).setNanos(it.nanos());
            Decision decision = decided(status);
            assertEquals(it.reset(), decision.headers().get("RateLimit-Reset"));
            assertEquals(it.retryAfter(), decision.headers().get("Retry-After"));
        }
    }

    @Test
    void aStatusOfNoDescriptorIsAFailure() throws Exception {
        for (int index : new int[] {1, -1}) {
            Decision decision = decided(tollkeeper.v1.Status.newBuilder().setDescriptorIndex(index));
            assertTrue(decision.allowed());
            assertEquals("UNKNOWN: a status is of no descriptor of the call", decision.error().orElseThrow().getMessage());
        }
    }

    @Test
    void aMessageOfTheServiceIsOneShortLineOfTheLogAndIsSearchedOnce() throws Exception {
        // With a search that begins again at each space, this takes hours.
        String message = "\u001b[2J\u0085\u2028\u202e\u007f" + " at a".repeat(400_000);
        List<String> lines = Services.log();
        Server server = answering(Verdict.newBuilder().setError(error(13, message)).build(), error(13, message));
        String target = " (target 127.0.0.1:" + server.getPort() + ", without TLS)";
        try (Client client = at(server, Services.options().domain("shop\r\nshop\u001b"))) {
            client.decide(USER);
            client.resume("token").commit();
        } finally {
            server.shutdownNow();
        }
        assertEquals(2, lines.size(), lines::toString);
        for (String line : lines) {
            assertTrue(line.contains("of the domain \"shop shop \" ") && line.contains("; the last: INTERNAL: [2J at a at a"),
                    line);
            assertTrue(line.endsWith("…" + target) && line.length() < 500 && line.chars().noneMatch(it -> it < ' ' || it > '~' && it != '…'), line);
        }
    }

    @Test
    void theLogHasTheCallsThatCloseEnds() throws Exception {
        List<String> lines = Services.log();
        CountDownLatch begun = new CountDownLatch(4);
        Server server = serve(0, new Unreliable() {
            @Override
            public void decide(DecideRequest request, StreamObserver<DecideResponse> answers) {
                begun.countDown();
            }
        });
        Client client = at(server, Services.options().timeout(Duration.ofDays(1)));
        List<CompletableFuture<Decision>> decisions = Stream.of(
                client.decideAsync(Call.take(USER)), client.decideAsync(Call.take(USER)),
                CompletableFuture.supplyAsync(() -> client.decide(USER)),
                CompletableFuture.supplyAsync(() -> client.hold(USER).decision())).toList();
        begun.await();
        client.close();
        server.shutdownNow();
        for (CompletableFuture<Decision> decision : decisions) {
            assertEquals("UNAVAILABLE: the client is closed", decision.join().error().orElseThrow().getMessage());
        }
        assertEquals(List.of("1 call", "3 calls"), lines.stream().map(line -> line.substring(12, line.indexOf(" of the")))
                .toList(), lines::toString);
    }

    private static void closes(Options options, AtomicReference<Client> client) throws Exception {
        Server server = answering(Verdict.newBuilder().setCode(Verdict.Code.OK).build(), error(13, ""));
        client.set(at(server, options));
        CompletableFuture<CommitResult> commit = client.get().resume("token").commitAsync();
        assertTrue(commit.get(Services.LONG.toSeconds(), TimeUnit.SECONDS).failed());
        server.shutdownNow();
        assertTrue(client.get().decide(USER).failed());
    }

    @Test
    void theHookOfACommitMayCloseTheClient() throws Exception {
        AtomicReference<Client> client = new AtomicReference<>();
        closes(hour((method, elapsed, outcome) -> client.get().close()), client);
    }

    @Test
    void theLoggerOfACommitMayCloseTheClient() throws Exception {
        AtomicReference<Client> client = new AtomicReference<>();
        Logger logger = Logger.getLogger(Client.class.getName());
        logger.setFilter(line -> {
            client.get().close();
            return false;
        });
        try {
            closes(hour(Client.OnCall.NONE), client);
        } finally {
            logger.setFilter(null);
        }
    }

    /** With a commit timeout that no test waits for. */
    private static Options hour(Client.OnCall hook) {
        return Services.options().commitTimeout(Duration.ofHours(1)).onCall(hook);
    }

    @Test
    void closeDoesNotWaitForTheHookOfACommit() throws Exception {
        Server server = serve(0, new Unreliable());
        CountDownLatch isCalled = new CountDownLatch(1);
        CountDownLatch isClosed = new CountDownLatch(1);
        AtomicBoolean isFirst = new AtomicBoolean();
        Client client = at(server, hour((method, elapsed, outcome) -> {
            isCalled.countDown();
            try {
                isFirst.set(isClosed.await(Services.LONG.toSeconds(), TimeUnit.SECONDS));
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }));
        CompletableFuture<CommitResult> commit = client.resume("token").commitAsync();
        isCalled.await();
        client.close();
        isClosed.countDown();
        assertFalse(commit.join().failed());
        assertTrue(isFirst.get());
        server.shutdownNow();
    }

    @Test
    void closeWaitsForACommitOnlyUntilItsTimeoutIsOver() {
        Client client = over(Silent::new);
        CompletableFuture<CommitResult> commit =
                client.with(options -> options.commitTimeout(Duration.ofMillis(1))).resume("token").commitAsync();
        assertTimeoutPreemptively(Services.LONG, client::close);
        assertFalse(commit.isDone());
    }

    @Test
    void aHoldThatIsLeftWhileCloseWaitsIsCommitted() throws Exception {
        BlockingQueue<StreamObserver<CommitResponse>> first = new LinkedBlockingQueue<>();
        Server server = serve(0, new Unreliable() {
            @Override
            public void commit(CommitRequest request, StreamObserver<CommitResponse> answers) {
                if (request.getCommits(0).getHold().equals("token")) {
                    super.commit(request, answers);
                } else {
                    first.add(answers);
                }
            }
        });
        Client client = at(server);
        Hold hold = client.hold(5, USER);
        CompletableFuture<CommitResult> commit = client.resume("another").commitAsync();
        StreamObserver<CommitResponse> answers = first.take();
        CompletableFuture<Void> closed = CompletableFuture.runAsync(client::close);
        while (!client.decide(USER).failed()) {
            Thread.onSpinWait();
        }
        assertFalse(hold.commit(3).failed());
        answers.onNext(CommitResponse.newBuilder().addResults(tollkeeper.v1.CommitResult.getDefaultInstance()).build());
        answers.onCompleted();
        assertFalse(commit.join().failed());
        closed.join();
        assertTrue(client.resume("late").commit().failed());
        server.shutdownNow();
    }

    @Test
    void closeReturnsWhenTheConnectionHasEnded() throws Exception {
        Server server = serve(0, new Unreliable());
        AtomicBoolean hasEnded = new AtomicBoolean();
        try (Client client = Client.connect("127.0.0.1:" + server.getPort(), InsecureChannelCredentials.create(),
                Services.options(), channel -> channel.addTransportFilter(new ClientTransportFilter() {
                    @Override
                    public void transportTerminated(Attributes attributes) {
                        LockSupport.parkNanos(Duration.ofMillis(100).toNanos());
                        hasEnded.set(true);
                    }
                }))) {
            assertFalse(client.decide(USER).failed());
        }
        assertTrue(hasEnded.get());
        server.shutdownNow();
    }

    /** A process whose only client has had something to wait for. */
    static final class Timed {
        public static void main(String[] arguments) throws InterruptedException {
            try (Client client = over(Silent::new)) {
                client.with(options -> options.commitTimeout(Duration.ofMillis(1))).resume("token").commitAsync();
            }
            long until = System.nanoTime() + Services.LONG.toNanos();
            while (timers() > 0 && System.nanoTime() < until) {
                Thread.sleep(10);
            }
            System.out.println("timers: " + timers());
        }

        private static long timers() {
            return Thread.getAllStackTraces().keySet().stream().map(Thread::getName)
                    .filter(it -> it.equals("tollkeeper-timer") || it.equals("CompletableFutureDelayScheduler")).count();
        }
    }

    @Test
    void theTimersOfAClientKeepNoThread() throws Exception {
        assertEquals("timers: 0", output(Timed.class).strip());
    }

    @Test
    void closeWaitsOnceForAllCommitsAndDecisions() {
        Client client = over(Silent::new, Services.options().commitTimeout(Duration.ofMillis(1)));
        Client patient = client.with(options -> options.timeout(Duration.ofHours(1)).commitTimeout(Duration.ofHours(1)));
        patient.resume("token").commitAsync();
        patient.holdAsync(Call.take(USER)).cancel(true);
        assertTimeoutPreemptively(Services.LONG, client::close);
    }

    @Test
    void aLoggerThatThrowsChangesNothing() {
        Logger logger = Logger.getLogger(Client.class.getName());
        logger.setFilter(line -> {
            throw new IllegalStateException("the logger fails");
        });
        try (Client client = new Fake().fail(Code.UNAVAILABLE).client(Services.options().onCall(
                (method, elapsed, outcome) -> FailureTest.<RuntimeException>raise(new Exception("checked"))))) {
            assertTrue(client.decide(USER).allowed());
            assertTrue(client.with(options -> options.commitTimeout(Duration.ofMillis(1))).resume("token").commit().failed());
            client.logMistake(new Exception("a mistake"));
        } finally {
            logger.setFilter(null);
        }
    }

    /** Throws it where the compiler sees none, as Kotlin does. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> void raise(Throwable thrown) throws E {
        throw (E) thrown;
    }

    @Test
    void aClientWithOtherOptionsClosesNothing() throws Exception {
        Server server = serve(0, new Unreliable());
        try (Client client = at(server)) {
            client.with(options -> options.domain("other")).close();
            assertFalse(client.decide(USER).failed());
        } finally {
            server.shutdownNow();
        }
    }

    @Test
    void aForgottenClientClosesItsChannel() throws Exception {
        CountDownLatch ended = new CountDownLatch(1);
        Server server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create()).addService(new Unreliable())
                .addTransportFilter(new ServerTransportFilter() {
                    @Override
                    public void transportTerminated(Attributes attributes) {
                        ended.countDown();
                    }
                }).build().start();
        assertFalse(at(server).decide(USER).failed());
        do {
            System.gc();
        } while (!ended.await(100, TimeUnit.MILLISECONDS));
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
        try (Client client = Client.connect("replicas:///shop", Services.options())) {
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
                Client client = Client.connect("127.0.0.1:" + down.getLocalPort(), "shop")) {
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
