package tollkeeper

import (
	"crypto/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Two clients, as those of two processes, use up one limit of the service.
func TestLimitersNeverAdmitMoreThanTheLimitAndGiveBackTheRest(t *testing.T) {
	address, on := needService(t, "TOLLKEEPER_ADDR"), On("leased", rand.Text())
	const limit = 20_000
	var admitted, denied, heard atomic.Int64
	options := Options{Timeout: 10 * time.Second, OnFailure: Deny, OnCall: func(method string, _ time.Duration, err error) {
		heard.Add(1)
		if err != nil {
			t.Error(method, err)
		}
	}}
	// decide decides calls by both until so many have passed, or one is denied.
	decide := func(most int64) {
		var callers sync.WaitGroup
		for range 2 {
			client := connect(t, address, "conformance", options)
			limiter := NewLimiter(client)
			var ofClient sync.WaitGroup
			for caller := range int64(4) {
				ofClient.Go(func() {
					for hits := 1 + caller%2; admitted.Load() < most && denied.Load() == 0; {
						decision, err := limiter.DecideN(t.Context(), hits, on)
						switch {
						case err != nil || decision.Failed:
							t.Error(err, decision.Err)
							return
						case decision.Allowed:
							admitted.Add(hits)
						case hits == 1:
							denied.Add(1)
						}
					}
				})
			}
			callers.Go(func() {
				ofClient.Wait()
				must(t, client.Close())
			})
		}
		callers.Wait()
	}
	reader := connect(t, address, "conformance", Options{Timeout: 10 * time.Second})
	// expectUsed waits until the service has given back what it has leased itself.
	expectUsed := func() {
		t.Helper()
		for began := time.Now(); ; {
			read, err := reader.Read(t.Context(), on)
			must(t, err)
			if used := read.Statuses[0].Used; used == admitted.Load() {
				return
			} else if time.Since(began) > 10*time.Second {
				t.Fatalf("%d are used, and %d were admitted", used, admitted.Load())
			}
		}
	}

	decide(limit / 2)
	expectUsed()
	if sent := heard.Load(); sent > admitted.Load()/2 {
		t.Errorf("%d requests for %d hits", sent, admitted.Load())
	}
	decide(limit + 1)
	expectUsed()
	if admitted.Load() > limit {
		t.Errorf("%d were admitted", admitted.Load())
	}
}

func TestDescriptorsWithTheHashOfOthersHaveNoCredit(t *testing.T) {
	limiter, alice := NewLimiter(&Client{}), []Descriptor{On("user", "alice")}
	found := limiter.find(alice)
	if found == nil || limiter.find(alice) != found {
		t.Error("it is not found again")
	}
	found.descriptors = []Descriptor{On("user", "bob")}
	if limiter.find(alice) != nil {
		t.Error("alice has found the credit of bob")
	}
}
