package tollkeeper_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
	"github.com/tollkeeper/tollkeeper/clients/go/tollkeepertest"
	"golang.org/x/time/rate"
)

// heap is as large as that of a service. Collections of a small one would cost as much as the calls.
var heap = make([]byte, 64<<20)

// keyed is a limiter in the process for each user, as Go programs have it.
type keyed struct {
	mutex    sync.Mutex
	limiters map[string]*rate.Limiter
}

func (k *keyed) allow(user string) bool {
	k.mutex.Lock()
	limiter := k.limiters[user]
	if limiter == nil {
		limiter = rate.NewLimiter(1e9, 1e9)
		k.limiters[user] = limiter
	}
	k.mutex.Unlock()
	return limiter.Allow()
}

// `go test -run - -bench .` compares a call that is decided from credit with golang.org/x/time/rate.
func BenchmarkDecide(b *testing.B) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{Timeout: time.Minute})
	defer client.Close()
	service.Limit(tollkeeper.HitsMax, tollkeeper.On("user", "alice"))
	limiter, limiters := tollkeeper.NewLimiter(client), keyed{limiters: map[string]*rate.Limiter{}}
	deciders := map[string]func(user string) bool{
		"rate": limiters.allow,
		"Limiter": func(user string) bool {
			decision, err := limiter.Decide(context.Background(), tollkeeper.On("user", user))
			return err == nil && decision.Allowed
		},
	}
	for _, name := range []string{"rate", "Limiter"} {
		decide := deciders[name]
		// Until there is credit.
		for began := time.Now(); time.Since(began) < 300*time.Millisecond; {
			decide("alice")
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !decide("alice") {
					b.Fatal("it was denied")
				}
			}
		})
		b.Run(name+"/parallel", func(b *testing.B) {
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					decide("alice")
				}
			})
		})
	}
}
