package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status.Code;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class FakeTest {
    private static final Descriptor ALICE = Descriptor.on("user", "alice");
    private static final Descriptor BOB = Descriptor.on("user", "bob");
    private final Fake fake = new Fake();
    private final Client client = fake.client("example");

    @Test
    void itAllowsEverythingAndListsTheCalls() {
        Call refund = Call.refund(3, ALICE.withLimit(5, Limit.Unit.DAY), BOB);
        Call part = Call.part(7, BOB).withId("order 7");
        assertEquals(List.of(true, true), client.decideAll(List.of(refund, part)).stream().map(Decision::allowed).toList());
        assertTrue(client.decideAsync(Call.read(ALICE)).join().limit().isEmpty());
        assertEquals(List.of(refund, part, Call.read(ALICE)), fake.calls());
    }

    @Test
    void itDeniesADescriptor() {
        fake.deny(ALICE);
        Decision denied = client.decide(BOB, ALICE);
        assertFalse(denied.allowed() || denied.failed());
        assertEquals(Duration.ofSeconds(60), denied.retryAfter().orElseThrow());
        assertEquals("0", denied.headers().get("RateLimit-Limit"));
        assertTrue(client.decide(BOB).allowed());
    }

    @Test
    void itLimitsADescriptor() {
        fake.limit(5, ALICE);
        assertEquals(5, client.check(ALICE).remaining());
        assertEquals(2, client.decide(3, ALICE).remaining());
        assertFalse(client.decide(3, ALICE).allowed());
        assertEquals(2, client.part(3, ALICE).hits());
        assertFalse(client.part(3, ALICE).allowed() || client.check(ALICE).allowed() || client.decide(ALICE).allowed());
        assertFalse(client.decide(0, ALICE).allowed() || client.debit(0, ALICE).allowed() || client.part(0, ALICE).allowed());
        assertTrue(client.part(0, BOB).allowed());
        assertFalse(client.debit(2, ALICE).allowed());
        assertEquals(OptionalLong.of(7), client.read(ALICE).statuses().get(0).used());
        assertEquals(2, client.refund(4, ALICE).remaining());
        assertEquals(5, client.refund(100, ALICE).remaining());
    }

    @Test
    void itFailsUntilItIsTold() {
        fake.fail(Code.UNAVAILABLE);
        Client strict = client.with(options -> options.onFailure(Client.OnFailure.DENY));
        assertFalse(strict.decide(ALICE).allowed());
        assertTrue(client.decide(ALICE).allowed() && client.decide(ALICE).failed());
        fake.fail(Code.INTERNAL);
        assertTrue(client.resume("hold").commit(1).failed());
        assertEquals(List.of(3, 1), List.of(fake.calls().size(), fake.commits().size()));
        fake.fail(Code.OK);
        assertFalse(strict.decide(ALICE).failed());
    }

    @Test
    void itListsCommitsAndRenewals() {
        try (Hold hold = client.hold(400, ALICE)) {
            assertTrue(hold.renew(300, 200).allowed());
            hold.useByKind(Map.of("output", 42L));
            hold.end("503");
        }
        client.hold(ALICE).release();
        assertEquals(List.of(new Fake.Commit("hold-1", OptionalLong.of(300), Map.of(), ""),
                new Fake.Commit("hold-2", OptionalLong.empty(), Map.of("output", 42L), "503"),
                new Fake.Commit("hold-3", OptionalLong.of(0), Map.of(), "")), fake.commits());
        assertEquals(List.of(Call.take(400, ALICE), Call.take(200, ALICE), Call.take(ALICE)), fake.calls());
    }

    @Test
    void aCommitGivesBackWhatWasHeldAndNotUsed() {
        fake.limit(10, ALICE);
        Hold hold = client.hold(8, ALICE);
        assertTrue(hold.renew(3, 7).allowed());
        assertEquals(0, client.read(ALICE).remaining());
        hold.release();
        hold.release();
        assertEquals(7, client.read(ALICE).remaining());
        client.hold(7, ALICE).close();
        assertEquals(0, client.read(ALICE).remaining());
    }

    @Test
    void aRenewalThatIsDeniedHasCommittedAndLeavesNothing() {
        try (Hold hold = client.hold(400, ALICE)) {
            fake.limit(100, ALICE);
            assertFalse(hold.renew(300, 200).allowed());
            assertFalse(hold.allowed());
        }
        assertEquals(1, fake.commits().size());
    }

    @Test
    void aCallThatMeetsNoLimitIsAMistakeWhereOneIsRequired() {
        Client strict = client.with(options -> options.requireLimit(true));
        Exception mistake = assertThrows(IllegalArgumentException.class, () -> strict.decide(ALICE));
        assertEquals("descriptors[0]: no limit applies to user in the domain example (require_limit)", mistake.getMessage());
        fake.limit(2, ALICE);
        assertTrue(strict.decide(ALICE).allowed());
    }

    @Test
    void atMost10000DenialsAreRemembered() {
        Client remembering = client.with(options -> options.rememberDenials(Duration.ofMinutes(1)));
        Descriptor[] users = IntStream.rangeClosed(0, 10_000).mapToObj(i -> Descriptor.on("user", "user " + i))
                .toArray(Descriptor[]::new);
        fake.deny(users);
        for (int i = 0; i < 10_000; i++) {
            assertFalse(remembering.decide(users[i]).allowed());
        }
        assertFalse(remembering.decideAsync(Call.take(1, users[0])).join().allowed());
        assertEquals(10_000, fake.calls().size());
        assertFalse(remembering.decide(users[10_000]).allowed() || remembering.decide(users[0]).allowed());
        assertEquals(10_002, fake.calls().size());
    }

    @Test
    void theDenialOfALongRequestIsNotRemembered() {
        Client remembering = client.with(options -> options.rememberDenials(Duration.ofMinutes(1)));
        fake.deny(ALICE);
        for (int bytes : new int[] {500, 500, 2_000, 2_000}) {
            assertFalse(remembering.decide(ALICE, Descriptor.on("note", "x".repeat(bytes))).allowed());
        }
        assertEquals(3, fake.calls().size());
    }

    @Test
    void aClientThatIsClosedRemembersNothing() {
        fake.deny(ALICE);
        Client remembering = client.with(options -> options.rememberDenials(Duration.ofMinutes(1)));
        remembering.decide(ALICE);
        client.close();
        assertTrue(remembering.decide(ALICE).failed());
    }

    @Test
    void aClientWarmsUp() {
        assertTrue(client.warmUp(Duration.ofSeconds(10)));
    }
}
