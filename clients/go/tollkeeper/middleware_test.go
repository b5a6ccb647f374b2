package tollkeeper

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// limitedBy returns the descriptors of a path: the first segment is the key of a rule.
func limitedBy(path, run string) []Descriptor {
	switch path {
	case "/open":
		return nil
	case "/mistake":
		return []Descriptor{{Entries: []Entry{{Value: "secret"}}}}
	}
	return []Descriptor{On(path[1:], run)}
}

func get(t *testing.T, client *Client, path, run string) *http.Response {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "served") })
	handler := client.Middleware(func(r *http.Request) []Descriptor { return limitedBy(r.URL.Path, run) }, nil)(next)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
	response := recorder.Result()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	expected := http.StatusText(response.StatusCode) + "\n"
	if response.StatusCode == 200 {
		expected = "served"
	}
	if string(body) != expected {
		t.Errorf("%d with %q", response.StatusCode, body)
	}
	return response
}

// check compares the status and the headers, of which a time is only an allowed number of seconds.
func check(t *testing.T, response *http.Response, code int, limit, remaining string, retries bool) {
	t.Helper()
	header := response.Header
	if response.StatusCode != code || header.Get("RateLimit-Limit") != limit || header.Get("RateLimit-Remaining") != remaining {
		t.Errorf("%d with %v", response.StatusCode, header)
	}
	for name, expected := range map[string]bool{"RateLimit-Reset": limit != "", "Retry-After": retries} {
		seconds, err := strconv.Atoi(header.Get(name))
		if present := header.Get(name) != ""; present != expected || (expected && (err != nil || seconds < 1)) {
			t.Errorf("%s is %q", name, header.Get(name))
		}
	}
}

func TestADeniedRequestGets429AndTheHeaders(t *testing.T) {
	var log text
	client := connect(t, needService(t, "TOLLKEEPER_ADDR"), "conformance", Options{
		Timeout: 10 * time.Second, OnFailure: Deny, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	run := rand.Text()
	for _, remaining := range []string{"2", "1", "0"} {
		check(t, get(t, client, "/three", run), 200, "3", remaining, false)
	}
	check(t, get(t, client, "/three", run), 429, "3", "0", true)
	check(t, get(t, client, "/banned", run), 429, "0", "0", true)
	check(t, get(t, client, "/free", run), 200, "", "", false)
	check(t, get(t, client, "/open", run), 200, "", "", false)
	check(t, get(t, client, "/mistake", run), 500, "", "", false)
	if !strings.Contains(log.String(), "descriptors[0].entries[0].key: must not be empty") || strings.Contains(log.String(), "secret") {
		t.Errorf("the log has %q", log.String())
	}
}

func TestADenialMayBeTheApplications(t *testing.T) {
	client := over(t, &unreliable{decideErr: status.Error(codes.Unavailable, "lost")}, Options{OnFailure: Deny})
	mux := http.NewServeMux()
	limit := client.Middleware(
		func(r *http.Request) []Descriptor {
			return []Descriptor{On("route", r.Pattern).And("id", r.PathValue("id"))}
		},
		func(w http.ResponseWriter, r *http.Request, decision Decision) {
			w.WriteHeader(decision.StatusCode())
			fmt.Fprintf(w, `{"route": %q, "failed": %t}`, r.Pattern, decision.Failed)
		})
	mux.Handle("GET /users/{id}", limit(http.NotFoundHandler()))
	recorder := httptest.NewRecorder()
	mux.ServeHTTP(recorder, httptest.NewRequest("GET", "/users/7", nil))
	if body := recorder.Body.String(); recorder.Code != 503 || body != `{"route": "GET /users/{id}", "failed": true}` {
		t.Errorf("%d with %s", recorder.Code, body)
	}
}

func TestAnAddressIsWhatTheTrustedProxiesSay(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, row := range []struct {
		peer      string
		forwarded []string
		expected  string
	}{
		{"203.0.113.7:4711", nil, "203.0.113.7"},
		{"203.0.113.7:4711", []string{"198.51.100.1"}, "203.0.113.7"},
		{"10.1.2.3:4711", nil, "10.1.2.3"},
		{"10.1.2.3:4711", []string{"198.51.100.1"}, "198.51.100.1"},
		{"10.1.2.3:4711", []string{"6.6.6.6, 198.51.100.1", "10.9.9.9"}, "198.51.100.1"},
		{"10.1.2.3:4711", []string{"10.0.0.1, 10.9.9.9"}, "10.0.0.1"},
		{"10.1.2.3:4711", []string{"6.6.6.6, garbage"}, "10.1.2.3"},
		{"10.1.2.3:4711", []string{"198.51.100.1:4712, [fd00::2]:4713"}, "198.51.100.1"},
		{"[fd00::1]:4711", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"[2001:db8:1:2:3:4:5:6]:4711", nil, "2001:db8:1:2::/64"},
		{"[fe80::1%eth0]:4711", nil, "fe80::/64"},
		{"a socket", nil, "a socket"},
	} {
		request := httptest.NewRequest("GET", "/", nil)
		request.RemoteAddr = row.peer
		request.Header["X-Forwarded-For"] = row.forwarded
		if got := Address(request, proxies...); got != row.expected {
			t.Errorf("%+v: %s", row, got)
		}
	}
}

func TestWithoutAServiceOnFailureDecidesRequests(t *testing.T) {
	gone := needService(t, "TOLLKEEPER_GONE_ADDR")
	allow := connect(t, gone, "conformance", Options{Timeout: 10 * time.Second})
	check(t, get(t, allow, "/three", "a"), 200, "", "", false)
	deny := connect(t, gone, "conformance", Options{Timeout: 10 * time.Second, OnFailure: Deny})
	check(t, get(t, deny, "/three", "a"), 503, "", "", false)
}

func TestARequestThatTheServiceRefusesAsTooLargeIsDenied(t *testing.T) {
	client := over(t, &unreliable{decideErr: status.Error(codes.OutOfRange, "too large")}, Options{})
	check(t, get(t, client, "/three", "a"), 429, "", "", false)
	noHeader := func(metadata.MD) error { return nil }
	denial := status.Convert(client.admit(t.Context(), noHeader, []Descriptor{On("three", "a")}))
	if denial.Code() != codes.ResourceExhausted || len(denial.Details()) != 0 {
		t.Errorf("%v with %v", denial, denial.Details())
	}
}

func TestHeadersRoundSecondsUp(t *testing.T) {
	decision := Decision{Limit: &Limit{Hits: 3}, Reset: 1500 * time.Millisecond, RetryAfter: 2 * time.Second}
	headers := decision.Headers()
	if headers["RateLimit-Reset"] != "2" || headers["Retry-After"] != "2" {
		t.Errorf("%v", headers)
	}
}

// healthOf is a client of a gRPC server that the interceptors limit by the method.
func healthOf(t *testing.T, client *Client, key, run string) healthpb.HealthClient {
	descriptors := func(method string) []Descriptor {
		return limitedBy("/"+key, run+method)
	}
	address := serve(t, func(server *grpc.Server) { healthpb.RegisterHealthServer(server, health.NewServer()) },
		grpc.UnaryInterceptor(client.UnaryInterceptor(func(_ context.Context, method string, _ any) []Descriptor {
			return descriptors(method)
		})),
		grpc.StreamInterceptor(client.StreamInterceptor(func(_ context.Context, method string) []Descriptor {
			return descriptors(method)
		})))
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { connection.Close() })
	return healthpb.NewHealthClient(connection)
}

// unary and stream make one call, and return its headers and error.
func unary(t *testing.T, server healthpb.HealthClient) (metadata.MD, error) {
	var headers metadata.MD
	_, err := server.Check(context.Background(), &healthpb.HealthCheckRequest{}, grpc.Header(&headers))
	return headers, err
}

func stream(t *testing.T, server healthpb.HealthClient) (metadata.MD, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch, err := server.Watch(ctx, &healthpb.HealthCheckRequest{})
	must(t, err)
	_, err = watch.Recv()
	headers, _ := watch.Header()
	return headers, err
}

func TestADeniedGrpcCallGetsResourceExhausted(t *testing.T) {
	client := connect(t, needService(t, "TOLLKEEPER_ADDR"), "conformance", Options{Timeout: 10 * time.Second, OnFailure: Deny})
	for name, call := range map[string]func(*testing.T, healthpb.HealthClient) (metadata.MD, error){"unary": unary, "stream": stream} {
		t.Run(name, func(t *testing.T) {
			server := healthOf(t, client, "three", rand.Text())
			for _, remaining := range []string{"2", "1", "0"} {
				headers, err := call(t, server)
				must(t, err)
				if headers.Get("ratelimit-remaining")[0] != remaining || headers.Get("ratelimit-limit")[0] != "3" {
					t.Errorf("%v", headers)
				}
			}
			headers, err := call(t, server)
			denial := status.Convert(err)
			if denial.Code() != codes.ResourceExhausted || len(denial.Details()) != 1 {
				t.Fatalf("%v", err)
			}
			info, _ := denial.Details()[0].(*errdetails.RetryInfo)
			if info.GetRetryDelay().AsDuration() < time.Second || len(headers.Get("retry-after")) != 1 {
				t.Errorf("%v with %v", info, headers)
			}
			_, err = call(t, healthOf(t, client, "open", ""))
			must(t, err)
			_, err = call(t, healthOf(t, client, "mistake", ""))
			if status.Code(err) != codes.Internal {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestWithoutAServiceOnFailureDecidesGrpcCalls(t *testing.T) {
	gone := needService(t, "TOLLKEEPER_GONE_ADDR")
	deny := connect(t, gone, "conformance", Options{Timeout: 10 * time.Second, OnFailure: Deny})
	if _, err := unary(t, healthOf(t, deny, "three", "a")); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	allow := connect(t, gone, "conformance", Options{Timeout: 10 * time.Second})
	_, err := stream(t, healthOf(t, allow, "three", "a"))
	must(t, err)
}
