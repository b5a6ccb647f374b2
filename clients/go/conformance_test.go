package tollkeeper

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// conformanceCase is a case of ../conformance/cases.json, whose README describes the fields.
type conformanceCase struct {
	Name   string
	Client struct {
		Service, Domain string
		OnFailure       string `json:"on_failure"`
		TimeoutMs       int    `json:"timeout_ms"`
	}
	Steps []step
}

type step struct {
	Method      string
	Descriptors [][][2]value
	Hits        *int64
	Mode        string
	Calls       []step
	Estimate    *int64
	WhileOpen   []step `json:"while_open"`
	Used        *int64
	UsedByKind  map[string]int64 `json:"used_by_kind"`
	HitsByKind  map[string]int64 `json:"hits_by_kind"`
	ID          string
	End         string
	Release     bool
	Fails       bool
	Commits     int
	Expect      json.RawMessage
	Raises      []string
}

// value is a key or a value of an entry: text, or bytes as {"hex": "ff"}.
type value string

func (v *value) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte(`"`)) {
		return json.Unmarshal(text, (*string)(v))
	}
	var encoded struct{ Hex string }
	if err := json.Unmarshal(text, &encoded); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(encoded.Hex)
	*v = value(decoded)
	return err
}

// needService returns the address in an environment variable that the tests of the repository set.
func needService(t *testing.T, name string) string {
	t.Helper()
	address := os.Getenv(name)
	if address == "" {
		t.Skipf("%s is not set; ../conformance/README.md describes it", name)
	}
	return address
}

func TestConformance(t *testing.T) {
	needService(t, "TOLLKEEPER_ADDR")
	text, err := os.ReadFile("../conformance/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	// Each case gets its own random text.
	var names struct{ Cases []struct{ Name string } }
	if err := json.Unmarshal(text, &names); err != nil {
		t.Fatal(err)
	}
	for i, named := range names.Cases {
		t.Run(named.Name, func(t *testing.T) {
			var file struct{ Cases []conformanceCase }
			decoder := json.NewDecoder(strings.NewReader(strings.ReplaceAll(string(text), "{run}", rand.Text())))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&file); err != nil {
				t.Fatal(err)
			}
			one := file.Cases[i]
			runSteps(t, one.connect(t), one.Steps)
		})
	}
}

func (c conformanceCase) connect(t *testing.T) *Client {
	variables := map[string]string{
		"":                          "TOLLKEEPER_ADDR",
		"gone":                      "TOLLKEEPER_GONE_ADDR",
		"silent":                    "TOLLKEEPER_SILENT_ADDR",
		"tls":                       "TOLLKEEPER_TLS_ADDR",
		"tls without a certificate": "TOLLKEEPER_TLS_ADDR",
	}
	variable, known := variables[c.Client.Service]
	if !known {
		t.Fatalf("service %q is not known", c.Client.Service)
	}
	options := Options{
		Timeout: 10 * time.Second,
		OnFailure: map[string]func(error, []Descriptor) bool{
			"allow": Allow,
			"deny":  Deny,
			"function": func(_ error, descriptors []Descriptor) bool {
				return descriptors[0][0].Key == "vip"
			},
		}[c.Client.OnFailure],
	}
	if c.Client.TimeoutMs > 0 {
		options.Timeout = time.Duration(c.Client.TimeoutMs) * time.Millisecond
	}
	if strings.HasPrefix(c.Client.Service, "tls") {
		files := TLSFiles{CA: os.Getenv("TOLLKEEPER_CA"), ServerName: "localhost"}
		if c.Client.Service == "tls" {
			files.Cert, files.Key = os.Getenv("TOLLKEEPER_CERT"), os.Getenv("TOLLKEEPER_KEY")
		}
		config, err := LoadTLS(files)
		if err != nil {
			t.Fatal(err)
		}
		options.TLS = config
	}
	domain := c.Client.Domain
	if domain == "" {
		domain = "conformance"
	}
	return connect(t, needService(t, variable), domain, options)
}

func connect(t *testing.T, address, domain string, options Options) *Client {
	t.Helper()
	client, err := New(address, domain, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func runSteps(t *testing.T, client *Client, steps []step) {
	t.Helper()
	for i, step := range steps {
		started := time.Now()
		decisions, err := step.run(t, client)
		if took := time.Since(started); took > 20*time.Second {
			t.Errorf("step %d took %s", i, took)
		}
		switch {
		case step.Raises != nil:
			if err == nil {
				t.Errorf("step %d: it did not fail", i)
				continue
			}
			for _, part := range step.Raises {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("step %d: the error %q lacks %q", i, err, part)
				}
			}
		case err != nil:
			t.Errorf("step %d: %v", i, err)
		case step.Expect != nil:
			wanted := []json.RawMessage{step.Expect}
			if step.Method == "decide_all" {
				must(t, json.Unmarshal(step.Expect, &wanted))
			}
			if len(wanted) != len(decisions) {
				t.Fatalf("step %d: %d decisions, expected %d", i, len(decisions), len(wanted))
			}
			for j := range wanted {
				for _, difference := range differences(t, decisions[j], wanted[j]) {
					t.Errorf("step %d, decision %d: %s in %+v", i, j, difference, decisions[j])
				}
			}
		}
	}
}

func (s step) run(t *testing.T, client *Client) ([]Decision, error) {
	ctx, hits, on := context.Background(), int64(1), s.on()
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
		decision, err = s.hold(t, client)
	case "decide_all":
		calls := make([]Call, len(s.Calls))
		for i, call := range s.Calls {
			calls[i] = call.call(t).WithID(call.ID)
		}
		return client.DecideAll(ctx, calls...)
	default:
		t.Fatalf("method %q is not known", s.Method)
	}
	return []Decision{decision}, err
}

func (s step) on() (descriptors []Descriptor) {
	for _, entries := range s.Descriptors {
		var descriptor Descriptor
		for _, entry := range entries {
			descriptor = descriptor.And(string(entry[0]), string(entry[1]))
		}
		descriptors = append(descriptors, descriptor)
	}
	return descriptors
}

func (s step) call(t *testing.T) Call {
	hits := int64(1)
	if s.Hits != nil {
		hits = *s.Hits
	}
	switch s.Mode {
	case "", "take":
		return Take(hits, s.on()...)
	case "check":
		return Check(s.on()...)
	case "read":
		return Read(s.on()...)
	case "debit":
		return Debit(hits, s.on()...)
	case "part":
		return Part(hits, s.on()...)
	}
	t.Fatalf("mode %q is not known", s.Mode)
	return Call{}
}

func (s step) hold(t *testing.T, client *Client) (decision Decision, err error) {
	defer func() {
		if cause := recover(); (cause != nil) != s.Fails {
			t.Errorf("the work ended with %v", cause)
		}
	}()
	var hold *Hold
	if s.HitsByKind != nil {
		hold, err = client.HoldCall(context.Background(), Take(1, s.on()...).WithHitsByKind(s.HitsByKind))
	} else if s.Estimate == nil {
		hold, err = client.HoldDefault(context.Background(), s.on()...)
	} else {
		hold, err = client.Hold(context.Background(), *s.Estimate, s.on()...)
	}
	if err != nil {
		return Decision{}, err
	}
	defer hold.Commit()
	decision = hold.Decision
	runSteps(t, client, s.WhileOpen)
	if s.Used != nil {
		must(t, hold.Use(*s.Used))
	}
	for kind, number := range s.UsedByKind {
		must(t, hold.UseKind(kind, number))
	}
	hold.End(s.End)
	if s.Release {
		hold.Release()
	}
	for range s.Commits - 1 {
		hold.Commit()
		// As if the answer had been lost.
		hold.isDone = false
	}
	if s.Fails {
		panic("the work fails")
	}
	return decision, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// differences compares what is expected, as JSON, with the decision written as such JSON.
func differences(t *testing.T, decision Decision, expect json.RawMessage) (found []string) {
	t.Helper()
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
	actual := map[string]any{
		"allowed": decision.Allowed, "failed": decision.Failed, "limit": limitOf(decision.Limit),
		"hits": decision.Hits, "remaining": decision.Remaining, "rule": decision.Rule, "reset": decision.Reset > 0,
		"retry_after": decision.RetryAfter >= time.Second, "statuses": statuses,
	}
	if decision.RetryAfter != 0 && decision.RetryAfter < time.Second {
		found = append(found, "retry_after is below 1 s")
	}
	if decision.Err != nil {
		actual["error"] = decision.Err.Error()
	}
	return append(found, compare("", decodeNumbers(t, encodeJSON(t, actual)), decodeNumbers(t, expect))...)
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
			text, _ := value.(string)
			switch {
			case !present:
				found = append(found, path+key+" is absent")
			case key == "error":
				if !strings.Contains(text, wanted.(string)) {
					found = append(found, "error lacks "+wanted.(string))
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
