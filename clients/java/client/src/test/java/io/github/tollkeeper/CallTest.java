package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import io.github.tollkeeper.Limit.Unit;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import tollkeeper.v1.CommittedCharge;
import tollkeeper.v1.Verdict;

class CallTest {
    private static final Descriptor USER = Descriptor.on("user", "a");

    private static tollkeeper.v1.Call encoded(Call call) {
        return Call.encode("shop", List.of(call), false).getCalls(0);
    }

    @Test
    void aCallHasItsModeAndHits() {
        tollkeeper.v1.Call part = encoded(Call.part(Call.HITS_MAX, USER).withId("order 7"));
        assertEquals(tollkeeper.v1.Call.Mode.PART, part.getMode());
        assertEquals(9_007_199_254_740_991L, part.getHits());
        assertEquals("order 7", part.getId());
        tollkeeper.v1.Call take = encoded(Call.take(USER).withHitsByKind(Map.of("input", 900L)));
        assertEquals(tollkeeper.v1.Call.Mode.TAKE, take.getMode());
        assertFalse(take.hasHits());
        assertEquals(Map.of("input", 900L), take.getHitsByKindMap());
    }

    @Test
    void aRefundHasItsHitsInEveryDescriptor() {
        tollkeeper.v1.Call refund = encoded(Call.refund(3_000_000_000L, USER, USER.and("path", "/")));
        assertFalse(refund.hasHits());
        assertEquals(2, refund.getDescriptorsCount());
        for (tollkeeper.v1.Descriptor descriptor : refund.getDescriptorsList()) {
            assertTrue(descriptor.getIsNegativeHits());
            assertEquals(3_000_000_000L, descriptor.getHitsAddend().getValue());
        }
    }

    @Test
    void aValueIsAnyStringOrBytes() {
        ByteString bytes = ByteString.copyFrom(new byte[] {-1, 0});
        Descriptor descriptor = Descriptor.on("a", bytes).and("b", "").and("c", "\ud800");
        List<ByteString> values = descriptor.entries().stream().map(Descriptor.Entry::value).toList();
        assertEquals(List.of(bytes, ByteString.EMPTY, ByteString.copyFromUtf8("?")), values);
    }

    @Test
    void aDescriptorIsNotChangedByAnother() {
        Descriptor path = Descriptor.on("path", "/login");
        assertEquals(Descriptor.on("path", "/login").and("user", "bob"), path.and("user", "bob"));
        assertEquals(1, path.entries().size());
    }

    @Test
    void aDescriptorMayHaveALimitOfTheCaller() {
        Descriptor limited = USER.withLimit(4_294_967_295L, 30, Unit.SECOND).and("path", "/");
        tollkeeper.v1.Descriptor.Override sent = encoded(Call.take(limited)).getDescriptors(0).getLimit();
        assertEquals(4_294_967_295L, Integer.toUnsignedLong(sent.getRequestsPerUnit()));
        assertEquals(tollkeeper.v1.Limit.Unit.SECOND, sent.getUnit());
        assertEquals(30, sent.getUnitMultiplier().getValue());
        assertEquals(Call.take(limited), Call.decode(encoded(Call.take(limited))));
        assertFalse(encoded(Call.take(USER)).getDescriptors(0).hasLimit());
    }

    private static void refuses(String mistake, Executable mistaken) {
        assertEquals(mistake, assertThrows(IllegalArgumentException.class, mistaken).getMessage());
    }

    @Test
    void mistakesNameTheFieldAndTheBound() {
        refuses("calls: must be at most 1000, not 1001",
                () -> Call.encode("shop", Collections.nCopies(1_001, Call.check(USER)), true));
        refuses("calls[1].hits: must be from 0 to 9007199254740991, not 9007199254740992",
                () -> Call.encode("shop", List.of(Call.check(USER), Call.part(1L << 53, USER)), true));
        refuses("hitsByKind[input]: must be from 0 to 9007199254740991, not -1",
                () -> encoded(Call.take(USER).withHitsByKind(Map.of("input", -1L))));
        refuses("target: must not be empty", () -> Client.connect("", "shop"));
        refuses("domain: must not be empty", () -> Options.of(""));
        String timeout = "must be more than 0 and at most PT2562047H47M16.854775807S, not ";
        refuses("timeout: " + timeout + "PT0S", () -> Options.of("shop").timeout(Duration.ZERO));
        refuses("commitTimeout: " + timeout + "PT-1S", () -> Options.of("shop").commitTimeout(Duration.ofSeconds(-1)));
        Duration most = Duration.ofNanos(Long.MAX_VALUE);
        refuses("timeout: " + timeout + most.plusNanos(1), () -> Options.of("shop").timeout(most.plusNanos(1)));
        Client client = new Fake().client(Options.of("shop").timeout(most).commitTimeout(most));
        assertFalse(client.decide(USER).failed() || client.resume("token").commit(1).failed());
        refuses("rememberDenials: must be at least 0, not PT-1S",
                () -> Options.of("shop").rememberDenials(Duration.ofSeconds(-1)));
        refuses("descriptors: the value of the key user must not be null", () -> Descriptor.on("user", (String) null));
        refuses("descriptors[0].limit.hits: must be from 0 to 4294967295, not 4294967296",
                () -> encoded(Call.take(USER.withLimit(1L << 32, Unit.DAY))));
        refuses("descriptors[0].limit.units: must be at least 1, not 0",
                () -> encoded(Call.take(USER.withLimit(1, 0, Unit.DAY))));
        Hold hold = new Hold(null, Call.take(), Decision.without(false, Optional.empty(), ""));
        refuses("used: must be from 0 to 9007199254740991, not -1", () -> hold.commit(-1));
        refuses("usedByKind[input]: must be from 0 to 9007199254740991, not 9007199254740992",
                () -> hold.useByKind(Map.of("input", 1L << 53)));
    }

    private static tollkeeper.v1.Status.Builder status(Verdict.Code code, long limit, long remaining, long reset) {
        return tollkeeper.v1.Status.newBuilder().setCode(code).setRule(limit + " a week").setLimitRemaining(remaining)
                .setCurrentLimit(tollkeeper.v1.Limit.newBuilder().setRequestsPerUnit(limit).setUnit(tollkeeper.v1.Limit.Unit.WEEK))
                .setDurationUntilReset(com.google.protobuf.Duration.newBuilder().setSeconds(reset).setNanos(1));
    }

    private static Decision decision(Verdict.Code code, tollkeeper.v1.Status.Builder... statuses) {
        Verdict.Builder verdict = Verdict.newBuilder().setCode(code).setHits(4);
        List.of(statuses).forEach(verdict::addStatuses);
        return Decision.of(verdict.build(), Optional.empty());
    }

    @Test
    void aDecisionShowsTheLastLimitThatIsExceededOrTheFirstOneWithTheFewestHits() {
        Decision denied = decision(Verdict.Code.OVER_LIMIT, status(Verdict.Code.OVER_LIMIT, 3, 0, 90),
                status(Verdict.Code.OVER_LIMIT, 5, 0, 60), status(Verdict.Code.OK, 7, 0, 99));
        assertEquals(5, denied.limit().orElseThrow().hits());
        assertEquals("5 a week", denied.rule());
        assertEquals(90, denied.retryAfter().orElseThrow().toSeconds());
        Decision allowed = decision(Verdict.Code.OK, tollkeeper.v1.Status.newBuilder().setRule("unlimited"),
                status(Verdict.Code.OK, 3, 2, 90), status(Verdict.Code.OK, 5, 1, 60), status(Verdict.Code.OK, 7, 1, 99));
        assertEquals(5, allowed.limit().orElseThrow().hits());
        assertEquals(Optional.empty(), allowed.retryAfter());
    }

    @Test
    void aNumberBeyondTheLargestLongIsShownAsTheLargestLong() {
        tollkeeper.v1.Status.Builder huge = status(Verdict.Code.OK, -1, Long.MIN_VALUE, 1).setUsed(-1).setHeld(-1);
        Verdict verdict = Verdict.newBuilder().setCode(Verdict.Code.OK).addStatuses(huge).setHits(-1).build();
        Decision decision = Decision.of(verdict, Optional.empty());
        CommitResult.Charge charge = new CommitResult(tollkeeper.v1.CommitResult.newBuilder()
                .addCharges(CommittedCharge.newBuilder().setHeld(-1).setUsed(Long.MIN_VALUE)).build()).charges().get(0);
        Status shown = decision.statuses().get(0);
        for (long number : new long[] {decision.limit().orElseThrow().hits(), decision.remaining(), decision.hits(),
            shown.used().orElseThrow(), shown.held().orElseThrow(), charge.held(), charge.used()}) {
            assertEquals(Long.MAX_VALUE, number);
        }
        assertEquals(2, decision(Verdict.Code.OK, huge, status(Verdict.Code.OK, 3, 2, 1)).remaining());
    }

    @Test
    void headersRoundSecondsUp() {
        Decision decision = decision(Verdict.Code.OVER_LIMIT, status(Verdict.Code.OVER_LIMIT, 3, 0, 1));
        assertEquals(
                Map.of("RateLimit-Limit", "3", "RateLimit-Remaining", "0", "RateLimit-Reset", "2", "Retry-After", "2"),
                decision.headers());
        assertEquals(Optional.of(Unit.WEEK), decision.limit().orElseThrow().unit());
        assertEquals(4, decision.hits());
    }
}
