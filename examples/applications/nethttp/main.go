// A small shop whose logins and reports are limited by ../rules.yaml.
package main

import (
	"cmp"
	"context"
	"crypto/subtle"
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

// In a real shop, these are hashes in a database.
var (
	passwords = map[string]string{"alice": "correct-horse"}
	users     = map[string]string{"key-of-alice": "alice"}
)

// userKey is that of the authenticated user in the context of a request.
type userKey struct{}

func main() {
	// A second: it is better to wait than to deny a login, or to let a report pass, since an answer was late.
	options := tollkeeper.Options{Timeout: time.Second}
	limits, err := tollkeeper.New(cmp.Or(os.Getenv("TOLLKEEPER"), "localhost:8081"), "shop", options)
	if err != nil {
		log.Fatal(err)
	}
	defer limits.Close()
	address := "127.0.0.1:" + cmp.Or(os.Getenv("PORT"), "8000")
	server := &http.Server{Addr: address, Handler: routes(limits), ReadTimeout: 10 * time.Second}
	ended, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		if err := server.ListenAndServe(); err != http.ErrServerClosed {
			log.Fatal(err)
		}
	}()
	<-ended.Done()
	server.Shutdown(context.Background())
}

func routes(limits *tollkeeper.Client) http.Handler {
	denying := limits.With(func(options *tollkeeper.Options) { options.OnFailure = tollkeeper.Deny })
	limitLogins, limitReports := denying.Middleware(byUserAndAddress, nil), limits.Middleware(byUser, nil)
	mux := http.NewServeMux()
	mux.Handle("POST /login", limitLogins(http.HandlerFunc(login)))
	mux.Handle("GET /reports", authenticate(limitReports(http.HandlerFunc(report))))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return http.MaxBytesHandler(mux, 16<<10)
}

func byUserAndAddress(r *http.Request) []tollkeeper.Descriptor {
	login, user := tollkeeper.On("route", "/login"), r.PostFormValue("user")
	// The caller chooses the name, so its length has a bound.
	user = user[:min(len(user), 100)]
	return []tollkeeper.Descriptor{login.And("user", user), login.And("address", tollkeeper.Address(r))}
}

func byUser(r *http.Request) []tollkeeper.Descriptor {
	return []tollkeeper.Descriptor{tollkeeper.On("user", r.Context().Value(userKey{}).(string))}
}

func login(w http.ResponseWriter, r *http.Request) {
	password, isKnown := passwords[r.PostFormValue("user")]
	isRight := subtle.ConstantTimeCompare([]byte(password), []byte(r.PostFormValue("password"))) == 1
	if !isKnown || !isRight {
		http.Error(w, "wrong user or password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintln(w, "welcome")
}

func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		user, isKnown := users[key]
		if !strings.EqualFold(scheme, "Bearer") || !isKnown {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "unknown key", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

func report(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "the report of %s\n", r.Context().Value(userKey{}))
}
