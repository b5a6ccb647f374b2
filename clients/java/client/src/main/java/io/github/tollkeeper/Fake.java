package io.github.tollkeeper;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status.Code;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import tollkeeper.v1.CommitRequest;
import tollkeeper.v1.CommitResponse;
import tollkeeper.v1.DecideRequest;
import tollkeeper.v1.DecideResponse;
import tollkeeper.v1.Limit.Unit;
import tollkeeper.v1.RenewRequest;
import tollkeeper.v1.RenewResponse;
import tollkeeper.v1.RenewResult;
import tollkeeper.v1.Status;
import tollkeeper.v1.Verdict;

/**
 * A service in memory, for unit tests. It allows every call, unless it is told otherwise, and lists what it has seen:
 *
 * <pre>{@code
 * Fake fake = new Fake().limit(1, Descriptor.on("user", "alice"));
 * Client client = fake.client("example");
 * }</pre>
 */
public final class Fake {
    /** The end of a hold that it has seen. */
    public record Commit(String hold, OptionalLong used, Map<String, Long> usedByKind, String end) {}

    /** The state of each limit, as answers show it. */
    private final Map<List<Descriptor.Entry>, Status.Builder> limits = new HashMap<>();
    private final Map<String, Held> open = new HashMap<>();
    private final List<Call> calls = new ArrayList<>();
    private final List<Commit> commits = new ArrayList<>();
    private volatile Code failure = Code.OK;

    private record Held(List<Status.Builder> limits, long hits) {}

    /** A real client, whose calls this answers. */
    public Client client(String domain) {
        return client(Options.of(domain));
    }

    /** The same with options. */
    public Client client(Options options) {
        return Client.over(new Memory(), options);
    }

    /** Denies calls with one of these descriptors. */
    public Fake deny(Descriptor... descriptors) {
        return limit(0, descriptors);
    }

    /** Allows a number of hits for each of these descriptors from now on, and gives back only refunds and commits. */
    public synchronized Fake limit(long hits, Descriptor... descriptors) {
        for (Descriptor descriptor : descriptors) {
            Status.Builder limit = Status.newBuilder().setRule(descriptor.keys()).setLimitRemaining(hits).setUsed(0);
            limit.getCurrentLimitBuilder().setRequestsPerUnit(hits).setUnit(Unit.MINUTE).setUnitMultiplier(1);
            limit.getDurationUntilResetBuilder().setSeconds(60);
            limits.put(descriptor.entries(), limit);
        }
        return this;
    }

    /** Fails everything with a code, until it is {@link Code#OK} again. */
    public Fake fail(Code code) {
        failure = code;
        return this;
    }

    /** The calls, in their order, also those that it has denied or failed. */
    public synchronized List<Call> calls() {
        return List.copyOf(calls);
    }

    /** The commits, in their order, also of renewals, and those that have failed. */
    public synchronized List<Commit> commits() {
        return List.copyOf(commits);
    }

    /** Loads the classes that decisions need. */
    static void rehearse() {
        Descriptor denied = Descriptor.on("key", "denied");
        Client client = new Fake().deny(denied).client("rehearsal");
        client.decide(denied).headers();
        client.hold(Descriptor.on("key", "held")).close();
    }

    private synchronized Object answer(Object message) {
        if (message instanceof DecideRequest request) {
            return DecideResponse.newBuilder()
                    .addAllVerdicts(request.getCallsList().stream().map(this::decide).toList()).build();
        }
        if (message instanceof CommitRequest request) {
            request.getCommitsList().forEach(this::commit);
            return CommitResponse.newBuilder().addAllResults(request.getCommitsList().stream()
                    .map(commit -> tollkeeper.v1.CommitResult.getDefaultInstance()).toList()).build();
        }
        return RenewResponse.newBuilder().addAllResults(((RenewRequest) message).getRenewalsList().stream().map(renewal -> {
            commit(renewal.getCommit());
            return RenewResult.newBuilder().setCommit(tollkeeper.v1.CommitResult.getDefaultInstance())
                    .setVerdict(decide(renewal.getCall())).build();
        }).toList()).build();
    }

    private void commit(tollkeeper.v1.Commit commit) {
        commits.add(new Commit(commit.getHold(),
                commit.hasUsed() ? OptionalLong.of(commit.getUsed()) : OptionalLong.empty(),
                Map.copyOf(commit.getUsedByKindMap()), commit.getEnd()));
        Held held = failure == Code.OK ? open.remove(commit.getHold()) : null;
        if (held != null && commit.hasUsed()) {
            held.limits().forEach(limit -> charge(limit, commit.getUsed() - held.hits()));
        }
    }

    private Verdict decide(tollkeeper.v1.Call request) {
        Call call = Call.decode(request);
        calls.add(call);
        if (failure != Code.OK) {
            return Verdict.getDefaultInstance();
        }
        long hits = call.hits().orElse(1);
        List<Status.Builder> limited = call.descriptors().stream()
                .map(it -> limits.getOrDefault(it.entries(), Status.newBuilder())).toList();
        long room = limited.stream().mapToLong(Fake::room).min().orElse(0);
        long part = Math.min(hits, room);
        boolean allowed = switch (call.mode()) {
            case TAKE, DEBIT, CHECK -> Math.max(1, hits) <= room;
            case PART -> room > 0;
            case READ, REFUND -> true;
        };
        long charge = switch (call.mode()) {
            case TAKE -> allowed ? hits : 0;
            case PART -> part;
            case DEBIT -> hits;
            case REFUND -> -hits;
            case CHECK, READ -> 0;
        };
        Verdict.Builder verdict = Verdict.newBuilder().setCode(allowed ? Verdict.Code.OK : Verdict.Code.OVER_LIMIT);
        if (call.mode() == Call.Mode.PART) {
            verdict.setHits(charge);
        }
        if (call.mode() == Call.Mode.TAKE && allowed) {
            verdict.setHold("hold-" + calls.size());
            open.put(verdict.getHold(), new Held(limited, hits));
        }
        for (int i = 0; i < limited.size(); i++) {
            Status.Builder limit = limited.get(i);
            boolean fits = allowed || Math.max(1, hits) <= room(limit);
            charge(limit, charge);
            verdict.addStatuses(limit.clone().setDescriptorIndex(i)
                    .setCode(fits ? Verdict.Code.OK : Verdict.Code.OVER_LIMIT));
        }
        return verdict.build();
    }

    private static long room(Status.Builder limit) {
        return limit.hasCurrentLimit() ? limit.getLimitRemaining() : Call.HITS_MAX;
    }

    private static void charge(Status.Builder limit, long hits) {
        if (limit.hasCurrentLimit()) {
            limit.setUsed(Math.max(0, limit.getUsed() + hits));
            limit.setLimitRemaining(Math.max(0, limit.getCurrentLimit().getRequestsPerUnit() - limit.getUsed()));
        }
    }

    /** Answers in the thread that asks. */
    private final class Memory extends Channel {
        @Override
        public String authority() {
            return "fake";
        }

        @Override
        public <Q, A> ClientCall<Q, A> newCall(MethodDescriptor<Q, A> method, CallOptions options) {
            return new ClientCall<>() {
                private Listener<A> listener;
                private Q message;

                @Override
                public void start(Listener<A> answers, Metadata headers) {
                    listener = answers;
                }

                @Override
                public void sendMessage(Q sent) {
                    message = sent;
                }

                @Override
                public void halfClose() {
                    Code code = failure;
                    @SuppressWarnings("unchecked") A answer = (A) answer(message);
                    if (code == Code.OK) {
                        listener.onMessage(answer);
                    }
                    listener.onClose(code.toStatus().withDescription("the fake fails"), new Metadata());
                }

                @Override
                public void request(int messages) {}

                @Override
                public void cancel(String reason, Throwable cause) {}
            };
        }
    }
}
