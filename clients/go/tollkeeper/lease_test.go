package tollkeeper

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// at is a time in milliseconds, by both clocks.
func at(ms int) moment { return moment{}.after(time.Duration(ms) * time.Millisecond) }

// timed is a counter whose limit has 1,000 hits a second, at times in milliseconds.
type timed struct {
	*counter
	t *testing.T
}

func newTimed(t *testing.T) timed {
	made := timed{newCounter([]Descriptor{On("user", "alice")}, at(0)), t}
	made.shows(1000)
	return made
}

func remaining(hits int64) Decision {
	decision := Decision{
		Allowed: true, Rule: "user", Limit: &Limit{Hits: 1000, Units: 1, Unit: "second"}, Remaining: hits, Reset: time.Second,
	}
	decision.Statuses = []Status{{Allowed: true, Rule: "user", Limit: decision.Limit, Remaining: hits, Reset: time.Second}}
	return decision
}

func (c timed) shows(hits int64) {
	answer := remaining(hits)
	c.learn(&answer)
}

// granted grants hits that were asked for at this time.
func (c timed) granted(hits int64, ms int) *lease {
	granted := newLease(hits, "token", at(ms), leaseMax, remaining(900))
	c.add(granted, at(ms))
	return granted
}

// spends returns whether a call is decided from credit.
func (c timed) spends(hits int64, ms int) bool {
	_, isDecided := c.decide(hits, func() moment { return at(ms) }, &Decision{})
	return isDecided
}

// wants returns what a call is to lease.
func (c timed) wants(hits int64, ms int) int64 {
	c.isAsking = false
	want, _ := c.decide(hits, func() moment { return at(ms) }, &Decision{})
	return want
}

// wantsAfter returns what the last of some calls in 100 ms is to lease.
func (c timed) wantsAfter(calls int, hits int64, ms int) int64 {
	c.hits.Store(0)
	c.since = at(ms - 100).steady
	c.countEnds.Store(int64(at(ms).steady))
	for range calls - 1 {
		c.decide(hits, func() moment { return at(ms - 1) }, &Decision{})
	}
	return c.wants(hits, ms)
}

func equal[A comparable](t *testing.T, what string, actual, expected A) {
	t.Helper()
	if actual != expected {
		t.Errorf("%s: %v, not %v", what, actual, expected)
	}
}

func TestCreditIsSpentUntilItEndsAndNoHitOfItTwice(t *testing.T) {
	c := newTimed(t)
	lease := c.granted(4, 10)
	equal(t, "before the end", c.spends(2, 209), true)
	equal(t, "more than is left", c.spends(3, 209), false)
	equal(t, "at the end", c.spends(1, 210), false)
	equal(t, "what is left", c.spends(1, 209), true)
	equal(t, "used up", c.spends(1, 209), false)
	equal(t, "hits to give back", c.end(lease, at(210)), 0)
}

func TestEitherClockEndsCredit(t *testing.T) {
	lease := newLease(5, "token", at(100), 50*time.Millisecond, remaining(900))
	for now, expected := range map[moment]bool{
		at(149): false, at(150): true,
		{at(149).steady, at(150).wall}: true, // The machine was suspended.
		{at(150).steady, at(90).wall}:  true, // Its clock was set back.
	} {
		equal(t, fmt.Sprint(now), lease.ends.isReached(now), expected)
	}
	equal(t, "the longest life", newLease(5, "token", at(100), time.Minute, Decision{}).ends, at(300))
}

// The clock is read after the hits were taken.
func TestAProcessThatStoodStillSpendsNothingStale(t *testing.T) {
	c := newTimed(t)
	first, second := c.granted(5, 0), c.granted(5, 150)
	now, reads := at(10), 0
	clock := func() moment { reads++; return now }
	stand := func() moment {
		clock()
		now = at(220)
		return now
	}
	_, isDecided := c.decide(2, stand, &Decision{})
	equal(t, "decided from the second lease", isDecided, true)
	equal(t, "reads of the clock", reads, 2)
	equal(t, "of the first, what was taken counts as used", c.end(first, now), 3)
	equal(t, "of the second", c.end(second, now), 3)
	c.granted(5, 300)
	now = at(310)
	_, isDecided = c.decide(2, func() moment { return at(510) }, &Decision{})
	equal(t, "decided after the last lease", isDecided, false)
}

func TestGoroutinesSpendWhatWasGrantedAndWhatIsLeftIsGivenBack(t *testing.T) {
	c := newTimed(t)
	var spent atomic.Int64
	var calls sync.WaitGroup
	var granted, left int64
	for round := range int64(200) {
		lease := c.granted(100, 0)
		granted += 100
		for hits := range int64(4) {
			calls.Go(func() {
				for range 20 {
					if c.spends(hits+1, 1) {
						spent.Add(hits + 1)
					}
				}
			})
		}
		if round%2 == 0 {
			left += c.end(lease, at(1))
		}
	}
	calls.Wait()
	for _, lease := range *c.leases.Load() {
		left += c.end(lease, at(1))
	}
	equal(t, "spent and given back", spent.Load()+left, granted)
}

func TestOnlyHotCallsAreLeasedAndALeaseIs100MsOfTheirHits(t *testing.T) {
	for _, row := range []struct {
		calls           int
		hits, remaining int64
		want            int64
	}{
		{20, 1, 1000, 0}, // 200 a second.
		{21, 1, 1000, 21},
		{20, 5, 1000, 0},
		{21, 2, 1000, 42},
		{1000, 1, 1000, 50}, // A twentieth of what is left.
		{1000, 1, 200, 10},
		{1000, 1, 40, 2},
		{1000, 1, 39, 0}, // The last hits are decided one by one.
		{1000, 1, 0, 0},
		{1000, 1, HitsMax, 1000},
		{100, 7, HitsMax, 700},
		{100, 7, 1000, 49}, // Of whole calls.
		{100, 51, 1000, 0},
		{100, HitsMax, HitsMax, 0},
	} {
		c := newTimed(t)
		c.shows(row.remaining)
		equal(t, fmt.Sprint(row), c.wantsAfter(row.calls, row.hits, 100), row.want)
	}
	c := timed{newCounter(nil, at(0)), t}
	equal(t, "before the first answer", c.wantsAfter(100, 1, 100), 0)
	c.learn(&Decision{Statuses: []Status{{Rule: "free"}}})
	equal(t, "without a limit", c.wantsAfter(100, 1, 200), 100)
}

func TestCallsFromCreditCount(t *testing.T) {
	c := newTimed(t)
	c.granted(150, 0)
	c.shows(HitsMax)
	equal(t, "while credit is left", c.wantsAfter(30, 3, 100), 0)
	equal(t, "calls a second", c.callsASecond, 300)
	equal(t, "hits in 100 ms", c.hitsInSpan, 90)
	equal(t, "until an eighth of 90 is left", c.spends(48, 100), true)
	equal(t, "next", c.wants(1, 101), 90)
	equal(t, "after a quiet time", c.wants(1, 1100), 0)

	c = newTimed(t)
	lease := c.granted(100, 0)
	c.spends(30, 50)
	c.spends(30, 51)
	c.end(lease, at(60))
	c.wants(1, 100)
	equal(t, "hits in 100 ms, of a lease that has ended, too", c.hitsInSpan, 61)
}

func TestTheNextLeaseIsAskedForWhenAnEighthIsLeftAndThereAreTwoAtMost(t *testing.T) {
	for inHand, want := range map[int64]int64{7: 0, 6: 50, 1: 50} {
		c := newTimed(t)
		c.wantsAfter(100, 1, 100)
		c.granted(inHand+1, 100)
		c.shows(1000)
		equal(t, fmt.Sprint(inHand), c.wants(1, 101), want)
	}
	c := newTimed(t)
	equal(t, "hot", c.wantsAfter(100, 1, 100), 50)
	second, _ := c.decide(1, func() moment { return at(101) }, &Decision{})
	equal(t, "one question at a time", second, 0)
	c = newTimed(t)
	c.wantsAfter(100, 1, 100)
	c.granted(2, 100)
	c.granted(2, 100)
	c.shows(1000)
	equal(t, "two have hits left", c.wants(1, 101), 0)
	equal(t, "the first is used up", c.wants(1, 101), 50)
}

func TestALeaseThatIsNotUsedFor100MsEnds(t *testing.T) {
	c := newTimed(t)
	lease := c.granted(5, 0)
	for ms, rest := range map[int]time.Duration{0: 100, 99: 1, 100: 0} {
		equal(t, fmt.Sprint(ms), c.rest(lease, at(ms)), rest*time.Millisecond)
	}
	c.spends(2, 90)
	for ms, rest := range map[int]time.Duration{100: 90, 189: 1, 190: 0} {
		equal(t, fmt.Sprint("used at 90: ", ms), c.rest(lease, at(ms)), rest*time.Millisecond)
	}
	c.spends(1, 180)
	equal(t, "used at 180", c.rest(lease, at(190)), 10*time.Millisecond)
	equal(t, "hits to give back", c.end(lease, at(200)), 2)
	_, isTaken := lease.take(1)
	equal(t, "a call that had found it before its end", isTaken, false)
	equal(t, "something was used", c.wantsAfter(100, 1, 300), 45)

	c = newTimed(t)
	equal(t, "hits to give back", c.end(c.granted(5, 0), at(100)), 5)
	equal(t, "nothing was used", c.wantsAfter(100, 1, 1099), 0)
	equal(t, "a second later", c.wants(1, 1100), 45)
}

func TestNoLeaseIsAskedForUntilAPauseHasPassed(t *testing.T) {
	for _, pause := range []time.Duration{uselessFor, failedFor, refusedFor} {
		c, ms := newTimed(t), int(pause/time.Millisecond)
		c.refused(at(0), pause)
		c.refused(at(0), time.Millisecond)
		equal(t, "before its end", c.wantsAfter(100, 1, ms-1), 0)
		equal(t, pause.String(), c.wants(1, ms), 50)
	}
}

func TestAnAnswerFromCreditIsTheServicesWithWhatIsLeftNow(t *testing.T) {
	c := newTimed(t)
	c.granted(10, 0)
	answer := remaining(800)
	answer.Hits = 20
	answer.Statuses = append(answer.Statuses, Status{Allowed: true, Descriptor: 1, Rule: "free"})
	c.add(newLease(20, "token", at(50), leaseMax, answer), at(60))
	var decision Decision
	_, isDecided := c.decide(3, func() moment { return at(170) }, &decision)
	equal(t, "decided", isDecided, true)
	equal(t, "answer", fmt.Sprintf("%+v", decision), fmt.Sprintf("%+v", Decision{
		Allowed: true, Rule: "user", Limit: answer.Limit, Remaining: 827, Reset: 880 * time.Millisecond,
		Statuses: []Status{
			{Allowed: true, Rule: "user", Limit: answer.Limit, Remaining: 827, Reset: 880 * time.Millisecond},
			{Allowed: true, Descriptor: 1, Rule: "free"},
		},
	}))
	equal(t, "the answer of the lease", answer.Statuses[0].Remaining, 800)
}

func TestACounterIsIdleAfterASecond(t *testing.T) {
	c := newTimed(t)
	equal(t, "too early", c.isIdle(at(999)), false)
	equal(t, "after a second", c.isIdle(at(1000)), true)
	lease := c.granted(1, 1000)
	equal(t, "with a lease", c.isIdle(at(2000)), false)
	c.end(lease, at(2000))
	equal(t, "in a pause", c.isIdle(at(2999)), false)
	equal(t, "after it", c.isIdle(at(3000)), true)
}
