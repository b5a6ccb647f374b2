package tollkeepertest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
	"github.com/tollkeeper/tollkeeper/clients/go/tollkeepertest"
	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// modes returns the number of calls that the service has got, by their modes.
func modes(service *tollkeepertest.Service) map[string]int {
	found := map[string]int{}
	for _, call := range service.Calls() {
		found[call.Mode]++
	}
	return found
}

// decide decides calls, one each millisecond, and returns how many are allowed.
func decide(t *testing.T, limiter tollkeeper.Decider, calls int, on ...tollkeeper.Descriptor) (allowed int64) {
	t.Helper()
	for range calls {
		decision, err := limiter.Decide(ctx, on...)
		must(t, err)
		if decision.Allowed {
			allowed++
		}
		time.Sleep(time.Millisecond)
	}
	return allowed
}

// used returns what a counter has.
func used(t *testing.T, client *tollkeeper.Client, on tollkeeper.Descriptor) int64 {
	t.Helper()
	decision, err := client.Read(ctx, on)
	must(t, err)
	return decision.Statuses[0].Used
}

func TestHotCallsAreDecidedInTheProcessAndNeverBeyondTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mutex sync.Mutex
		heard := map[string]int{}
		client, service := tollkeepertest.New("shop", tollkeeper.Options{OnCall: func(method string, _ time.Duration, err error) {
			mutex.Lock()
			defer mutex.Unlock()
			must(t, err)
			heard[method]++
		}})
		service.Limit(3000, alice)
		var limiters sync.WaitGroup
		var allowed [2]int64
		for i := range allowed {
			limiters.Go(func() { allowed[i] = decide(t, tollkeeper.NewLimiter(client), 2000, alice) })
		}
		limiters.Wait()
		if allowed[0]+allowed[1] != 3000 {
			t.Errorf("%v are allowed", allowed)
		}
		sent := modes(service)
		if sent["LEASE"] < 30 || sent["LEASE"] > 200 || sent["TAKE"] > 1300 {
			t.Errorf("%v", sent)
		}
		if heard["decide"] != sent["TAKE"] || heard["commit"] != len(service.Commits()) {
			t.Errorf("%v, but %v were sent", heard, sent)
		}
		// Nothing is left that a goroutine or a timer would wait for.
		time.Sleep(200 * time.Millisecond)
		if hits := used(t, client, alice); hits != 3000 {
			t.Errorf("%d are used", hits)
		}
	})
}

func TestWhatIsNotUsedGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, service := tollkeepertest.New("shop", tollkeeper.Options{})
		service.Limit(1_000_000, alice)
		limiter := tollkeeper.NewLimiter(client)
		allowed := decide(t, limiter, 110, alice)
		for _, step := range []struct {
			pause time.Duration
			isOut bool
		}{{98 * time.Millisecond, true}, {2 * time.Millisecond, false}} {
			time.Sleep(step.pause)
			synctest.Wait()
			if hits := used(t, client, alice); hits < allowed || (hits > allowed) != step.isOut {
				t.Errorf("after %s, %d are used, and %d were allowed", step.pause, hits, allowed)
			}
		}
		allowed += decide(t, limiter, 250, alice)
		if hits := used(t, client, alice); hits <= allowed {
			t.Errorf("%d are used, and %d were allowed", hits, allowed)
		}
		began := time.Now()
		must(t, client.Close())
		if took := time.Since(began); took > 0 {
			t.Errorf("Close took %s", took)
		}
		reader, _ := tollkeeper.NewFromConn(service, "shop", tollkeeper.Options{})
		if hits := used(t, reader, alice); hits != allowed {
			t.Errorf("after Close, %d are used, and %d were allowed", hits, allowed)
		}
		before := len(service.Calls())
		decision, err := limiter.Decide(ctx, alice)
		must(t, err)
		if !errors.Is(decision.Err, tollkeeper.ErrClosed) || len(service.Calls()) != before {
			t.Errorf("%+v", decision)
		}
	})
}

func TestTheHookOfALeaseMayCloseTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var client *tollkeeper.Client
		closed := make(chan error, 100)
		client, service := tollkeepertest.New("shop", tollkeeper.Options{OnCall: func(method string, _ time.Duration, _ error) {
			if method == "commit" {
				closed <- client.Close()
			}
		}})
		service.Limit(1_000_000, alice)
		decide(t, tollkeeper.NewLimiter(client), 110, alice)
		must(t, <-closed)
	})
}

// goroutines is how many limiters have: others come and go.
func goroutines() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return strings.Count(string(stacks), "tollkeeper.(*Limiter).")
}

func TestALeaseThatIsUsedUpNeedsNoCommitAndNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, service := tollkeepertest.New("shop", tollkeeper.Options{})
		service.Limit(1_000_000, alice)
		limiter := tollkeeper.NewLimiter(client)
		before := goroutines()
		decide(t, limiter, 101, alice)
		calls := service.Calls()
		lease := calls[len(calls)-1]
		if number := goroutines(); lease.Mode != "LEASE" || number <= before {
			t.Errorf("%+v, %d goroutines in place of %d", lease, number, before)
		}
		// There is no other.
		service.Fail(codes.Unavailable)
		decision, err := limiter.DecideN(ctx, lease.Hits, alice)
		must(t, err)
		synctest.Wait()
		if number := goroutines(); decision.Failed || number != before || len(service.Commits()) > 0 {
			t.Errorf("%+v, %d goroutines in place of %d, %v", decision, number, before, service.Commits())
		}
	})
}

// changing changes the answers to leases.
type changing struct {
	*tollkeepertest.Service
	change func(*pb.Verdict) error
	leases int
}

func (c *changing) Invoke(ctx context.Context, method string, request, response any, options ...grpc.CallOption) error {
	err := c.Service.Invoke(ctx, method, request, response, options...)
	if decide, isDecide := request.(*pb.DecideRequest); isDecide && decide.Calls[0].Mode == pb.Call_LEASE {
		c.leases++
		return c.change(response.(*pb.DecideResponse).Verdicts[0])
	}
	return err
}

func (c *changing) connect(t *testing.T, options tollkeeper.Options) *tollkeeper.Client {
	_, c.Service = tollkeepertest.New("shop", options)
	c.Limit(1_000_000, alice, bob)
	client, err := tollkeeper.NewFromConn(c, "shop", options)
	must(t, err)
	return client
}

func TestWithoutALeaseCallsAreDecidedOneByOne(t *testing.T) {
	fails := func(code codes.Code) func(*pb.Verdict) error {
		return func(*pb.Verdict) error { return status.Error(code, "as the test says") }
	}
	has := func(code codes.Code) func(*pb.Verdict) error {
		return func(verdict *pb.Verdict) error {
			proto.Reset(verdict)
			verdict.Error = status.New(code, "as the test says").Proto()
			return nil
		}
	}
	denied := func(verdict *pb.Verdict) error {
		proto.Reset(verdict)
		verdict.Code = pb.Verdict_OVER_LIMIT
		return nil
	}
	for i, row := range []struct {
		change func(*pb.Verdict) error
		leases int
	}{
		{has(codes.InvalidArgument), 2}, {fails(codes.Unimplemented), 2},
		{has(codes.Unavailable), 110}, {fails(codes.Unavailable), 110}, {denied, 110},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			service := &changing{change: row.change}
			client := service.connect(t, tollkeeper.Options{
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
				OnCall: func(_ string, _ time.Duration, err error) { must(t, err) },
			})
			if allowed := decide(t, tollkeeper.NewLimiter(client), 11_000, alice); allowed != 11_000 {
				t.Errorf("%d are allowed", allowed)
			}
			if service.leases < row.leases-2 || service.leases > row.leases || modes(service.Service)["TAKE"] != 11_000 {
				t.Errorf("row %d: %d leases, not %d; %v", i, service.leases, row.leases, modes(service.Service))
			}
			isRefused := row.leases == 2
			if lines := strings.Count(log.String(), "leases no hits"); (lines == 1) != isRefused || log.Len() > 0 && !isRefused {
				t.Error(log.String())
			}
		})
	}
}

// slow answers leases after a time, if the client still waits then.
type slow struct {
	*tollkeepertest.Service
	after time.Duration
}

func (s *slow) Invoke(ctx context.Context, method string, request, response any, options ...grpc.CallOption) error {
	err := s.Service.Invoke(ctx, method, request, response, options...)
	if decide, isDecide := request.(*pb.DecideRequest); isDecide && decide.Calls[0].Mode == pb.Call_LEASE {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(s.after):
		}
	}
	return err
}

func TestALeaseWhoseAnswerIsLateGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, service := tollkeepertest.New("shop", tollkeeper.Options{})
		service.Limit(1_000_000, alice)
		client, err := tollkeeper.NewFromConn(&slow{service, 300 * time.Millisecond}, "shop", tollkeeper.Options{})
		must(t, err)
		allowed := decide(t, tollkeeper.NewLimiter(client), 1000, alice)
		sent := modes(service)
		// Others are asked for meanwhile, until the first was of no use.
		if sent["LEASE"] != 2 && sent["LEASE"] != 3 || sent["TAKE"] != 1000 {
			t.Errorf("%v", sent)
		}
		must(t, client.Close())
		reader, _ := tollkeeper.NewFromConn(service, "shop", tollkeeper.Options{})
		if hits := used(t, reader, alice); hits != allowed {
			t.Errorf("%d are used, and %d were allowed", hits, allowed)
		}
	})
}

func TestTheServiceDecidesAllOtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, service := tollkeepertest.New("shop", tollkeeper.Options{})
		limiter := tollkeeper.NewLimiter(client)
		decide(t, limiter, 110, alice)
		goes := func(isSent bool, ctx context.Context, call tollkeeper.Call) {
			t.Helper()
			before := len(service.Calls())
			decision, err := limiter.DecideCall(ctx, call)
			must(t, err)
			if isSent != (len(service.Calls()) > before || decision.Failed) {
				t.Errorf("%+v: %+v", call, decision)
			}
		}
		goes(false, ctx, tollkeeper.Take(1, alice))
		goes(false, ctx, tollkeeper.Take(2, alice))
		goes(true, ctx, tollkeeper.Take(0, alice))
		goes(true, ctx, tollkeeper.Take(1, alice).WithID("a"))
		goes(true, ctx, tollkeeper.Take(1, alice).WithHitsByKind(map[string]int64{"input": 1}))
		goes(true, ctx, tollkeeper.Take(1, alice.WithLimit(tollkeeper.Limit{Hits: 5, Unit: "day"})))
		goes(true, ctx, tollkeeper.Take(1, alice, alice))
		goes(true, ctx, tollkeeper.Take(1, alice.And("path", "/")))
		goes(true, ctx, tollkeeper.Take(1, bob))
		goes(true, ctx, tollkeeper.Take(tollkeeper.HitsMax, alice))
		for _, other := range []func(int64, ...tollkeeper.Descriptor) tollkeeper.Call{
			tollkeeper.Refund, tollkeeper.Debit, tollkeeper.Part,
		} {
			goes(true, ctx, other(1, alice))
		}
		goes(true, ctx, tollkeeper.Check(alice))
		goes(true, ctx, tollkeeper.Read(alice))
		left, cancel := context.WithCancel(ctx)
		cancel()
		goes(true, left, tollkeeper.Take(1, alice))
		if _, err := limiter.DecideN(ctx, -1, alice); err == nil {
			t.Error("-1 hits")
		}
		if _, err := limiter.Decide(ctx); err == nil {
			t.Error("no descriptor")
		}
		before := len(service.Calls())
		decide(t, limiter.With(func(*tollkeeper.Options) {}), 1, alice)
		decide(t, limiter.WithDomain("other"), 1, alice)
		if sent := len(service.Calls()) - before; sent != 2 {
			t.Errorf("%d", sent)
		}
		time.Sleep(200 * time.Millisecond)
		if commits := service.Commits(); len(commits) > 0 {
			t.Errorf("nothing was charged: %v", commits)
		}
	})
}

func TestMiddlewareOfALimiterSpendsItsCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, service := tollkeepertest.New("shop", tollkeeper.Options{})
		service.Limit(tollkeeper.HitsMax, alice)
		limiter := tollkeeper.NewLimiter(client)
		serve := func(requests int, client *tollkeeper.Client) (remaining string) {
			handler := client.Middleware(func(*http.Request) []tollkeeper.Descriptor {
				return []tollkeeper.Descriptor{alice}
			}, nil)(http.NotFoundHandler())
			for range requests {
				recorder := httptest.NewRecorder()
				handler.ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil))
				remaining = recorder.Header().Get("RateLimit-Remaining")
				time.Sleep(time.Millisecond)
			}
			return remaining
		}
		remaining := serve(300, limiter.Client)
		if sent := modes(service); sent["TAKE"] > 105 || remaining != fmt.Sprint(tollkeeper.HitsMax-300) {
			t.Errorf("%v, %s", sent, remaining)
		}
		before := modes(service)["TAKE"]
		serve(10, limiter.With(func(*tollkeeper.Options) {}))
		if sent := modes(service)["TAKE"] - before; sent != 10 {
			t.Errorf("%d", sent)
		}
		time.Sleep(200 * time.Millisecond)
	})
}

func TestCreditDoesNotHideThatALimitIsRequired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// As if the rule of the second descriptor was taken away.
		service := &changing{change: func(verdict *pb.Verdict) error {
			verdict.Statuses[1] = &pb.Status{Code: pb.Verdict_OK, DescriptorIndex: 1}
			return nil
		}}
		client := service.connect(t, tollkeeper.Options{RequireLimit: true})
		decide(t, tollkeeper.NewLimiter(client), 500, alice, bob)
		if service.leases != 1 || modes(service.Service)["TAKE"] != 500 {
			t.Errorf("%v", modes(service.Service))
		}
		if hits := used(t, client, alice); hits != 500 {
			t.Errorf("%d are used", hits)
		}
	})
}

func TestALimiterHasAtMostTenThousandCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, service := tollkeepertest.New("shop", tollkeeper.Options{})
		limiter := tollkeeper.NewLimiter(client)
		fill := func(text string) {
			for i := range 10_000 {
				_, err := limiter.Decide(ctx, tollkeeper.On(text, fmt.Sprint(i)))
				must(t, err)
			}
		}
		leases := func(isLeased bool, on tollkeeper.Descriptor) {
			t.Helper()
			before := modes(service)["LEASE"]
			decide(t, limiter, 150, on)
			if isLeased != (modes(service)["LEASE"] > before) {
				t.Errorf("%v", modes(service))
			}
		}
		fill("user")
		leases(false, alice)
		time.Sleep(850 * time.Millisecond)
		leases(true, alice)
		fill("path")
		leases(false, bob)
		leases(true, alice)
		leases(false, tollkeeper.On("note", strings.Repeat("x", 1021)))
		time.Sleep(2 * time.Second)
		leases(false, tollkeeper.On("note", strings.Repeat("x", 1021)))
		leases(true, tollkeeper.On("note", strings.Repeat("x", 1020)))
		time.Sleep(200 * time.Millisecond)
	})
}

func TestACallFromCreditAllocatesItsStatusesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, service := tollkeepertest.New("shop", tollkeeper.Options{})
		service.Limit(1_000_000, alice)
		limiter := tollkeeper.NewLimiter(client)
		decide(t, limiter, 110, alice)
		before := len(service.Calls())
		user := strings.Repeat("alice", 1)
		number := testing.AllocsPerRun(20, func() {
			if decision, err := limiter.Decide(ctx, tollkeeper.On("user", user)); err != nil || !decision.Allowed {
				t.Errorf("%+v, %v", decision, err)
			}
		})
		if number != 1 || len(service.Calls()) > before {
			t.Errorf("%v allocations, %d calls", number, len(service.Calls())-before)
		}
		time.Sleep(200 * time.Millisecond)
	})
}
