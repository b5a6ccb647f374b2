package tollkeeper

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// This file is what a [Limiter] knows of one list of descriptors: how often it is called, and what credit it has. Time is
// an argument.

const (
	// span is how long calls are counted, and how long a lease lasts by that count.
	span = 100 * time.Millisecond
	// hotCalls is the number of calls a second above which hits are leased.
	hotCalls = 200
	// A lease is at most one in partOfRemaining of the hits that are left. Below wantMin, calls are decided one by one.
	partOfRemaining, wantMin = 20, 2
	// The next lease is asked for when one in partInHand of its hits is in hand. Then there are leasesMax.
	partInHand, leasesMax = 8, 2
	// leaseMax is the longest time for which a lease may be spent, and idleFor how long one is kept without a call.
	leaseMax, idleFor = 200 * time.Millisecond, 100 * time.Millisecond
	// answeredWithin is how long the answer to a lease is waited for: longer than it could be spent, to give it back.
	answeredWithin = time.Second
	// How long no lease is asked for after one of which nothing was used; after no answer or a denial; and after a refusal.
	uselessFor, failedFor, refusedFor = time.Second, 100 * time.Millisecond, 10 * time.Second
	// hitsCounted bounds the hits of a call in the count, so that no sum overflows.
	hitsCounted = 1 << 32
	// none is below any number of hits.
	none = -1
)

// moment is an instant by two clocks: one that is never set, and one that runs on while the machine is suspended.
type moment struct{ steady, wall time.Duration }

func (m moment) after(elapsed time.Duration) moment {
	return moment{m.steady + elapsed, m.wall + elapsed}
}

// isReached returns whether one of the clocks shows this or a later time.
func (m moment) isReached(now moment) bool { return now.steady >= m.steady || now.wall >= m.wall }

// lease is hits that are charged, and may be spent here.
type lease struct {
	left atomic.Int64
	// Calls change only the cache line above.
	_       [64]byte
	granted int64
	// counted is what was left when calls were counted last.
	counted int64
	// token is empty if nothing was charged, since no limit applies.
	token      string
	sent, ends moment
	// answer is the service's, as if to a call.
	answer Decision
	// usedUp is closed by the call that takes the last hit.
	usedUp chan struct{}
}

// newLease is what a request that was sent then was granted.
func newLease(granted int64, token string, sent moment, spendWithin time.Duration, answer Decision) *lease {
	answer.Hits = 0
	ends := sent.after(min(spendWithin, leaseMax))
	made := &lease{
		granted: granted, counted: granted, token: token, sent: sent, ends: ends, answer: answer, usedUp: make(chan struct{}),
	}
	made.left.Store(granted)
	return made
}

// take takes all of the hits, or none. It returns what is left.
func (l *lease) take(hits int64) (left int64, isTaken bool) {
	for {
		left = l.left.Load()
		if left < hits {
			return left, false
		}
		if l.left.CompareAndSwap(left, left-hits) {
			if left == hits {
				close(l.usedUp)
			}
			return left - hits, true
		}
	}
}

// counter is one list of descriptors. Calls that find credit do not lock it.
type counter struct {
	descriptors []Descriptor
	// leases has the oldest first.
	leases atomic.Pointer[[]*lease]
	// usedAt is when credit was used last, to a millisecond.
	usedAt atomic.Int64
	// countEnds and low say which calls look at what is locked: those from this time on, and those that find no more credit
	// than this.
	countEnds, low atomic.Int64
	// hits since the count began, apart from those of leases; and all hits beyond the first one of each call.
	hits, more atomic.Int64

	mutex sync.Mutex
	since time.Duration
	// callsASecond and hitsInSpan are what the last count showed.
	callsASecond float64
	hitsInSpan   int64
	// remaining is the fewest that the last answer showed.
	remaining int64
	isAsking  bool
	notBefore time.Duration
}

func newCounter(descriptors []Descriptor, now moment) *counter {
	made := &counter{descriptors: descriptors, since: now.steady, remaining: none}
	made.leases.Store(&[]*lease{})
	made.countEnds.Store(int64(now.steady + span))
	return made
}

// decide decides a call from credit, if there is enough. It also returns how many hits to lease now, if any.
//
// The clock is read after hits were taken: a process that stood still in between spends nothing stale.
func (c *counter) decide(hits int64, clock func() moment, decision *Decision) (want int64, isDecided bool) {
	leases, credit, now := *c.leases.Load(), int64(0), moment{}
	for _, lease := range leases {
		if isDecided {
			credit += lease.left.Load()
			continue
		}
		left, isTaken := lease.take(hits)
		credit += left
		if isTaken {
			now = clock()
			isDecided = !lease.ends.isReached(now)
		}
	}
	counted := min(hits, hitsCounted)
	if isDecided {
		newest := leases[len(leases)-1]
		*decision = newest.answer
		decision.age(now.steady-newest.sent.steady, credit)
		// Most calls only read it, which does not delay others.
		if at := int64(now.steady); at-c.usedAt.Load() >= int64(time.Millisecond) {
			c.usedAt.Store(at)
		}
	} else {
		now = clock()
		c.hits.Add(counted)
	}
	if counted > 1 {
		c.more.Add(counted - 1)
	}
	isDue := int64(now.steady) >= c.countEnds.Load() || credit <= c.low.Load()
	// If another call is looking, that is enough.
	if isDue && c.mutex.TryLock() {
		want = c.want(hits, now.steady)
		c.mutex.Unlock()
	}
	return want, isDecided
}

// want returns how many hits to lease now, if any, for calls of so many hits.
func (c *counter) want(hits int64, now time.Duration) int64 {
	credit, number := int64(0), 0
	for _, lease := range *c.leases.Load() {
		if left := c.count(lease); left > 0 {
			credit += left
			number++
		}
	}
	if passed := now - c.since; passed >= span {
		all := c.hits.Swap(0)
		c.callsASecond = float64(all-c.more.Swap(0)) / passed.Seconds()
		c.hitsInSpan = int64(float64(all) * float64(span) / float64(passed))
		c.since = now
		c.countEnds.Store(int64(now + span))
	}
	want, low := min(c.hitsInSpan, c.remaining/partOfRemaining), int64(none)
	isHot := c.callsASecond > hotCalls && want >= wantMin
	if isHot {
		low = want / partInHand
	}
	c.low.Store(low)
	// Of whole calls: a rest that pays for no call would keep its place until its end.
	want -= want % hits
	if !isHot || want < wantMin || c.isAsking || now < c.notBefore || number >= leasesMax || credit > low {
		return 0
	}
	c.isAsking = true
	return want
}

// count counts what was taken of a lease. It returns what is left.
func (c *counter) count(lease *lease) int64 {
	left := lease.left.Load()
	c.hits.Add(lease.counted - left)
	lease.counted = left
	return left
}

// learn notes what an answer shows. Without a limit, any number is left.
func (c *counter) learn(answer *Decision) {
	remaining := HitsMax
	for i := range answer.Statuses {
		if status := &answer.Statuses[i]; status.Limit != nil {
			remaining = min(remaining, status.Remaining)
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.remaining = remaining
	// The next call looks whether it changes what is wanted.
	c.low.Store(HitsMax)
}

// add takes a lease that was granted.
func (c *counter) add(granted *lease, now moment) {
	c.learn(&granted.answer)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.isAsking = false
	c.usedAt.Store(int64(now.steady))
	leases := append(slices.Clone(*c.leases.Load()), granted)
	c.leases.Store(&leases)
}

// refused notes that nothing was granted, and that no lease is to be asked for until some time has passed.
func (c *counter) refused(now moment, pause time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.isAsking = false
	c.notBefore = max(c.notBefore, now.steady+pause)
}

// rest returns how long a lease may go on until the next look: 0 at its end, or if it was not used for some time.
func (c *counter) rest(lease *lease, now moment) time.Duration {
	if lease.ends.isReached(now) {
		return 0
	}
	return max(0, min(lease.ends.steady, time.Duration(c.usedAt.Load())+idleFor)-now.steady)
}

// end takes a lease away. It returns the hits that are left of it.
func (c *counter) end(ended *lease, now moment) int64 {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	// Later calls find nothing.
	left := ended.left.Swap(0)
	c.hits.Add(ended.counted - left)
	leases := slices.DeleteFunc(slices.Clone(*c.leases.Load()), func(lease *lease) bool { return lease == ended })
	c.leases.Store(&leases)
	if left == ended.granted && now.steady >= time.Duration(c.usedAt.Load())+idleFor {
		c.notBefore = max(c.notBefore, now.steady+uselessFor)
	}
	return left
}

// isIdle returns whether it would not be missed.
func (c *counter) isIdle(now moment) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return !c.isAsking && len(*c.leases.Load()) == 0 && now.steady >= max(c.notBefore, c.since+uselessFor)
}
