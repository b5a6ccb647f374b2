package tollkeeper

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unreliable answers takes, and fails as many commits as commitErrors has.
type unreliable struct {
	pb.UnimplementedTollkeeperServer
	mutex        sync.Mutex
	commitErrors []error
	commits      []*pb.Commit
}

func (u *unreliable) Decide(_ context.Context, request *pb.DecideRequest) (*pb.DecideResponse, error) {
	if request.Domain == "short" {
		return &pb.DecideResponse{}, nil
	}
	return &pb.DecideResponse{Verdicts: []*pb.Verdict{{Code: pb.Verdict_OK, Hold: "token"}}}, nil
}

func (u *unreliable) Commit(_ context.Context, request *pb.CommitRequest) (*pb.CommitResponse, error) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.commits = append(u.commits, request.Commits...)
	if len(u.commitErrors) > 0 {
		err := u.commitErrors[0]
		u.commitErrors = u.commitErrors[1:]
		return nil, err
	}
	return &pb.CommitResponse{Results: []*pb.CommitResult{{}}}, nil
}

func serve(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) string {
	t.Helper()
	address, _ := serveAt(t, "127.0.0.1:0", register, options...)
	return address
}

func serveAt(
	t *testing.T, address string, register func(*grpc.Server), options ...grpc.ServerOption,
) (string, *grpc.Server) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	must(t, err)
	server := grpc.NewServer(options...)
	register(server)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return listener.Addr().String(), server
}

// committed holds and commits at a service whose commits fail with these codes, and returns how often the commit
// arrived, and what the hook got of it.
func committed(t *testing.T, failures ...codes.Code) (int, []codes.Code) {
	service := &unreliable{}
	for _, code := range failures {
		service.commitErrors = append(service.commitErrors, status.Error(code, "lost"))
	}
	address := serve(t, func(server *grpc.Server) { pb.RegisterTollkeeperServer(server, service) })
	var outcomes []codes.Code
	client := connect(t, address, "shop", Options{Timeout: 10 * time.Second, OnCall: func(method string, _ time.Duration, err error) {
		if method == "commit" {
			outcomes = append(outcomes, status.Code(err))
		}
	}})
	ctx, leave := context.WithCancel(context.Background())
	hold, err := client.Hold(ctx, 5, On("user", "a"))
	must(t, err)
	must(t, hold.Use(3))
	// The caller has left before the work ends.
	leave()
	hold.Commit()
	hold.Commit()
	for _, commit := range service.commits {
		if commit.Hold != "token" || commit.GetUsed() != 3 {
			t.Errorf("the commit is %v", commit)
		}
	}
	return len(service.commits), outcomes
}

func TestACommitIsRepeatedUntilItIsAnswered(t *testing.T) {
	arrived, outcomes := committed(t, codes.Unavailable, codes.Internal)
	if arrived != 3 || len(outcomes) != 3 || outcomes[0] != codes.Unavailable || outcomes[2] != codes.OK {
		t.Errorf("%d commits arrived, outcomes %v", arrived, outcomes)
	}
}

func TestACommitIsSentOnceIfItIsAnswered(t *testing.T) {
	if arrived, outcomes := committed(t); arrived != 1 || len(outcomes) != 1 {
		t.Errorf("%d commits arrived, outcomes %v", arrived, outcomes)
	}
}

func TestACommitEndsAfterThreeAttempts(t *testing.T) {
	failures := []codes.Code{codes.Unavailable, codes.Unavailable, codes.Unavailable, codes.PermissionDenied}
	// The second Commit tries once more.
	if arrived, outcomes := committed(t, failures...); arrived != 4 || outcomes[3] != codes.PermissionDenied {
		t.Errorf("%d commits arrived, outcomes %v", arrived, outcomes)
	}
}

func TestARefusedCommitIsNotRepeated(t *testing.T) {
	// Each of the two Commits is refused.
	if arrived, outcomes := committed(t, codes.PermissionDenied, codes.PermissionDenied); arrived != 2 {
		t.Errorf("%d commits arrived, outcomes %v", arrived, outcomes)
	}
}

func TestAServiceThatHasStartedAgainIsFoundWithinSeconds(t *testing.T) {
	register := func(server *grpc.Server) { pb.RegisterTollkeeperServer(server, &unreliable{}) }
	address, server := serveAt(t, "127.0.0.1:0", register)
	client := connect(t, address, "shop", Options{Timeout: 10 * time.Second})
	failed := func() bool {
		decision, err := client.Decide(context.Background(), On("user", "a"))
		must(t, err)
		return decision.Failed
	}
	if failed() {
		t.Fatal("the service does not answer")
	}
	server.Stop()
	// With grpc's own backoff, the next attempt would be about two seconds later.
	down := time.Now()
	for !failed() {
	}
	for time.Since(down) < 3*time.Second {
		failed()
		time.Sleep(10 * time.Millisecond)
	}
	serveAt(t, address, register)
	up := time.Now()
	for failed() {
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(up); took > 2*time.Second {
		t.Errorf("it was found after %s", took)
	}
}

func TestAnAnswerWithTooFewItemsIsAFailure(t *testing.T) {
	address := serve(t, func(server *grpc.Server) { pb.RegisterTollkeeperServer(server, &unreliable{}) })
	client := connect(t, address, "short", Options{Timeout: 10 * time.Second, OnFailure: Deny})
	decision, err := client.Decide(context.Background(), On("user", "a"))
	must(t, err)
	if decision.Allowed || !decision.Failed || status.Code(decision.Err) != codes.Internal {
		t.Errorf("%+v", decision)
	}
}

func TestACancelledCallerGetsTheDecisionOfOnFailure(t *testing.T) {
	client := connect(t, serve(t, func(*grpc.Server) {}), "shop", Options{OnFailure: Deny})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	decision, err := client.Decide(ctx, On("user", "a"))
	must(t, err)
	if decision.Allowed || !decision.Failed || status.Code(decision.Err) != codes.Canceled {
		t.Errorf("%+v", decision)
	}
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
	_, absent := LoadTLS(TLSFiles{CA: text + ".absent"})
	_, noCA := LoadTLS(TLSFiles{CA: text})
	_, noKey := LoadTLS(TLSFiles{Cert: text})
	_, noPair := LoadTLS(TLSFiles{Cert: text, Key: text})
	for field, err := range map[string]error{
		"domain: must not be empty": domain, "ca: open": absent, "has no certificate": noCA,
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
	for text, err := range map[string]error{
		"used: must be from 0 to 9007199254740991, and is -1":                    hold.Use(-1),
		"used: must be from 0 to 9007199254740991, and is 9007199254740992":      hold.Use(HitsMax + 1),
		"used_by_kind[\"input\"]: must be from 0 to 9007199254740991, and is -1": hold.UseKind("input", -1),
		"calls: must be at most 1000, and are 1001":                              tooMany,
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
	path := make(Descriptor, 0, 8).And("path", "/login")
	alice, bob := path.And("user", "alice"), path.And("user", "bob")
	if alice[1].Value != "alice" || bob[1].Value != "bob" || len(path) != 1 {
		t.Errorf("%v, %v, %v", path, alice, bob)
	}
}
