package tollkeeper

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// scripted is a case of ../../conformance/cases.json or a row of faults.json, whose README describes the fields.
type scripted struct {
	Name      string
	Client    settings
	Steps     []step
	OnCall    [][2]string `json:"on_call"`
	Log       []string
	Logs      *int
	AtLeastMs int64 `json:"at_least_ms"`
	AtMostMs  int64 `json:"at_most_ms"`
	// For the service.
	Service, Then, Listens, Sent, Used, Optional any
}

type settings struct {
	Service, Domain string
	OnFailure       string `json:"on_failure"`
	OnCall          string `json:"on_call"`
	TimeoutMs       int    `json:"timeout_ms"`
	CommitTimeoutMs int    `json:"commit_timeout_ms"`
	RequireLimit    bool   `json:"require_limit"`
	RememberDenials *int   `json:"remember_denials_ms"`
}

type step struct {
	Method      string
	Descriptors [][][2]value
	Limit       *struct {
		RequestsPerUnit int64 `json:"requests_per_unit"`
		Unit            string
	}
	Hits           *int64
	Mode           string
	Calls          []step
	Estimate       *int64
	WhileOpen      []step `json:"while_open"`
	After          []step
	Used           *int64
	UsedByKind     map[string]int64 `json:"used_by_kind"`
	HitsByKind     map[string]int64 `json:"hits_by_kind"`
	ID             string
	End            string
	Release        bool
	Fails          bool
	Commits        int
	Renew          *step
	With           *settings
	CloseMeanwhile int `json:"close_meanwhile"`
	LeaveMeanwhile int `json:"leave_meanwhile"`
	Ms             int
	Expect         json.RawMessage
	ExpectCommit   json.RawMessage `json:"expect_commit"`
	Raises         []string
}

// value is a key or a value of an entry: text, bytes as {"hex": "ff"}, or a long text as {"text": "x", "times": 1000}.
type value string

func (v *value) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte(`"`)) {
		return json.Unmarshal(text, (*string)(v))
	}
	var encoded struct {
		Hex, Text string
		Times     int
	}
	if err := json.Unmarshal(text, &encoded); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(encoded.Hex)
	*v = value(append(decoded, strings.Repeat(encoded.Text, encoded.Times)...))
	return err
}

// needService returns the address in an environment variable that the tests of the repository set.
func needService(t *testing.T, name string) string {
	t.Helper()
	address := os.Getenv(name)
	if address == "" {
		t.Skipf("%s is not set; ../../conformance/README.md describes it", name)
	}
	return address
}

func TestConformance(t *testing.T) {
	needService(t, "TOLLKEEPER_ADDR")
	for _, one := range scripts(t, "cases") {
		t.Run(one.Name, func(t *testing.T) {
			variables := map[string]string{
				"":                          "TOLLKEEPER_ADDR",
				"gone":                      "TOLLKEEPER_GONE_ADDR",
				"silent":                    "TOLLKEEPER_SILENT_ADDR",
				"tls":                       "TOLLKEEPER_TLS_ADDR",
				"tls without a certificate": "TOLLKEEPER_TLS_ADDR",
			}
			variable, known := variables[one.Client.Service]
			if !known {
				t.Fatalf("service %q is not known", one.Client.Service)
			}
			client := one.Client.connect(t, needService(t, variable), Options{Timeout: 10 * time.Second})
			(&run{t: t, client: client, user: rand.Text()}).steps(one.Steps)
		})
	}
}

// scripts reads a table. Each of its items gets its own random text.
func scripts(t *testing.T, table string) (found []scripted) {
	text, err := os.ReadFile("../../conformance/" + table + ".json")
	must(t, err)
	var file map[string][]json.RawMessage
	must(t, json.Unmarshal(text, &file))
	for _, items := range file {
		for _, item := range items {
			decoder := json.NewDecoder(strings.NewReader(strings.ReplaceAll(string(item), "{run}", rand.Text())))
			decoder.DisallowUnknownFields()
			var one scripted
			must(t, decoder.Decode(&one))
			found = append(found, one)
		}
	}
	return found
}

// options changes options as the settings say.
func (s settings) options(t *testing.T, options Options) Options {
	if s.OnFailure != "" {
		options.OnFailure = map[string]func(error, []Descriptor) bool{
			"allow": Allow,
			"deny":  Deny,
			"function": func(_ error, descriptors []Descriptor) bool {
				return descriptors[0].Entries[0].Key == "vip"
			},
			"throws": func(error, []Descriptor) bool { panic("as the row says") },
		}[s.OnFailure]
	}
	if s.TimeoutMs > 0 {
		options.Timeout = time.Duration(s.TimeoutMs) * time.Millisecond
	}
	if s.CommitTimeoutMs > 0 {
		options.CommitTimeout = time.Duration(s.CommitTimeoutMs) * time.Millisecond
	}
	options.RequireLimit = options.RequireLimit || s.RequireLimit
	if s.RememberDenials != nil {
		options.RememberDenials = time.Duration(*s.RememberDenials) * time.Millisecond
	}
	if strings.HasPrefix(s.Service, "tls") {
		files := TLSFiles{CA: os.Getenv("TOLLKEEPER_CA"), ServerName: "localhost"}
		if s.Service == "tls" {
			files.Cert, files.Key = os.Getenv("TOLLKEEPER_CERT"), os.Getenv("TOLLKEEPER_KEY")
		}
		config, err := LoadTLS(files)
		must(t, err)
		options.TLS = config
	}
	return options
}

func (s settings) connect(t *testing.T, address string, options Options) *Client {
	return connect(t, address, cmp.Or(s.Domain, "conformance"), s.options(t, options))
}

func connect(t *testing.T, address, domain string, options Options) *Client {
	t.Helper()
	// A busy machine may take long for a connection.
	client, err := New(address, domain, options, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: connecting.Backoff, MinConnectTimeout: time.Minute,
	}))
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// run is a test that runs steps.
type run struct {
	t      *testing.T
	client *Client
	// user is that of steps without descriptors.
	user string
	// waitFor tells the service of a row what it is to wait for.
	waitFor func(what string)
}

func (r *run) steps(steps []step) {
	r.t.Helper()
	for i, step := range steps {
		started := time.Now()
		actual, err := r.one(step)
		if took := time.Since(started); took > 200*time.Second {
			r.t.Errorf("step %d took %s", i, took)
		}
		switch {
		case step.Raises != nil:
			var mistake *ArgumentError
			if !errors.As(err, &mistake) {
				r.t.Errorf("step %d: it did not fail: %v", i, err)
				continue
			}
			for _, part := range step.Raises {
				if !strings.Contains(err.Error(), part) {
					r.t.Errorf("step %d: the error %q lacks %q", i, err, part)
				}
			}
		case err != nil:
			r.t.Errorf("step %d: %v", i, err)
		case step.Expect != nil:
			r.compare(fmt.Sprintf("step %d", i), actual, step.Expect)
		}
	}
}

func (r *run) compare(what string, actual any, expect json.RawMessage) {
	r.t.Helper()
	for _, difference := range compare("", decodeNumbers(r.t, encodeJSON(r.t, actual)), decodeNumbers(r.t, expect)) {
		r.t.Errorf("%s: %s in %s", what, difference, encodeJSON(r.t, actual))
	}
}

// one runs a step, and returns what came of it in the form of what is expected.
func (r *run) one(s step) (any, error) {
	client := r.client
	if s.With != nil {
		client = client.With(func(options *Options) { *options = s.With.options(r.t, *options) })
		if s.With.Domain != "" {
			client = client.WithDomain(s.With.Domain)
		}
	}
	if s.CloseMeanwhile > 0 {
		closed := make(chan error)
		go func() {
			r.waitFor(fmt.Sprintf("sent %d", s.CloseMeanwhile))
			closed <- client.Close()
		}()
		defer func() { must(r.t, <-closed) }()
	}
	ctx, hits, on := context.Background(), int64(1), r.on(s)
	if s.Hits != nil {
		hits = *s.Hits
	}
	var decision Decision
	var err error
	switch s.Method {
	case "decide":
		if s.Hits == nil {
			decision, err = client.Decide(ctx, on...)
		} else {
			decision, err = client.DecideN(ctx, hits, on...)
		}
	case "check":
		decision, err = client.Check(ctx, on...)
	case "read":
		decision, err = client.Read(ctx, on...)
	case "debit":
		decision, err = client.Debit(ctx, hits, on...)
	case "part":
		decision, err = client.Part(ctx, hits, on...)
	case "refund":
		decision, err = client.Refund(ctx, hits, on...)
	case "hold":
		return r.hold(s, client)
	case "decide_all":
		calls := make([]Call, len(s.Calls))
		for i, call := range s.Calls {
			calls[i] = r.call(call).WithID(call.ID)
		}
		decisions, err := client.DecideAll(ctx, calls...)
		described := []any{}
		for _, decision := range decisions {
			described = append(described, describe(r.t, decision))
		}
		return described, err
	case "commit":
		hold := client.Resume("token")
		must(r.t, hold.Use(*s.Used))
		_, err := hold.Commit(ctx)
		return map[string]any{"error": textOf(err)}, nil
	case "close":
		return nil, client.Close()
	case "wait":
		time.Sleep(time.Duration(s.Ms) * time.Millisecond)
		return nil, nil
	case "connected", "pinged":
		r.waitFor(s.Method)
		return nil, nil
	default:
		r.t.Fatalf("method %q is not known", s.Method)
	}
	return describe(r.t, decision), err
}

func textOf(err error) any {
	if err == nil {
		return nil
	}
	return err.Error()
}

func (r *run) on(s step) (descriptors []Descriptor) {
	if s.Descriptors == nil {
		return []Descriptor{On("user", r.user)}
	}
	for _, entries := range s.Descriptors {
		var descriptor Descriptor
		for _, entry := range entries {
			descriptor = descriptor.And(string(entry[0]), string(entry[1]))
		}
		if s.Limit != nil {
			descriptor = descriptor.WithLimit(Limit{Hits: s.Limit.RequestsPerUnit, Unit: s.Limit.Unit})
		}
		descriptors = append(descriptors, descriptor)
	}
	return descriptors
}

func (r *run) call(s step) Call {
	hits, on := int64(1), r.on(s)
	if s.Hits != nil {
		hits = *s.Hits
	}
	switch s.Mode {
	case "", "take":
		return Take(hits, on...)
	case "check":
		return Check(on...)
	case "read":
		return Read(on...)
	case "debit":
		return Debit(hits, on...)
	case "part":
		return Part(hits, on...)
	}
	r.t.Fatalf("mode %q is not known", s.Mode)
	return Call{}
}

func (r *run) hold(s step, client *Client) (actual any, err error) {
	ctx := r.leaves(s)
	defer func() {
		if cause := recover(); (cause != nil) != s.Fails {
			r.t.Errorf("the work ended with %v", cause)
		}
	}()
	var hold *Hold
	if s.HitsByKind != nil {
		hold, err = client.HoldCall(ctx, Take(1, r.on(s)...).WithHitsByKind(s.HitsByKind))
	} else if s.Estimate == nil {
		hold, err = client.HoldDefault(ctx, r.on(s)...)
	} else {
		hold, err = client.Hold(ctx, *s.Estimate, r.on(s)...)
	}
	if err != nil {
		return nil, err
	}
	defer hold.Close()
	described := describe(r.t, hold.Decision)
	described["hold"] = hold.Token()
	actual = described
	r.steps(s.WhileOpen)
	if s.Renew != nil {
		decision, err := hold.Renew(r.leaves(*s.Renew), *s.Renew.Used, *s.Renew.Estimate)
		if err != nil {
			return nil, err
		}
		renewed := describe(r.t, decision)
		renewed["hold"] = hold.Token()
		if s.Renew.Expect != nil {
			r.compare("renewal", renewed, s.Renew.Expect)
		}
	}
	if s.Used != nil {
		must(r.t, hold.Use(*s.Used))
	}
	for kind, number := range s.UsedByKind {
		must(r.t, hold.UseKind(kind, number))
	}
	hold.End(s.End)
	if s.Release {
		must(r.t, hold.Release(ctx))
	}
	for range s.Commits - 1 {
		before := hold.sum()
		_, err := hold.Commit(ctx)
		if s.ExpectCommit != nil {
			r.compare("commit", map[string]any{"error": textOf(err)}, s.ExpectCommit)
		} else {
			// As if the answer had been lost.
			hold.commit = before
		}
	}
	r.steps(s.After)
	if s.Fails {
		panic("the work fails")
	}
	return described, nil
}

// leaves returns the context of a caller that leaves when the service has got a number of requests, if the step has one.
func (r *run) leaves(s step) context.Context {
	ctx, leave := context.WithCancel(context.Background())
	r.t.Cleanup(leave)
	if s.LeaveMeanwhile > 0 {
		go func() {
			r.waitFor(fmt.Sprintf("sent %d", s.LeaveMeanwhile))
			leave()
		}()
	}
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// describe returns a decision in the form of what is expected.
func describe(t *testing.T, decision Decision) map[string]any {
	var statuses []any
	for _, status := range decision.Statuses {
		name := ""
		if status.Limit != nil {
			name = status.Limit.Name
		}
		statuses = append(statuses, map[string]any{
			"allowed": status.Allowed, "limit": limitOf(status.Limit), "remaining": status.Remaining, "name": name,
			"rule": status.Rule, "used": status.Used, "held": status.Held,
		})
	}
	if decision.RetryAfter != 0 && decision.RetryAfter < time.Second {
		t.Errorf("%+v: retry_after is below 1 s", decision)
	}
	return map[string]any{
		"allowed": decision.Allowed, "failed": decision.Failed, "limit": limitOf(decision.Limit),
		"hits": decision.Hits, "remaining": decision.Remaining, "rule": decision.Rule, "reset": decision.Reset > 0,
		"retry_after": decision.RetryAfter >= time.Second, "statuses": statuses, "error": textOf(decision.Err),
		"headers": decision.Headers(),
	}
}

func limitOf(limit *Limit) any {
	if limit == nil {
		return nil
	}
	return limit.Hits
}

// compare ignores keys that are not expected.
func compare(path string, actual, expect any) (found []string) {
	switch expect := expect.(type) {
	case map[string]any:
		for key, wanted := range expect {
			all, _ := actual.(map[string]any)
			value, present := all[key]
			text, isText := value.(string)
			part, isPart := wanted.(string)
			switch {
			case !present:
				found = append(found, path+key+" is absent")
			case key == "headers" && len(value.(map[string]any)) != len(wanted.(map[string]any)):
				found = append(found, "other headers")
			case key == "error" && isPart:
				if !isText || !strings.Contains(text, part) {
					found = append(found, "error lacks "+part)
				}
			default:
				found = append(found, compare(path+key+" ", value, wanted)...)
			}
		}
	case []any:
		all, _ := actual.([]any)
		if len(all) != len(expect) {
			return []string{path + "has another length"}
		}
		for i := range expect {
			found = append(found, compare(path, all[i], expect[i])...)
		}
	default:
		if actual != expect {
			found = append(found, path+"differs from "+string(encode1(expect)))
		}
	}
	return found
}

func encode1(value any) []byte { text, _ := json.Marshal(value); return text }

func encodeJSON(t *testing.T, value any) []byte {
	text, err := json.Marshal(value)
	must(t, err)
	return text
}

// decodeNumbers keeps the digits of numbers, which floats above 2^53 would lose.
func decodeNumbers(t *testing.T, text []byte) (value any) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	must(t, decoder.Decode(&value))
	return value
}

func TestALimitOfTheCallerTakesThePlaceOfTheRules(t *testing.T) {
	client := connect(t, needService(t, "TOLLKEEPER_ADDR"), "conformance", Options{Timeout: 10 * time.Second})
	limit := Limit{Hits: 2, Units: 5, Unit: "minute"}
	decision, err := client.Decide(t.Context(), On("three", rand.Text()).WithLimit(limit))
	must(t, err)
	if decision.Remaining != 1 || decision.Limit == nil || *decision.Limit != limit || decision.Rule != "override" {
		t.Errorf("%+v, %+v", decision, decision.Limit)
	}
}

func TestARenewalCommitsAndHoldsMore(t *testing.T) {
	client := connect(t, needService(t, "TOLLKEEPER_ADDR"), "conformance", Options{Timeout: 10 * time.Second})
	user := On("tokens", rand.Text())
	hold, err := client.Hold(t.Context(), 400, user)
	must(t, err)
	decision, err := hold.Renew(t.Context(), 300, 100)
	must(t, err)
	if !decision.Allowed || decision.Remaining != 600 {
		t.Errorf("%+v", decision)
	}
	// Another process ends it.
	other := client.Resume(hold.Token())
	must(t, other.Use(42))
	must(t, other.Close())
	charges, err := hold.Commit(t.Context())
	must(t, err)
	read, err := client.Read(t.Context(), user)
	must(t, err)
	if read.Statuses[0].Used != 342 || len(charges) != 1 || charges[0].Outcome != "repeated" {
		t.Errorf("%+v, %v", read, charges)
	}
}
