package tollkeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// unreliable answers, or fails by its errors.
type unreliable struct {
	pb.UnimplementedTollkeeperServer
	err, decideErr error
	decides        int
	verdicts       []*pb.Verdict
	result         *pb.CommitResult
	commits        []*pb.Commit
	renewals       []*pb.Renewal
	// isSilent leaves out what renewals have committed.
	isSilent bool
}

func (u *unreliable) Decide(context.Context, *pb.DecideRequest) (*pb.DecideResponse, error) {
	u.decides++
	if u.verdicts != nil {
		return &pb.DecideResponse{Verdicts: u.verdicts}, nil
	}
	return &pb.DecideResponse{Verdicts: []*pb.Verdict{{Code: pb.Verdict_OK, Hold: "token"}}}, u.decideErr
}

func (u *unreliable) Commit(_ context.Context, request *pb.CommitRequest) (*pb.CommitResponse, error) {
	u.commits = append(u.commits, request.Commits...)
	if u.result != nil {
		return &pb.CommitResponse{Results: []*pb.CommitResult{u.result}}, nil
	}
	charge := &pb.CommittedCharge{Outcome: pb.CommittedCharge_LATE, Held: 5, Used: 3}
	return &pb.CommitResponse{Results: []*pb.CommitResult{{Charges: []*pb.CommittedCharge{charge}}}}, u.err
}

func (u *unreliable) Renew(_ context.Context, request *pb.RenewRequest) (*pb.RenewResponse, error) {
	u.renewals = append(u.renewals, request.Renewals...)
	verdict := &pb.Verdict{Code: pb.Verdict_OK, Hold: "renewed"}
	if u.verdicts != nil {
		verdict = u.verdicts[0]
	}
	result := &pb.RenewResult{Commit: &pb.CommitResult{}, Verdict: verdict}
	if u.isSilent {
		result.Commit = nil
	}
	return &pb.RenewResponse{Results: []*pb.RenewResult{result}}, u.err
}

// Invoke and NewStream make it a connection without a network, so that tests may have a time of their own.
func (u *unreliable) Invoke(ctx context.Context, _ string, request, response any, _ ...grpc.CallOption) (err error) {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	var answer proto.Message
	switch request := request.(type) {
	case *pb.DecideRequest:
		answer, err = u.Decide(ctx, request)
	case *pb.CommitRequest:
		answer, err = u.Commit(ctx, request)
	case *pb.RenewRequest:
		answer, err = u.Renew(ctx, request)
	}
	if err == nil {
		proto.Merge(response.(proto.Message), answer)
	}
	return err
}

func (u *unreliable) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errNotOurs
}

func serve(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(options...)
	register(server)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func over(t *testing.T, service grpc.ClientConnInterface, options Options) *Client {
	t.Helper()
	client, err := NewFromConn(service, "shop", options)
	must(t, err)
	return client
}

func TestACommitDoesNotBlockItsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &unreliable{err: status.Error(codes.Unavailable, "lost")}
		client := over(t, service, Options{})
		hold, err := client.Hold(t.Context(), 5, On("user", "a"))
		must(t, err)
		started := time.Now()
		go hold.Commit(context.Background())
		synctest.Wait()
		// The commit waits for its second attempt now.
		must(t, hold.Use(3))
		if hold.Token() != "token" || time.Since(started) != 0 {
			t.Errorf("%q after %s", hold.Token(), time.Since(started))
		}
		// Close waits for the other commit, and then has no time for a commit of its own: the client is closed.
		must(t, client.Close())
		if took := time.Since(started); took != 1500*time.Millisecond || len(service.commits) != 5 {
			t.Errorf("%d commits after %s", len(service.commits), took)
		}
		if err := hold.Close(); !errors.Is(err, ErrClosed) || status.Code(err) != codes.Canceled {
			t.Errorf("%v", err)
		}
	})
}

func TestACommitEndsWithItsContextAndCloseSendsItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &unreliable{err: status.Error(codes.Unavailable, "lost")}
		ctx, leave := context.WithCancel(t.Context())
		var log bytes.Buffer
		hold, err := over(t, service, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}).Hold(ctx, 5, On("user", "a"))
		must(t, err)
		must(t, hold.Use(3))
		time.AfterFunc(50*time.Millisecond, leave)
		started := time.Now()
		if _, err := hold.Commit(ctx); !errors.Is(err, context.Canceled) || time.Since(started) != 50*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(started))
		}
		service.err = nil
		// The context that the hold was made with has ended.
		charges, err := hold.Commit(context.WithoutCancel(ctx))
		must(t, err)
		if len(charges) != 1 || charges[0] != (Charge{"late", 5, 3}) {
			t.Errorf("%v", charges)
		}
		must(t, hold.Close())
		if log.Len() > 0 {
			t.Errorf("its caller has left, and the log says %q", log.String())
		}
		if len(service.commits) != 2 || service.commits[1].GetUsed() != 3 {
			t.Errorf("%v", service.commits)
		}
	})
}

func TestWhatWasUsedBeforeALostRenewalIsCommitted(t *testing.T) {
	service := &unreliable{}
	hold, err := over(t, service, Options{}).HoldCall(t.Context(), Take(5, On("user", "a")).WithID("once"))
	must(t, err)
	must(t, hold.UseKind("input", 10))
	for _, err := range []error{status.Error(codes.Unavailable, "lost"), nil, status.Error(codes.Unavailable, "lost")} {
		service.err = err
		decision, err := hold.Renew(t.Context(), 4, 5)
		must(t, err)
		if !decision.Allowed || decision.Failed != (service.err != nil) {
			t.Errorf("%+v", decision)
		}
	}
	service.err = nil
	must(t, hold.Use(1))
	must(t, hold.Close())
	sums := fmt.Sprint(len(service.renewals), service.renewals[1].Commit.GetUsed(), service.renewals[1].Commit.UsedByKind, service.commits[0].GetUsed())
	if sums != "3 8 map[input:10] 5" || service.renewals[0].Call.Id != "" || service.commits[0].Hold != "renewed" {
		t.Errorf("%s, %v", sums, service.commits)
	}
}

func TestADeniedRenewalThatShowsNoCommitIsCommittedAtTheEnd(t *testing.T) {
	for isSilent, want := range map[bool]string{true: `[hold:"token" used:7]`, false: "[]"} {
		service := &unreliable{isSilent: isSilent}
		hold, err := over(t, service, Options{}).Hold(t.Context(), 5, On("user", "a"))
		must(t, err)
		service.verdicts = []*pb.Verdict{{Code: pb.Verdict_OVER_LIMIT}}
		decision, err := hold.Renew(t.Context(), 7, 5)
		must(t, err)
		must(t, hold.Close())
		// The text of a message has spaces at random.
		commits := strings.Join(strings.Fields(fmt.Sprint(service.commits)), " ")
		if decision.Allowed || decision.Failed || commits != want {
			t.Errorf("%+v, %s", decision, commits)
		}
	}
}

func TestAHoldThatLacksALimitIsGivenBack(t *testing.T) {
	service := &unreliable{verdicts: []*pb.Verdict{{Code: pb.Verdict_OK, Hold: "half", Statuses: []*pb.Status{
		{Rule: "user"}, {DescriptorIndex: 1},
	}}}}
	call := Take(5, On("user", "a"), On("typo", "a"))
	for number, take := range []func(*Client) error{
		func(client *Client) error { _, err := client.HoldCall(t.Context(), call); return err },
		func(client *Client) error { _, err := client.Resume("").RenewCall(t.Context(), call); return err },
	} {
		client := over(t, service, Options{RequireLimit: true})
		var mistake *ArgumentError
		if err := take(client); !errors.As(err, &mistake) {
			t.Errorf("%v", err)
		}
		must(t, client.Close())
		commits := service.commits
		if len(commits) != number+1 || commits[number].Hold != "half" || commits[number].Used == nil || *commits[number].Used != 0 {
			t.Errorf("%v", commits)
		}
	}
}

func TestBytesThatAreNotUTF8LoseNoCommit(t *testing.T) {
	service := &unreliable{}
	client := over(t, service, Options{})
	if _, err := client.HoldCall(t.Context(), Take(1, On("user", "alice")).WithHitsByKind(map[string]int64{"\xff": 1})); err == nil {
		t.Error("a kind of an estimate is no mistake")
	}
	hold := client.Resume("token")
	if err := hold.UseKind("\xff", 1); err == nil {
		t.Error("a kind that was used is no mistake")
	}
	hold.End("503 \xff")
	_, err := proto.Marshal(hold.sum())
	must(t, err)
	if end := hold.sum().End; end != "503 \ufffd" {
		t.Errorf("it ends with %q", end)
	}
}

func TestACallWhoseContextHasEndedIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var asked int
		service := &unreliable{}
		client := over(t, service, Options{
			Logger:    slog.New(slog.NewTextHandler(&log, nil)),
			OnFailure: func(error, []Descriptor) bool { asked++; return true },
		})
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		expired, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		for cause, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: expired} {
			decision, err := client.Decide(ctx, On("user", "a"))
			must(t, err)
			code := status.FromContextError(cause).Code()
			if decision.Allowed || !decision.Failed || status.Code(decision.Err) != code || !errors.Is(decision.Err, cause) {
				t.Errorf("%+v", decision)
			}
		}
		if asked+log.Len()+service.decides > 0 {
			t.Errorf("%d questions, log %q", asked, log.String())
		}
	})
}

func TestFailuresAreLoggedAtOnceAndThenOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		service := &unreliable{err: status.Error(codes.Unavailable, "lost")}
		client := over(t, service, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		hold, err := client.Hold(t.Context(), 5, On("user", "secret"))
		must(t, err)
		fail := func() {
			_, err := hold.Renew(t.Context(), 1, 1)
			must(t, err)
		}
		fail()
		for range 62 {
			time.Sleep(time.Second)
			fail()
		}
		// The outage has ended. The next answered call comes when the minute is over.
		service.err = nil
		fail()
		time.Sleep(time.Minute)
		fail()
		for _, part := range []string{
			`"tollkeeper: 1 call of the domain \"shop\" had no answer and was decided by on_failure; the last: UNAVAILABLE: lost (target `,
			`"tollkeeper: 60 calls of the domain \"shop\" had no answer and were decided`,
			`"tollkeeper: 2 calls of the domain \"shop\" had no answer and were decided by on_failure; the last: UNAVAILABLE: lost (target `,
		} {
			if !strings.Contains(log.String(), part) || strings.Contains(log.String(), "secret") {
				t.Errorf("%q lacks %q", log.String(), part)
			}
		}
		if lines := strings.Count(log.String(), "\n"); lines != 3 {
			t.Errorf("%d lines", lines)
		}
	})
}

func TestEachVerdictOfAnUnknownDomainIsLogged(t *testing.T) {
	log, user := &lines{}, On("user", "a")
	unknown := &pb.Verdict{Code: pb.Verdict_OK, Hold: "token", DomainUnknown: true}
	client := over(t, &unreliable{verdicts: []*pb.Verdict{unknown}}, Options{Logger: slog.New(log)})
	for _, call := range []Call{Take(1, user), Check(user), Debit(1, user), Part(1, user)} {
		decision, err := client.DecideCall(t.Context(), call)
		must(t, err)
		if !decision.Allowed || decision.Failed {
			t.Errorf("%+v", decision)
		}
	}
	hold, err := client.Hold(t.Context(), 1, user)
	must(t, err)
	_, err = hold.Renew(t.Context(), 1, 1)
	must(t, err)
	_, _, say := NewLimiter(client).lease([]Descriptor{user}, 5)
	say()
	must(t, client.Close())
	if wanted := []string{
		`tollkeeper: 1 call of the domain "shop" met no limit, because the service has no such domain (target the connection of the caller)`,
		`tollkeeper: 6 calls of the domain "shop" met no limit, because the service has no such domain (target the connection of the caller)`,
	}; !slices.Equal(log.all, wanted) {
		t.Errorf("%q", log.all)
	}
}

func TestARefusedLeaseIsLoggedOnceAMinuteWithItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		limiter := NewLimiter(over(t, &unreliable{decideErr: status.Error(codes.Unimplemented, "old")}, Options{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}))
		for range 7 {
			_, _, say := limiter.lease([]Descriptor{On("path", "/").And("user", "secret"), On("tenant", "secret")}, 5)
			say()
			time.Sleep(refusedFor)
		}
		line := `level=INFO msg="tollkeeper: each call on [path|user tenant] in the domain \"shop\" is a request, since the service leases no hits for it: `
		if strings.Count(log.String(), line) != 2 || strings.Contains(log.String(), "secret") {
			t.Error(log.String())
		}
	})
}

func TestACloseOfAViewClosesNothing(t *testing.T) {
	client := over(t, &unreliable{}, Options{})
	must(t, client.WithDomain("other").Close())
	decision, err := client.With(func(options *Options) { options.OnFailure = Deny }).Decide(t.Context(), On("user", "a"))
	must(t, err)
	must(t, client.Close())
	closed, err := client.WithDomain("other").Decide(t.Context(), On("user", "a"))
	must(t, err)
	if decision.Failed || !closed.Failed || !errors.Is(closed.Err, ErrClosed) {
		t.Errorf("%+v, %+v", decision, closed)
	}
	_, err = client.WithDomain("").Decide(t.Context(), On("user", "a"))
	var mistake *ArgumentError
	if !errors.As(err, &mistake) || mistake.Field != "domain" {
		t.Errorf("%v", err)
	}
}

func TestWithoutAServiceAConnectionIsTriedAgainWithinOneSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts []time.Duration
		started := time.Now()
		client, err := New("passthrough:///gone", "shop", Options{}, grpc.WithContextDialer(
			func(context.Context, string) (net.Conn, error) {
				attempts = append(attempts, time.Since(started))
				return nil, errors.New("nobody listens")
			}))
		must(t, err)
		time.Sleep(20 * time.Second)
		must(t, client.Close())
		// The first one is made without a call.
		for i, last := range attempts[1:] {
			// With its jitter, the backoff is up to 1.2 s.
			if pause := last - attempts[i]; pause < 80*time.Millisecond || pause > 1200*time.Millisecond {
				t.Errorf("a pause of %s", pause)
			}
		}
		if attempts[0] != 0 || len(attempts) < 15 {
			t.Errorf("%v", attempts)
		}
	})
}

func TestTheHookGetsMethodTimeAndOutcome(t *testing.T) {
	var method string
	var elapsed time.Duration
	var outcome codes.Code
	client := connect(t, serve(t, func(*grpc.Server) {}), "shop", Options{
		Timeout: 10 * time.Second,
		OnCall:  func(m string, e time.Duration, err error) { method, elapsed, outcome = m, e, status.Code(err) },
	})
	_, err := client.Decide(context.Background(), On("user", "a"))
	must(t, err)
	if method != "decide" || elapsed <= 0 || outcome != codes.Unimplemented {
		t.Errorf("%s, %s, %s", method, elapsed, outcome)
	}
}

func TestMistakesOfSettingsNameTheField(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.pem")
	must(t, os.WriteFile(text, []byte("no certificate"), 0o600))
	_, domain := New("localhost:8081", "", Options{})
	_, negative := New("localhost:8081", "shop", Options{RememberDenials: -time.Second})
	_, absent := LoadTLS(TLSFiles{CA: text + ".absent"})
	_, noCA := LoadTLS(TLSFiles{CA: text})
	_, noKey := LoadTLS(TLSFiles{Cert: text})
	_, noPair := LoadTLS(TLSFiles{Cert: text, Key: text})
	for field, err := range map[string]error{
		"domain: must not be empty": domain, "remember_denials: must be at least 0, and is -1s": negative, "ca: open": absent, "has no certificate": noCA,
		"must be given together": noKey, "cert, key: tls": noPair,
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%q: %v", field, err)
		}
	}
}

func TestMistakesOfUsageNameTheBound(t *testing.T) {
	hold := &Hold{commit: &pb.Commit{}}
	calls := make([]Call, callsMax+1)
	for i := range calls {
		calls[i] = Check(On("user", "a"))
	}
	_, tooMany := encode("shop", "calls[%d].", calls)
	limited := func(limit Limit) error {
		_, err := encode("shop", "", []Call{Check(On("user", "a").WithLimit(limit))})
		return err
	}
	for text, err := range map[string]error{
		"used: must be from 0 to 9007199254740991, and is -1":                                            hold.Use(-1),
		"used: must be from 0 to 9007199254740991, and is 9007199254740992":                              hold.Use(HitsMax + 1),
		"used_by_kind[\"input\"]: must be from 0 to 9007199254740991, and is -1":                         hold.UseKind("input", -1),
		"calls: must be at most 1000, and are 1001":                                                      tooMany,
		"descriptors[0].limit.unit: must be second, minute, hour, day, week, month or year, and is \"\"": limited(Limit{Hits: 1}),
		"descriptors[0].limit.hits: must be from 0 to 4294967295, and is -1":                             limited(Limit{Hits: -1, Unit: "day"}),
		"descriptors[0].limit.units: must be from 0 to 4294967295, and is -1":                            limited(Limit{Units: -1, Unit: "day"}),
	} {
		if err == nil || err.Error() != text {
			t.Errorf("%q: %v", text, err)
		}
	}
	if hold.commit.Used != nil || hold.commit.UsedByKind != nil {
		t.Errorf("a refused number was set: %v", hold.commit)
	}
}

func TestADescriptorIsNotChangedByAnother(t *testing.T) {
	path := Descriptor{Entries: make([]Entry, 0, 8)}.And("path", "/login")
	alice, bob := path.And("user", "alice"), path.And("user", "bob")
	if alice.Entries[1].Value != "alice" || bob.Entries[1].Value != "bob" || len(path.Entries) != 1 {
		t.Errorf("%v, %v, %v", path, alice, bob)
	}
}
