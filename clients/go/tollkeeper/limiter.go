package tollkeeper

import (
	"context"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	countersMax = 10_000
	// descriptorsBytesMax bounds the keys and values of a counter.
	descriptorsBytesMax = 1 << 10
)

// Limiter is a [Client] that decides calls on hot counters inside the process. Make one for the process: its goroutines
// share its credit.
//
// Of descriptors that it decides more than 200 times a second, it leases some hits: for 100 ms of calls, and at most a
// twentieth of what is left. They are charged before they are spent, so no window admits more than its limit, and spent
// within 200 ms, without a message or a lock. What is not used goes back, also when the client is closed; a process that
// crashes leaves what it has leased as used.
//
// This needs rules with "lease: auto". It is for calls of Decide, DecideN and DecideCall, also by the middleware, with hits
// and without an id, hits by kind or a limit of the caller, whose keys and values have at most 1 KiB together. The service
// decides all others, and what a client of With or WithDomain decides.
type Limiter struct {
	*Client
	began time.Time
	seed  maphash.Seed
	// counters has each *counter by the hash of its descriptors.
	counters sync.Map

	// mutex is locked to add counters.
	mutex   sync.Mutex
	number  int
	sweptAt moment
}

// NewLimiter makes a limiter of the client's connections, domain and options. Close of the client gives back what it has
// leased.
func NewLimiter(client *Client) *Limiter {
	view := *client
	limiter := &Limiter{Client: &view, began: time.Now(), seed: maphash.MakeSeed()}
	view.decideOne = limiter.Decide
	return limiter
}

// Decide is [Client.Decide], inside the process if there is credit.
func (l *Limiter) Decide(ctx context.Context, descriptors ...Descriptor) (Decision, error) {
	return l.DecideN(ctx, 1, descriptors...)
}

// DecideCall is [Client.DecideCall], inside the process if there is credit.
func (l *Limiter) DecideCall(ctx context.Context, call Call) (Decision, error) {
	if call.mode == pb.Call_TAKE && call.hits != nil && !call.isRefund && call.id == "" && len(call.hitsByKind) == 0 {
		return l.DecideN(ctx, *call.hits, call.descriptors...)
	}
	return l.Client.DecideCall(ctx, call)
}

// DecideN is [Client.DecideN], inside the process if there is credit.
func (l *Limiter) DecideN(ctx context.Context, hits int64, descriptors ...Descriptor) (decision Decision, err error) {
	var found *counter
	// The client denies calls whose context has ended.
	if hits > 0 && hits <= HitsMax && ctx.Err() == nil {
		found = l.find(descriptors)
	}
	if found != nil {
		want, isDecided := found.decide(hits, l.now, &decision)
		if want > 0 {
			l.ask(found, want)
		}
		if isDecided {
			return decision, nil
		}
	}
	// Of a copy, so that the compiler need not put the caller's on the heap for calls that are decided here.
	decision, err = l.Client.DecideN(ctx, hits, clone(descriptors)...)
	if found != nil && err == nil && decision.Err == nil {
		found.learn(&decision)
	}
	return decision, err
}

func (l *Limiter) now() moment {
	now := time.Now()
	return moment{now.Sub(l.began), time.Duration(now.UnixNano())}
}

// find returns the counter of the descriptors, which it makes if there is room, or nil.
func (l *Limiter) find(descriptors []Descriptor) *counter {
	hash, bytes := uint64(len(descriptors)), 0
	for _, descriptor := range descriptors {
		if descriptor.limit != nil {
			return nil
		}
		hash = hash*31 + uint64(len(descriptor.Entries))
		for _, entry := range descriptor.Entries {
			bytes += len(entry.Key) + len(entry.Value)
			hash = (hash*31+maphash.String(l.seed, entry.Key))*31 + maphash.String(l.seed, entry.Value)
		}
	}
	if bytes > descriptorsBytesMax {
		return nil
	}
	loaded, isFound := l.counters.Load(hash)
	found, _ := loaded.(*counter)
	if !isFound {
		found = l.add(hash, descriptors)
	}
	if found == nil || !slices.EqualFunc(found.descriptors, descriptors, Descriptor.equal) {
		return nil
	}
	return found
}

func (d Descriptor) equal(other Descriptor) bool { return slices.Equal(d.Entries, other.Entries) }

// clone shares no memory with the descriptors, whose values may be parts of long texts.
func clone(descriptors []Descriptor) []Descriptor {
	cloned := make([]Descriptor, len(descriptors))
	for i, descriptor := range descriptors {
		cloned[i].Entries = make([]Entry, len(descriptor.Entries))
		for j, entry := range descriptor.Entries {
			cloned[i].Entries[j] = Entry{strings.Clone(entry.Key), strings.Clone(entry.Value)}
		}
		if descriptor.limit != nil {
			limit := *descriptor.limit
			cloned[i].limit = &limit
		}
	}
	return cloned
}

// keysOf returns the keys without the values, which must not reach a log.
func keysOf(descriptors []Descriptor) []string {
	keys := make([]string, len(descriptors))
	for i, descriptor := range descriptors {
		keys[i] = descriptor.keys()
	}
	return keys
}

// add makes a counter. If there are too many, it first drops those that are idle, at most once a second.
func (l *Limiter) add(hash uint64, descriptors []Descriptor) *counter {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := l.now()
	if l.number >= countersMax && l.sweptAt.after(uselessFor).isReached(now) {
		l.sweptAt = now
		l.counters.Range(func(key, found any) bool {
			if found.(*counter).isIdle(now) {
				l.counters.Delete(key)
				l.number--
			}
			return true
		})
	}
	if l.number >= countersMax {
		return nil
	}
	made, isFound := l.counters.LoadOrStore(hash, newCounter(clone(descriptors), now))
	if !isFound {
		l.number++
	}
	return made.(*counter)
}

// ask asks for a lease beside the call, and gives it back at its end, or at once if its answer is late. Close waits for that.
func (l *Limiter) ask(counter *counter, want int64) {
	if l.begin(&l.commits) != nil {
		return
	}
	go func() {
		timeout := time.AfterFunc(l.options.Timeout, func() { counter.refused(l.now(), failedFor) })
		granted, pause, log := l.lease(counter.descriptors, want)
		if log != nil {
			// Close waits for the lease, and a logger may close the client.
			go log()
		}
		switch isLate := !timeout.Stop(); {
		case isLate:
		case pause > 0:
			counter.refused(l.now(), pause)
		default:
			counter.add(granted, l.now())
			l.await(counter, granted)
		}
		token, used := "", int64(0)
		if granted != nil {
			if left := counter.end(granted, l.now()); left > 0 {
				token, used = granted.token, granted.granted-left
			}
		}
		l.giveBack(context.Background(), token, used)
	}()
}

// await returns when the lease is used up, has ended, or is not used.
func (l *Limiter) await(counter *counter, lease *lease) {
	for {
		rest := counter.rest(lease, l.now())
		if rest == 0 {
			return
		}
		select {
		case <-time.After(rest):
		case <-lease.usedUp:
			return
		case <-l.closed:
			return
		}
	}
}

// lease asks the service for a lease. If there is none that may be spent, it returns for how long no other is to be asked
// for. Its failures are not those of a call: of them, only a refusal is logged, and the hook does not hear of them.
// What it returns logs it, if it is not nil.
func (l *Limiter) lease(descriptors []Descriptor, want int64) (granted *lease, pause time.Duration, log func()) {
	call := Call{descriptors: descriptors, mode: pb.Call_LEASE, hits: &want}
	request, err := encode(l.domain, "", []Call{call})
	if err != nil {
		return nil, refusedFor, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(l.options.Timeout, answeredWithin))
	defer cancel()
	sent := l.now()
	response, err := l.service.Decide(ctx, request)
	if err == nil && len(response.Verdicts) != 1 {
		err = errNotOurs
	}
	var decision Decision
	var token string
	if err == nil {
		decision, token = decode(response.Verdicts[0])
		err = decision.Err
	}
	switch code := status.Code(err); {
	case code == codes.InvalidArgument || code == codes.Unimplemented:
		log = l.count("refused lease", 1, func(int) {
			l.log(context.Background(), slog.LevelInfo, "each call on %s in the domain \"%s\" is a request, since the service leases no hits for it: %s",
				keysOf(descriptors), l.domain, brief(err))
		})
		return nil, refusedFor, log
	case err != nil || !decision.Allowed:
		return nil, failedFor, nil
	case response.Verdicts[0].DomainUnknown:
		log = l.warnUnknown(1)
	}
	granted = newLease(decision.Hits, token, sent, response.Verdicts[0].SpendWithin.AsDuration(), decision)
	if l.lacksLimit(call, decision) != nil {
		return granted, refusedFor, log
	}
	return granted, 0, log
}
