package tollkeepertest_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
	"github.com/tollkeeper/tollkeeper/clients/go/tollkeepertest"
	"google.golang.org/grpc/codes"
)

var (
	ctx   = context.Background()
	alice = tollkeeper.On("user", "alice")
	bob   = tollkeeper.On("user", "bob")
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expect compares a decision: "allowed 1 of 2", with ", n hits" of a part, "denied", "allowed", "failed".
func expect(t *testing.T, expected string, decision tollkeeper.Decision, err error) {
	t.Helper()
	must(t, err)
	actual := map[bool]string{true: "allowed", false: "denied"}[decision.Allowed]
	if decision.Failed {
		actual += " without an answer"
	}
	if decision.Limit != nil {
		actual += fmt.Sprintf(" %d of %d", decision.Remaining, decision.Limit.Hits)
	}
	if decision.Hits > 0 {
		actual += fmt.Sprintf(", %d hits", decision.Hits)
	}
	if actual != expected {
		t.Errorf("%s, not %s", actual, expected)
	}
}

func TestItAllowsAllThatHasNoLimit(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
	decision, err := client.DecideN(ctx, 1000, alice.And("path", "/login"))
	expect(t, "allowed", decision, err)
	_, err = client.With(func(options *tollkeeper.Options) { options.RequireLimit = true }).Decide(ctx, alice)
	if err == nil || err.Error() != "descriptors[0]: no limit applies to user in the domain shop (require_limit)" {
		t.Errorf("%v", err)
	}
	calls := fmt.Sprintf("%+v", service.Calls()[0])
	if calls != "{Domain:shop Mode:TAKE Hits:1000 HitsByKind:map[] ID: Descriptors:[{Entries:[{Key:user Value:alice} {Key:path Value:/login}] limit:<nil>}] Allowed:true}" {
		t.Error(calls)
	}
}

func TestItLimitsADescriptor(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
	service.Limit(3, alice)
	service.Deny(bob)
	decision, err := client.DecideN(ctx, 2, alice)
	expect(t, "allowed 1 of 3", decision, err)
	decision, err = client.DecideN(ctx, 2, alice)
	expect(t, "denied 1 of 3", decision, err)
	decision, err = client.Part(ctx, 2, alice)
	expect(t, "allowed 0 of 3, 1 hits", decision, err)
	decision, err = client.Part(ctx, 2, alice)
	expect(t, "denied 0 of 3", decision, err)
	decision, err = client.Check(ctx, alice)
	expect(t, "denied 0 of 3", decision, err)
	decision, err = client.DecideN(ctx, 0, alice)
	expect(t, "denied 0 of 3", decision, err)
	decision, err = client.Refund(ctx, 2, alice)
	expect(t, "allowed 2 of 3", decision, err)
	decision, err = client.Debit(ctx, 5, alice)
	expect(t, "denied 0 of 3", decision, err)
	decision, err = client.Read(ctx, alice)
	expect(t, "allowed 0 of 3", decision, err)
	if decision.Statuses[0].Used != 6 {
		t.Errorf("%+v", decision)
	}
	decision, err = client.Decide(ctx, tollkeeper.On("user", "carol"), bob)
	expect(t, "denied 0 of 0", decision, err)
	if len(service.Calls()) != 10 {
		t.Errorf("%+v", service.Calls())
	}
}

func TestMistakesOfAnApplicationAreLoggedOnceAMinute(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	client, _ := tollkeepertest.New("shop", tollkeeper.Options{Logger: logger})
	empty := func(*http.Request) []tollkeeper.Descriptor { return []tollkeeper.Descriptor{tollkeeper.On("", "a")} }
	handler := client.Middleware(empty, nil)(nil)
	for range 2 {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		if answer.Code != http.StatusInternalServerError {
			t.Error(answer.Code)
		}
	}
	if strings.Count(log.String(), "\n") != 1 {
		t.Error(log.String())
	}
}

func TestTheDenialOfALongRequestIsNotRemembered(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{RememberDenials: time.Minute})
	service.Deny(bob)
	for _, length := range []int{500, 500, 2_000, 2_000} {
		decision, err := client.Decide(ctx, bob, tollkeeper.On("note", strings.Repeat("x", length)))
		expect(t, "denied 0 of 0", decision, err)
	}
	if number := len(service.Calls()); number != 3 {
		t.Errorf("%d calls", number)
	}
}

func TestTheClientRemembersAtMostTenThousandDenials(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{RememberDenials: time.Minute})
	service.Deny(bob)
	asked := func(first, last int64) int {
		for hits := first; hits <= last; hits++ {
			decision, err := client.DecideN(ctx, hits, bob)
			expect(t, "denied 0 of 0", decision, err)
		}
		return len(service.Calls())
	}
	for _, step := range [][3]int64{{1, 10_000, 10_000}, {1, 1, 10_000}, {10_001, 10_001, 10_001}, {1, 1, 10_002}} {
		if number := asked(step[0], step[1]); number != int(step[2]) {
			t.Errorf("%v: %d calls", step, number)
		}
	}
	_, err := client.With(func(options *tollkeeper.Options) { options.RememberDenials = -1 }).Decide(ctx, bob)
	if err == nil || err.Error() != "remember_denials: must be at least 0, and is -1ns" {
		t.Errorf("%v", err)
	}
}

func TestARememberedDenialGrowsOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, service := tollkeepertest.New("shop", tollkeeper.Options{RememberDenials: time.Hour})
		service.Deny(bob)
		var found []string
		for _, pause := range []time.Duration{0, 20 * time.Second, 39500 * time.Millisecond, 500 * time.Millisecond} {
			time.Sleep(pause)
			decision, err := client.Decide(ctx, bob)
			expect(t, "denied 0 of 0", decision, err)
			found = append(found, fmt.Sprint(decision.Reset, decision.Statuses[0].Reset, decision.RetryAfter, len(service.Calls())))
		}
		if expected := "[1m0s 1m0s 1m0s 1 40s 40s 40s 1 500ms 500ms 1s 1 1m0s 1m0s 1m0s 2]"; fmt.Sprint(found) != expected {
			t.Errorf("%v, not %s", found, expected)
		}
	})
}

func TestItHoldsAndFails(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{OnFailure: tollkeeper.Deny})
	service.Limit(1000, alice)
	hold, err := client.Hold(ctx, 400, alice)
	must(t, err)
	renewed, err := hold.Renew(ctx, 300, 100)
	expect(t, "allowed 600 of 1000", renewed, err)
	must(t, hold.Use(42))
	token := hold.Token()
	must(t, hold.Close())
	decision, err := client.Check(ctx, alice)
	expect(t, "allowed 658 of 1000", decision, err)
	charges, err := client.Resume(token).Commit(ctx)
	must(t, err)
	if charges[0].Outcome != "repeated" || fmt.Sprint(service.Commits()) != "[{shop hold 0 300 map[] } {shop hold 1 42 map[] } {shop hold 1 -1 map[] }]" {
		t.Errorf("%v, %v", charges, service.Commits())
	}
	service.Fail(codes.Unavailable)
	decision, err = client.Decide(ctx, alice)
	expect(t, "denied without an answer", decision, err)
	if calls := service.Calls(); calls[len(calls)-1].Allowed || calls[len(calls)-1].Hits != 1 {
		t.Errorf("%+v", calls)
	}
	service.Fail(codes.OK)
	decision, err = client.Decide(ctx, alice)
	expect(t, "allowed 657 of 1000", decision, err)
}

func TestMiddlewareIsTheClients(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{OnFailure: tollkeeper.Deny})
	handler := client.Middleware(func(*http.Request) []tollkeeper.Descriptor { return []tollkeeper.Descriptor{alice} }, nil)(http.NotFoundHandler())
	serve := func() int {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil))
		return recorder.Code
	}
	allowed := serve()
	service.Deny(alice)
	denied := serve()
	service.Fail(codes.Internal)
	if failed := serve(); allowed != 404 || denied != 429 || failed != 503 {
		t.Errorf("%d, %d, %d", allowed, denied, failed)
	}
}

func TestTheEndOfTheWorkOutlivesARenewalWithoutAnAnswer(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
	hold, err := client.Hold(ctx, 10, alice)
	expect(t, "allowed", hold.Decision, err)
	hold.End("503 UF")
	service.Fail(codes.Unavailable)
	decision, err := hold.Renew(ctx, 4, 5)
	expect(t, "allowed without an answer", decision, err)
	service.Fail(codes.OK)
	must(t, hold.Close())
	if commit := service.Commits()[1]; commit.End != "503 UF" || commit.Used != 4 {
		t.Errorf("%+v", commit)
	}
}
