// Takes events by HTTP, a line each whose first word is its tenant, and drops those over the tenant's limit. It decides
// a million events a second and more, by a rule such as
//
//   - key: tenant
//     rate_limit: { unit: second, requests_per_unit: 5000000, lease: auto }
//
// It needs the address of the service, the domain, and its own address:
//
//	go run ./ingest localhost:8081 example localhost:9000
//	yes acme | head -n 5000000 | curl -T - localhost:9000
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
)

func main() {
	client, err := tollkeeper.New(os.Args[1], os.Args[2], tollkeeper.Options{})
	if err != nil {
		log.Fatal(err)
	}
	limiter := tollkeeper.NewLimiter(client)
	server := http.Server{Addr: os.Args[3], Handler: ingest{limiter}}
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ended, func() { server.Close() })
	log.Print(server.ListenAndServe())
	// What it has leased and not spent goes back.
	if err := limiter.Close(); err != nil {
		log.Fatal(err)
	}
}

type ingest struct{ limiter *tollkeeper.Limiter }

func (i ingest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var taken, dropped int
	began, events := time.Now(), bufio.NewScanner(r.Body)
	for events.Scan() {
		tenant, _, _ := strings.Cut(events.Text(), " ")
		decision, err := i.limiter.Decide(r.Context(), tollkeeper.On("tenant", tenant))
		if err != nil {
			log.Print(err)
			http.Error(w, "Internal Server Error", http.StatusInternalServerError)
			return
		}
		if decision.Allowed {
			// Here the event would be stored.
			taken++
		} else {
			dropped++
		}
	}
	fmt.Fprintf(w, "%d taken, %d dropped, in %s\n", taken, dropped, time.Since(began).Round(time.Millisecond))
}
