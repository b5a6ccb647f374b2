package tollkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tollkeeper/tollkeeper/clients/go/tollkeeper"
	"github.com/tollkeeper/tollkeeper/clients/go/tollkeepertest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// snippets returns the code blocks of the README in a language.
func snippets(t *testing.T, language string) (found []string) {
	text, err := os.ReadFile("README.md")
	must(t, err)
	for _, match := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		found = append(found, match[1])
	}
	return found
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The tests below contain the code of the README, apart from its indentation.
func TestEverySnippetIsRunHere(t *testing.T) {
	text, err := os.ReadFile("readme_test.go")
	must(t, err)
	lines := regexp.MustCompile(`(?m)^\t*`)
	code := lines.ReplaceAllString(string(text), "")
	found := snippets(t, "go")
	if len(found) < 12 {
		t.Errorf("%d snippets", len(found))
	}
	for _, snippet := range found {
		snippet = strings.TrimPrefix(lines.ReplaceAllString(snippet, ""), "import ")
		if !strings.Contains(code, snippet) {
			t.Errorf("readme_test.go lacks\n%s", snippet)
		}
	}
}

// needRepository skips a test of a module that was downloaded or copied.
func needRepository(t *testing.T) {
	if _, err := os.Stat("../conformance/cases.json"); err != nil {
		t.Skip("the module is outside of its repository")
	}
}

func TestTheModuleIsInstalledFromItsFolder(t *testing.T) {
	needRepository(t)
	folder := t.TempDir()
	repository, err := filepath.Abs("../..")
	must(t, err)
	must(t, os.Symlink(repository, filepath.Join(folder, "tollkeeper")))
	service := filepath.Join(folder, "service")
	must(t, os.Mkdir(service, 0o700))
	must(t, os.WriteFile(filepath.Join(service, "go.mod"), []byte("module example.com/service\n\ngo 1.26.0\n"), 0o600))
	program := "package main\n\n" + snippets(t, "go")[0] + "\nfunc main() { println(tollkeeper.On(\"a\", \"b\").Entries[0].Key) }\n"
	must(t, os.WriteFile(filepath.Join(service, "main.go"), []byte(program), 0o600))
	succeeds(t, service, "sh", "-e", "-c", snippets(t, "sh")[0]+"go run . 2>&1 | grep -x a")
}

func succeeds(t *testing.T, folder, program string, arguments ...string) {
	t.Helper()
	command := exec.Command(program, arguments...)
	command.Dir = folder
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%s %q: %v: %s", program, arguments, err, output)
	}
}

func TestTheModulePassesItsTestsOutsideOfItsRepository(t *testing.T) {
	needRepository(t)
	folder := t.TempDir()
	must(t, os.CopyFS(folder, os.DirFS(".")))
	succeeds(t, folder, "env", "-u", "TOLLKEEPER_ADDR", "-u", "TOLLKEEPER_FAULTS", "-u", "TOLLKEEPER_GONE_ADDR",
		"-u", "TOLLKEEPER_TLS_ADDR", "go", "test", "-count=1", "./...")
}

func TestTheModuleCompilesFor32Bits(t *testing.T) {
	needRepository(t)
	succeeds(t, ".", "env", "GOARCH=386", "go", "vet", "./...")
}

// exampleClient makes a client by an option, of the service that the tests of the repository start.
func exampleClient(t *testing.T, options tollkeeper.Options) *tollkeeper.Client {
	address := os.Getenv("TOLLKEEPER_ADDR")
	if address == "" {
		t.Skip("TOLLKEEPER_ADDR is not set")
	}
	options.Timeout = 10 * time.Second
	client, err := tollkeeper.New(address, "conformance", options)
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// observed stands for a histogram of Prometheus.
type observed map[string]float64

type series struct {
	observed
	name string
}

func (o observed) WithLabelValues(names ...string) series { return series{o, strings.Join(names, " ")} }
func (s series) Observe(seconds float64)                  { s.observed[s.name] = seconds }

func TestTheClientAndItsOptions(t *testing.T) {
	{
		client, err := tollkeeper.New("localhost:8081", "example", tollkeeper.Options{})
		must(t, err)
		must(t, client.Close())
	}
	calls := observed{}
	options := tollkeeper.Options{
		Timeout: 20 * time.Millisecond,
		OnFailure: func(err error, descriptors []tollkeeper.Descriptor) bool {
			return descriptors[0].Entries[0].Key != "login"
		},
		OnCall: func(method string, elapsed time.Duration, err error) {
			calls.WithLabelValues(method, status.Code(err).String()).Observe(elapsed.Seconds())
		},
	}
	client := exampleClient(t, options)
	_, err := client.Decide(context.Background(), tollkeeper.On("three", t.TempDir()))
	must(t, err)
	if calls["decide OK"] <= 0 {
		t.Errorf("%v", calls)
	}
}

func TestA429InTenLines(t *testing.T) {
	client, service := tollkeepertest.New("example", tollkeeper.Options{OnFailure: tollkeeper.Deny})
	handler := func(w http.ResponseWriter, r *http.Request) {
		user := r.URL.Path[1:]
		decision, err := client.Decide(r.Context(), tollkeeper.On("user", user))
		if err != nil {
			// A mistake in this program.
			slog.Error("rate limit", "error", err)
			http.Error(w, "Internal Server Error", http.StatusInternalServerError)
			return
		}
		if !decision.Allowed {
			http.Error(w, http.StatusText(decision.StatusCode()), decision.StatusCode())
			return
		}
	}
	service.Limit(1, tollkeeper.On("user", "alice"))
	serve := func(expected int) {
		t.Helper()
		recorder := httptest.NewRecorder()
		handler(recorder, httptest.NewRequest("GET", "/alice", nil))
		if recorder.Code != expected {
			t.Errorf("%d", recorder.Code)
		}
	}
	serve(200)
	serve(429)
	service.Fail(codes.Unavailable)
	serve(503)
	client = client.WithDomain("")
	serve(500)
}

func TestViews(t *testing.T) {
	client, service := tollkeepertest.New("example", tollkeeper.Options{})
	service.Fail(codes.Unavailable)
	login := client.With(func(options *tollkeeper.Options) {
		options.OnFailure, options.Timeout = tollkeeper.Deny, 200*time.Millisecond
	})
	payments := client.WithDomain("payments")
	for i, client := range []*tollkeeper.Client{login, payments} {
		decision, err := client.Decide(context.Background(), tollkeeper.On("user", "a"))
		must(t, err)
		if decision.Allowed != (i == 1) {
			t.Errorf("%+v", decision)
		}
	}
}

func TestAServiceInMemory(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
	service.Limit(2, tollkeeper.On("user", "alice"))
	service.Deny(tollkeeper.On("user", "mallory"))
	service.Fail(codes.Unavailable)
	var decider tollkeeper.Decider = client
	if decision, err := decider.Decide(context.Background(), tollkeeper.On("user", "mallory")); err != nil || !decision.Failed {
		t.Errorf("%+v, %v", decision, err)
	}
}

func TestALimiter(t *testing.T) {
	client, ctx, tenant := exampleClient(t, tollkeeper.Options{}), context.Background(), t.TempDir()
	limiter := tollkeeper.NewLimiter(client)
	defer limiter.Close()
	decision, err := limiter.Decide(ctx, tollkeeper.On("tenant", tenant))
	must(t, err)
	if !decision.Allowed || decision.Failed {
		t.Errorf("%+v", decision)
	}
}

func TestABatch(t *testing.T) {
	client, ctx := exampleClient(t, tollkeeper.Options{}), context.Background()
	decisions, err := client.DecideAll(ctx,
		tollkeeper.Take(3, tollkeeper.On("user", "alice")),
		tollkeeper.Debit(200, tollkeeper.On("user", "bob")),
		tollkeeper.Check(tollkeeper.On("user", "carol")))
	must(t, err)
	if len(decisions) != 3 || !decisions[0].Allowed || decisions[0].Failed || !decisions[2].Allowed {
		t.Errorf("%+v", decisions)
	}
}

var errTooManyTokens = errors.New("too many tokens")

func TestAHoldIsCommittedOnTheWayOut(t *testing.T) {
	client, ctx, question, user := exampleClient(t, tollkeeper.Options{}), context.Background(), "why", t.TempDir()
	ask := func(context.Context, string) (string, int64, error) { return "because", 42, nil }
	work := func() error {
		hold, err := client.Hold(ctx, 400, tollkeeper.On("user", user))
		if err != nil {
			return err
		}
		if !hold.Allowed {
			return errTooManyTokens
		}
		defer hold.Close()
		answer, tokens, err := ask(ctx, question)
		if err != nil {
			return err
		}
		if err := hold.Use(tokens); err != nil {
			return err
		}
		t.Log(answer)
		return nil
	}
	for range 15 {
		must(t, work())
	}
	if read, err := client.Read(ctx, tollkeeper.On("user", user)); err != nil || read.Statuses[0].Used != 15*42 {
		t.Errorf("%v, %+v", err, read)
	}
	if err := work(); !errors.Is(err, errTooManyTokens) {
		t.Errorf("a hold of 400 beside 630 of 1,000: %v", err)
	}
}

func TestMiddleware(t *testing.T) {
	client, service := tollkeepertest.New("shop", tollkeeper.Options{})
	mux, authenticate := http.NewServeMux(), func(next http.Handler) http.Handler { return next }
	profile := http.NotFoundHandler()
	userOf := func(r *http.Request) (string, bool) { user, _, isKnown := r.BasicAuth(); return user, isKnown }
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	limit := client.Middleware(func(r *http.Request) []tollkeeper.Descriptor {
		user, isKnown := userOf(r)
		if !isKnown {
			return []tollkeeper.Descriptor{tollkeeper.On("address", tollkeeper.Address(r, proxies...))}
		}
		return []tollkeeper.Descriptor{tollkeeper.On("user", user)}
	}, nil)
	handler := authenticate(limit(mux))
	perRoute := client.Middleware(
		func(r *http.Request) []tollkeeper.Descriptor {
			return []tollkeeper.Descriptor{tollkeeper.On("route", r.Pattern)}
		},
		func(w http.ResponseWriter, r *http.Request, decision tollkeeper.Decision) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(decision.StatusCode())
			fmt.Fprintf(w, `{"title": "Try again in %s"}`, decision.RetryAfter)
		})
	mux.Handle("GET /users/{id}", perRoute(profile))
	server := grpc.NewServer(grpc.UnaryInterceptor(client.UnaryInterceptor(
		func(ctx context.Context, method string, request any) []tollkeeper.Descriptor {
			return []tollkeeper.Descriptor{tollkeeper.On("method", method)}
		})))
	server.Stop()
	service.Limit(1, tollkeeper.On("user", "alice"), tollkeeper.On("route", "GET /users/{id}"))
	for _, expected := range []string{
		"404 ", "429 Too Many Requests\n", `429 {"title": "Try again in 1m0s"}`,
	} {
		recorder, request := httptest.NewRecorder(), httptest.NewRequest("GET", "/users/7", nil)
		if !strings.HasPrefix(expected, "429 {") {
			request.SetBasicAuth("alice", "")
		}
		handler.ServeHTTP(recorder, request)
		if got := fmt.Sprintf("%d %s", recorder.Code, recorder.Body); !strings.HasPrefix(got, expected) {
			t.Errorf("%q, not %q", got, expected)
		}
	}
	last := service.Calls()[3].Descriptors[0].Entries[0]
	if last != (tollkeeper.Entry{Key: "address", Value: "192.0.2.1"}) {
		t.Errorf("%+v", last)
	}
}

// copyOf puts a file of the environment where the README has it.
func copyOf(t *testing.T, variable, name string) {
	text, err := os.ReadFile(os.Getenv(variable))
	must(t, err)
	must(t, os.WriteFile(name, text, 0o600))
}

func TestTLS(t *testing.T) {
	address := os.Getenv("TOLLKEEPER_TLS_ADDR")
	if address == "" {
		t.Skip("TOLLKEEPER_TLS_ADDR is not set")
	}
	t.Chdir(t.TempDir())
	copyOf(t, "TOLLKEEPER_CA", "ca.pem")
	copyOf(t, "TOLLKEEPER_CERT", "client.pem")
	copyOf(t, "TOLLKEEPER_KEY", "client.key")
	files := tollkeeper.TLSFiles{CA: "ca.pem", Cert: "client.pem", Key: "client.key", ServerName: "localhost"}
	config, err := tollkeeper.LoadTLS(files)
	must(t, err)
	client, err := tollkeeper.New(address, "conformance", tollkeeper.Options{TLS: config, Timeout: 10 * time.Second})
	must(t, err)
	defer client.Close()
	decision, err := client.Decide(context.Background(), tollkeeper.On("three", address))
	must(t, err)
	if decision.Failed {
		t.Errorf("%v", decision.Err)
	}
}
