package tollkeeper_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	tollkeeper "github.com/tollkeeper/tollkeeper/clients/go"
	"google.golang.org/grpc"
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
	if len(found) < 8 {
		t.Errorf("%d snippets", len(found))
	}
	for _, snippet := range found {
		snippet = strings.TrimPrefix(lines.ReplaceAllString(snippet, ""), "import ")
		if !strings.Contains(code, snippet) {
			t.Errorf("readme_test.go lacks\n%s", snippet)
		}
	}
}

func TestTheModuleIsInstalledFromItsFolder(t *testing.T) {
	folder := t.TempDir()
	repository, err := filepath.Abs("../..")
	must(t, err)
	must(t, os.Symlink(repository, filepath.Join(folder, "tollkeeper")))
	service := filepath.Join(folder, "service")
	must(t, os.Mkdir(service, 0o700))
	must(t, os.WriteFile(filepath.Join(service, "go.mod"), []byte("module example.com/service\n\ngo 1.26.0\n"), 0o600))
	program := "package main\n\nimport tollkeeper \"github.com/tollkeeper/tollkeeper/clients/go\"\n\n" +
		"func main() { println(tollkeeper.On(\"a\", \"b\")[0].Key) }\n"
	must(t, os.WriteFile(filepath.Join(service, "main.go"), []byte(program), 0o600))
	command := exec.Command("sh", "-e", "-c", snippets(t, "sh")[0]+"go run .")
	command.Dir = service
	output, err := command.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(output), "a\n") {
		t.Errorf("%v: %s", err, output)
	}
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
			return descriptors[0][0].Key != "login"
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

func TestA429InThreeLines(t *testing.T) {
	client := exampleClient(t, tollkeeper.Options{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		decision, err := client.Decide(r.Context(), tollkeeper.On("user", r.Header.Get("X-User")))
		if err != nil || !decision.Allowed {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
	}
	user := t.TempDir()
	for _, expected := range []int{200, 429} {
		recorder, request := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		request.Header.Set("X-User", user)
		handler(recorder, request)
		if recorder.Code != expected {
			t.Errorf("%d", recorder.Code)
		}
		_, err := client.Debit(context.Background(), 1000, tollkeeper.On("user", user))
		must(t, err)
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
		if err != nil || !hold.Allowed {
			return errTooManyTokens
		}
		defer hold.Commit()
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
	client, mux := exampleClient(t, tollkeeper.Options{}), http.NewServeMux()
	handler := client.Handler(mux, func(r *http.Request) []tollkeeper.Descriptor {
		if r.URL.Path == "/healthz" {
			return nil
		}
		return []tollkeeper.Descriptor{tollkeeper.On("user", r.Header.Get("X-User"))}
	})
	server := grpc.NewServer(grpc.UnaryInterceptor(client.UnaryInterceptor(
		func(ctx context.Context, method string, request any) []tollkeeper.Descriptor {
			return []tollkeeper.Descriptor{tollkeeper.On("method", method)}
		})))
	server.Stop()
	for path, header := range map[string]string{"/healthz": "", "/": "1000"} {
		recorder, request := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
		request.Header.Set("X-User", t.TempDir())
		handler.ServeHTTP(recorder, request)
		if got := recorder.Header().Get("RateLimit-Limit"); got != header {
			t.Errorf("%s: %q", path, got)
		}
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
	config, err := tollkeeper.LoadTLS(tollkeeper.TLSFiles{
		CA: "ca.pem", Cert: "client.pem", Key: "client.key", ServerName: "localhost",
	})
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
