// Package tollkeepertest has a service for unit tests, in memory and without rules. The client is a real one: holds,
// mistakes, OnFailure and middleware are those of package tollkeeper.
//
//	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
//	service.Limit(2, tollkeeper.On("user", "alice"))
package tollkeepertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Service allows every call without a limit, unless it is told otherwise. Its methods may be called from any goroutine.
type Service struct {
	mutex    sync.Mutex
	failure  error
	counters map[string]*counter
	// open has holds by their tokens.
	open    map[string]hold
	calls   []Call
	commits []Commit
}

// Call is one that the service has got.
type Call struct {
	Domain string
	// Mode is TAKE, CHECK, READ, DEBIT, PART, or LEASE of a [tollkeeper.Limiter].
	Mode string
	// Hits is 1 where the client gave no number, and negative of a refund.
	Hits        int64
	HitsByKind  map[string]uint64
	ID          string
	Descriptors []tollkeeper.Descriptor
	Allowed     bool
}

// Commit is one that the service has got, also in a renewal.
type Commit struct {
	Domain, Token string
	// Used is -1 where the client gave no number, so that the estimate stays.
	Used       int64
	UsedByKind map[string]uint64
	End        string
}

type counter struct{ limit, used int64 }

type hold struct {
	counters []*counter
	hits     int64
}

// New returns a client of a new service. [tollkeeper.Client.With] and WithDomain make others of the same service.
func New(domain string, options tollkeeper.Options) (*tollkeeper.Client, *Service) {
	service := &Service{counters: map[string]*counter{}, open: map[string]hold{}}
	client, err := tollkeeper.NewFromConn(service, domain, options)
	if err != nil {
		panic(err)
	}
	return client, service
}

// Deny denies calls with one of these descriptors.
func (s *Service) Deny(descriptors ...tollkeeper.Descriptor) { s.Limit(0, descriptors...) }

// Limit admits as many hits of each of these descriptors from now on, in whatever domain, and gives none back but those of
// refunds and commits.
func (s *Service) Limit(hits int64, descriptors ...tollkeeper.Descriptor) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, descriptor := range descriptors {
		s.counters[fmt.Sprintf("%q", descriptor.Entries)] = &counter{limit: hits}
	}
}

// Fail answers each request with an error of this code from now on; with codes.OK no longer.
func (s *Service) Fail(code codes.Code) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.failure = status.Error(code, "as the test says")
}

// Calls returns the calls that the service has got, also those that failed.
func (s *Service) Calls() []Call {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Clone(s.calls)
}

// Commits returns the commits that the service has got, also those that failed.
func (s *Service) Commits() []Commit {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Clone(s.commits)
}

// Invoke is for the client: it answers a request.
func (s *Service) Invoke(ctx context.Context, _ string, request, response any, _ ...grpc.CallOption) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	switch request := request.(type) {
	case *pb.DecideRequest:
		answer := response.(*pb.DecideResponse)
		for _, call := range request.Calls {
			answer.Verdicts = append(answer.Verdicts, s.decide(request.Domain, call))
		}
	case *pb.CommitRequest:
		answer := response.(*pb.CommitResponse)
		for _, commit := range request.Commits {
			answer.Results = append(answer.Results, s.commit(request.Domain, commit))
		}
	case *pb.RenewRequest:
		answer := response.(*pb.RenewResponse)
		for _, renewal := range request.Renewals {
			committed := s.commit(request.Domain, renewal.Commit)
			verdict := s.decide(request.Domain, renewal.Call)
			answer.Results = append(answer.Results, &pb.RenewResult{Commit: committed, Verdict: verdict})
		}
	}
	return s.failure
}

// NewStream is for the client, which opens none.
func (s *Service) NewStream(
	context.Context, *grpc.StreamDesc, string, ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "tollkeepertest has no streams")
}

func (s *Service) decide(domain string, call *pb.Call) *pb.Verdict {
	hits, took := int64(1), Call{Domain: domain, Mode: call.Mode.String(), HitsByKind: call.HitsByKind, ID: call.Id}
	if call.Hits != nil {
		hits = int64(*call.Hits)
	}
	var counters []*counter
	for _, encoded := range call.Descriptors {
		if encoded.IsNegativeHits {
			hits = -int64(encoded.HitsAddend.GetValue())
		}
		descriptor := tollkeeper.Descriptor{}
		for _, entry := range encoded.Entries {
			descriptor = descriptor.And(string(entry.Key), string(entry.Value))
		}
		took.Descriptors = append(took.Descriptors, descriptor)
		counters = append(counters, s.counters[fmt.Sprintf("%q", descriptor.Entries)])
	}
	took.Hits, took.Allowed = hits, s.failure == nil
	if s.failure != nil {
		s.calls = append(s.calls, took)
		return nil
	}
	// What must fit, and what is charged.
	needed, charged := hits, hits
	switch {
	case call.Mode == pb.Call_READ:
		needed, charged = 0, 0
	case call.Mode == pb.Call_CHECK || hits == 0:
		needed, charged = 1, 0
	case call.Mode == pb.Call_PART || call.Mode == pb.Call_LEASE:
		needed = 1
		for _, counter := range counters {
			if counter != nil {
				charged = min(charged, counter.left())
			}
		}
	}
	verdict := &pb.Verdict{Code: pb.Verdict_OK}
	for i, counter := range counters {
		status := &pb.Status{Code: pb.Verdict_OK, DescriptorIndex: uint32(i)}
		if counter != nil && needed > 0 && needed > counter.left() {
			status.Code, verdict.Code, took.Allowed = pb.Verdict_OVER_LIMIT, pb.Verdict_OVER_LIMIT, false
		}
		verdict.Statuses = append(verdict.Statuses, status)
	}
	if took.Allowed || call.Mode == pb.Call_DEBIT {
		charge(counters, charged)
	}
	for i, counter := range counters {
		if counter != nil {
			counter.show(verdict.Statuses[i])
		}
	}
	switch {
	case call.Mode == pb.Call_PART && took.Allowed:
		verdict.Hits = uint64(charged)
	case call.Mode == pb.Call_LEASE && took.Allowed:
		verdict.Hits, verdict.SpendWithin = uint64(charged), durationpb.New(200*time.Millisecond)
	}
	isLimited := slices.ContainsFunc(counters, func(counter *counter) bool { return counter != nil })
	isHold := call.Mode == pb.Call_TAKE || call.Mode == pb.Call_LEASE && isLimited
	if isHold && took.Allowed && hits > 0 {
		verdict.Hold = fmt.Sprintf("hold %d", len(s.calls))
		s.open[verdict.Hold] = hold{counters, charged}
	}
	s.calls = append(s.calls, took)
	return verdict
}

func (s *Service) commit(domain string, commit *pb.Commit) *pb.CommitResult {
	took := Commit{Domain: domain, Token: commit.Hold, Used: -1, UsedByKind: commit.UsedByKind, End: commit.End}
	if commit.Used != nil {
		took.Used = int64(*commit.Used)
	}
	s.commits = append(s.commits, took)
	if s.failure != nil {
		return nil
	}
	held, isOpen := s.open[commit.Hold]
	delete(s.open, commit.Hold)
	charged := &pb.CommittedCharge{Outcome: pb.CommittedCharge_REPEATED, Held: uint64(held.hits), Used: uint64(held.hits)}
	if isOpen {
		charged.Outcome = pb.CommittedCharge_APPLIED
	}
	if commit.Used != nil {
		charged.Used = *commit.Used
		charge(held.counters, took.Used-held.hits)
	}
	return &pb.CommitResult{Charges: []*pb.CommittedCharge{charged}}
}

func charge(counters []*counter, hits int64) {
	for _, counter := range counters {
		if counter != nil {
			counter.used = max(0, counter.used+hits)
		}
	}
}

func (c *counter) left() int64 { return max(0, c.limit-c.used) }

func (c *counter) show(status *pb.Status) {
	status.Rule = "tollkeepertest"
	status.CurrentLimit = &pb.Limit{RequestsPerUnit: uint64(c.limit), Unit: pb.Limit_MINUTE, UnitMultiplier: 1}
	status.LimitRemaining = uint64(c.left())
	status.DurationUntilReset = durationpb.New(time.Minute)
	status.Used = proto.Uint64(uint64(c.used))
}
