package tollkeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	pbstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// This file is about services that answer what tollkeeper never does, and about loggers and connections that fail.

// lines is a logger that keeps its messages as they are, where others quote them.
type lines struct {
	mutex sync.Mutex
	all   []string
}

func (*lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *lines) WithGroup(string) slog.Handler          { return l }
func (l *lines) Handle(_ context.Context, record slog.Record) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.all = append(l.all, record.Message)
	return nil
}

// broken is a logger that panics.
type broken struct{ lines }

func (*broken) Handle(context.Context, slog.Record) error { panic("the disk is full") }

// hanging answers when a request ends: late, or with Canceled once it is closed.
type hanging struct {
	closed   chan struct{}
	verdicts []*pb.Verdict
	late     time.Duration
}

func (h *hanging) Invoke(ctx context.Context, method string, _, response any, _ ...grpc.CallOption) error {
	if answer, isDecide := response.(*pb.DecideResponse); isDecide && h.late > 0 {
		time.Sleep(h.late)
		answer.Verdicts = h.verdicts
		return nil
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-h.closed:
		return status.Error(codes.Canceled, "the connection is closing")
	}
}

func (*hanging) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errNotOurs
}

func itemError(code int32, message string) *pbstatus.Status {
	return &pbstatus.Status{Code: code, Message: message}
}

func TestTextsOfTheServiceAndTheDomainAddNoLineAndNoDirection(t *testing.T) {
	evil := "a\r\nb\x1b\x00\x7f\u0085\u2028\u2029\u202a\u202e\u2066\u2069c é"
	evil, plain := evil+strings.Repeat("é", 1_000_000), "a  b          c é"+strings.Repeat("é", 300-17)+"… (target"
	for name, service := range map[string]*unreliable{
		"error of a request": {decideErr: status.Error(codes.Unimplemented, evil), err: status.Error(codes.InvalidArgument, evil)},
		"error of an item": {
			verdicts: []*pb.Verdict{{Error: itemError(12, evil)}}, result: &pb.CommitResult{Error: itemError(3, evil)},
		},
	} {
		log := &lines{}
		client, err := NewFromConn(service, "sh\n\u202eop", Options{
			Logger: slog.New(log), OnFailure: func(err error, _ []Descriptor) bool { panic(err) },
		})
		must(t, err)
		decision, err := client.Decide(t.Context(), On("user", "a"))
		must(t, err)
		if !strings.HasSuffix(decision.Err.Error(), evil) {
			t.Errorf("%s: the application does not get the whole text", name)
		}
		if err := client.Resume("token").Close(); err == nil {
			t.Errorf("%s: the commit has not failed", name)
		}
		_, _, say := NewLimiter(client).lease([]Descriptor{On("user", "a")}, 5)
		say()
		wanted := []string{
			"tollkeeper: on_failure panicked, so the call is denied (1 times); the last: UNIMPLEMENTED: a  b          c",
			`tollkeeper: 1 call of the domain "sh  op" had no answer and was decided by on_failure; the last: UNIMPLEMENTED: ` + plain,
			`tollkeeper: 1 commit of the domain "sh  op" failed, and its estimate may count in place of what was used; the last: INVALID_ARGUMENT: ` + plain,
			`tollkeeper: each call on [user] in the domain "sh  op" is a request, since the service leases no hits for it: UNIMPLEMENTED: a  b `,
		}
		if !slices.EqualFunc(log.all, wanted, strings.HasPrefix) {
			t.Errorf("%s: %.1000q", name, log.all)
		}
		for _, line := range log.all {
			if len(line) > 1000 {
				t.Errorf("%s: a line has %d bytes", name, len(line))
			}
		}
	}
}

func TestALoggerThatPanicsChangesNothing(t *testing.T) {
	service := &unreliable{err: status.Error(codes.InvalidArgument, "lost"), decideErr: status.Error(codes.Unavailable, "lost")}
	client := over(t, service, Options{
		Logger: slog.New(&broken{}), OnCall: func(string, time.Duration, error) { panic("the hook") },
	})
	decision, err := client.Decide(t.Context(), On("user", "a"))
	must(t, err)
	if !decision.Allowed || !decision.Failed {
		t.Errorf("%+v", decision)
	}
	if err := client.Resume("token").Close(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
	recorder := httptest.NewRecorder()
	mistaken := func(*http.Request) []Descriptor { return []Descriptor{{}} }
	client.Middleware(mistaken, nil)(nil).ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil))
	if recorder.Code != 500 {
		t.Errorf("%d", recorder.Code)
	}
	must(t, client.Close())
}

func TestCloseCountsTheCallsThatItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, service := &lines{}, &hanging{closed: make(chan struct{})}
		client := over(t, service, Options{Timeout: time.Minute, Logger: slog.New(log)})
		client.close = func() error { close(service.closed); return nil }
		_, err := client.With(func(options *Options) { options.Timeout = 1 }).Decide(t.Context(), On("user", "a"))
		must(t, err)
		for range 10 {
			go client.Decide(context.Background(), On("user", "a"))
		}
		synctest.Wait()
		started := time.Now()
		must(t, client.Close())
		if len(log.all) != 2 || !strings.HasPrefix(log.all[1], "tollkeeper: 10 calls") || time.Since(started) > 0 {
			t.Errorf("%q after %s", log.all, time.Since(started))
		}
	})
}

func TestCloseCountsTheCommitsThatFailWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &lines{}
		client := over(t, &hanging{}, Options{Logger: slog.New(log), OnCall: func(string, time.Duration, error) { time.Sleep(time.Hour) }})
		if err := client.With(func(options *Options) { options.OnCall = nil }).Resume("token").Close(); err == nil {
			t.Error("the commit has not failed")
		}
		var commits sync.WaitGroup
		for range 10 {
			commits.Go(func() { client.Resume("token").Close() })
		}
		synctest.Wait()
		must(t, client.Close())
		if len(log.all) != 2 || !strings.HasPrefix(log.all[1], "tollkeeper: 10 commits") {
			t.Errorf("%q", log.all)
		}
		commits.Wait()
	})
}

// closing is a logger that closes the client.
type closing struct {
	lines
	client *Client
	closed chan error
}

func (c *closing) Handle(context.Context, slog.Record) error {
	c.closed <- c.client.Close()
	return nil
}

func TestTheLoggerOfALeaseMayCloseTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := &closing{closed: make(chan error, 1)}
		logger.client = over(t, &unreliable{decideErr: status.Error(codes.Unimplemented, "old")}, Options{Logger: slog.New(logger)})
		limiter, started := NewLimiter(logger.client), time.Now()
		limiter.ask(limiter.find([]Descriptor{On("user", "a")}), 5)
		must(t, <-logger.closed)
		if took := time.Since(started); took > 0 {
			t.Errorf("it took %s", took)
		}
	})
}

func TestAFunctionOfTheCallerMayCloseTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var client *Client
		logger := &closing{closed: make(chan error, 9)}
		for _, options := range []Options{
			{OnFailure: func(error, []Descriptor) bool { return client.Close() == nil }},
			{OnCall: func(string, time.Duration, error) { must(t, client.Close()) }},
			{Logger: slog.New(logger)},
		} {
			client = over(t, &unreliable{decideErr: status.Error(codes.Unavailable, "lost")}, options)
			client.close = func() error { return nil }
			logger.client = client
			started := time.Now()
			decision, err := client.Decide(t.Context(), On("user", "a"))
			must(t, err)
			if took := time.Since(started); !decision.Allowed || client.errClosed() == nil || took > 0 {
				t.Errorf("%+v after %s", decision, took)
			}
		}
	})
}

func TestCloseWaitsForOneCommitOfALateHold(t *testing.T) {
	var client *Client
	for name, row := range map[string]struct {
		late time.Duration
		hook func()
	}{
		"an answer":       {100 * time.Millisecond, func() {}},
		"no answer yet":   {time.Minute, func() {}},
		"a hook, closing": {100 * time.Millisecond, func() { must(t, client.Close()) }},
		"a hook, blocked": {100 * time.Millisecond, func() { time.Sleep(time.Hour) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			service := &hanging{verdicts: make([]*pb.Verdict, 20), late: row.late}
			for i := range service.verdicts {
				service.verdicts[i] = &pb.Verdict{Code: pb.Verdict_OK, Hold: "token"}
			}
			heard := make(chan bool, 1)
			client = over(t, service, Options{
				Timeout: time.Hour, CommitTimeout: 500 * time.Millisecond,
				OnCall: func(method string, _ time.Duration, _ error) {
					if method == "commit" {
						row.hook()
						heard <- true
					}
				},
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, err := client.Hold(ctx, 1, On("user", "a"))
			must(t, err)
			started := time.Now()
			must(t, client.Close())
			if took := time.Since(started); took < 300*time.Millisecond || took > 600*time.Millisecond {
				t.Errorf("%s: it took %s", name, took)
			}
			<-heard
		})
	}
}

func TestLinesAreForgottenAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, service := &lines{}, &unreliable{decideErr: status.Error(codes.Unavailable, "lost")}
		client := over(t, service, Options{Logger: slog.New(log)})
		decide := func(domain string) {
			_, err := client.WithDomain(domain).Decide(t.Context(), On("user", "a"))
			must(t, err)
		}
		for i := range 100 {
			decide(fmt.Sprint(i))
			decide(fmt.Sprint(i % 50))
		}
		if len(log.all) != 100 || len(client.lines) != 100 {
			t.Errorf("%d, %d", len(log.all), len(client.lines))
		}
		service.decideErr = nil
		for _, left := range []int{50, 0} {
			time.Sleep(quiet)
			decide("another")
			if len(log.all) != 150 || len(client.lines) != left {
				t.Errorf("%d lines, and %d are kept", len(log.all), len(client.lines))
			}
		}
		if client.due.Load() != nil {
			t.Error("each call looks for a line")
		}
	})
}

func TestABatchThatFailedIsOneLine(t *testing.T) {
	calls := []Call{Take(1, On("user", "a")), Take(1, On("user", "b")), Take(1, On("user", "c"))}
	lost := &pb.Verdict{Error: itemError(14, "lost"), DomainUnknown: true}
	for wanted, service := range map[string]*unreliable{
		"tollkeeper: 3 calls of": {decideErr: status.Error(codes.Unavailable, "lost")},
		"tollkeeper: 2 calls of": {verdicts: []*pb.Verdict{lost, {Code: pb.Verdict_OK}, lost}},
	} {
		log := &lines{}
		_, err := over(t, service, Options{Logger: slog.New(log)}).DecideAll(t.Context(), calls...)
		must(t, err)
		if len(log.all) != 1 || !strings.HasPrefix(log.all[0], wanted) {
			t.Errorf("%q", log.all)
		}
	}
}

func TestAnErrorWithoutACodeIsAFailure(t *testing.T) {
	var heard []codes.Code
	zero := itemError(0, "zero")
	client := over(t, &unreliable{verdicts: []*pb.Verdict{{Error: zero}}, result: &pb.CommitResult{Error: zero}}, Options{
		OnCall:    func(_ string, _ time.Duration, err error) { heard = append(heard, status.Code(err)) },
		OnFailure: Deny,
	})
	decision, err := client.Decide(t.Context(), On("user", "a"))
	must(t, err)
	commit := client.Resume("token").Close()
	var failed *Failure
	if decision.Allowed || status.Code(decision.Err) != codes.Unknown || !errors.As(commit, &failed) || failed.Code != codes.Unknown {
		t.Errorf("%+v, %v", decision, commit)
	}
	if !slices.Equal(heard, []codes.Code{codes.Unknown, codes.Unknown}) {
		t.Errorf("%v", heard)
	}
}

func TestNumbersAreClampedAtZeroAndAtTheLargest(t *testing.T) {
	answer := func(number uint64, reset *durationpb.Duration) *pb.Verdict {
		return &pb.Verdict{Code: pb.Verdict_OVER_LIMIT, Hits: number, Statuses: []*pb.Status{{
			Code: pb.Verdict_OVER_LIMIT, DescriptorIndex: math.MaxUint32, LimitRemaining: number, DurationUntilReset: reset,
			CurrentLimit: &pb.Limit{RequestsPerUnit: number, UnitMultiplier: math.MaxUint32}, Used: &number, Held: &number,
		}}}
	}
	for _, row := range []struct {
		number  uint64
		reset   *durationpb.Duration
		headers string
	}{
		{1 << 63, &durationpb.Duration{Seconds: math.MaxInt64}, "9007199254740991 9007199254740991 9223372037 9223372037"},
		{math.MaxUint64, &durationpb.Duration{Seconds: 1, Nanos: 1}, "9007199254740991 9007199254740991 2 2"},
		{1, &durationpb.Duration{Seconds: math.MinInt64, Nanos: math.MinInt32}, "1 1 0 1"},
		{1, &durationpb.Duration{Seconds: -5}, "1 1 0 1"},
	} {
		decision, _ := decode(answer(row.number, row.reset))
		headers, one := decision.Headers(), decision.Statuses[0]
		shown := fmt.Sprint(headers["RateLimit-Limit"], " ", headers["RateLimit-Remaining"], " ", headers["RateLimit-Reset"], " ", headers["Retry-After"])
		if shown != row.headers || min(decision.Hits, one.Used, one.Held, int64(one.Descriptor), int64(one.Limit.Units)) < 1 {
			t.Errorf("%s, not %s: %+v", shown, row.headers, decision)
		}
	}
	charges := chargesOf(&pb.CommitResult{Charges: []*pb.CommittedCharge{{Held: math.MaxUint64, Used: 1 << 63}}})
	if charges[0].Held != HitsMax || charges[0].Used != HitsMax {
		t.Errorf("%+v", charges)
	}
}
