// Package tollkeeper asks a tollkeeper service whether calls may pass.
//
// Every decision returns within the client's timeout, whatever the service does: without an answer, [Options.OnFailure]
// decides. A method returns an error only for a mistake of the caller, which is an [ArgumentError], and for a commit that
// failed. A call whose context has ended is denied: nobody waits for its work.
package tollkeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
)

// The timeouts where [Options] has none.
const (
	DefaultTimeout       = 50 * time.Millisecond
	DefaultCommitTimeout = 2 * time.Second
)

// Options of a client. The zero value is usable.
type Options struct {
	// Timeout of a decision. It is not repeated: that could charge twice.
	Timeout time.Duration
	// CommitTimeout of all attempts of a commit together. It is repeated while there is no answer; it counts once.
	CommitTimeout time.Duration
	// OnFailure decides calls that the service does not answer; [Allow] if nil. If it panics, the call is denied.
	OnFailure func(err error, descriptors []Descriptor) bool
	// OnCall is called after each call, for metrics: the method is "decide", "commit" or "renew", and status.Code(err) its
	// outcome. A panic is logged, and changes nothing else.
	OnCall func(method string, elapsed time.Duration, err error)
	// RequireLimit makes it a mistake of the caller if no limit applies to a call, for tests and staging.
	RequireLimit bool
	// RememberDenials denies a call without a request while the service has denied an equal one: until its RetryAfter is
	// over, at most for this time. Meanwhile it does not see an override, a commit, a refund or a reset that would let the
	// call pass. 0 turns it off.
	RememberDenials time.Duration
	// Logger gets a line when calls fail, or are of a domain that the service does not have, at most once a minute for each;
	// slog.Default() if nil. If it panics, the line is lost.
	Logger *slog.Logger
	// TLS encrypts the connections that New makes. [LoadTLS] makes it of PEM files.
	TLS *tls.Config
}

func (o Options) withDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.CommitTimeout = cmp.Or(o.CommitTimeout, DefaultCommitTimeout)
	if o.OnFailure == nil {
		o.OnFailure = Allow
	}
	if o.OnCall == nil {
		o.OnCall = func(string, time.Duration, error) {}
	}
	return o
}

// Allow fails open: calls pass while the service does not answer.
func Allow(error, []Descriptor) bool { return true }

// Deny fails closed: calls are denied while the service does not answer.
func Deny(error, []Descriptor) bool { return false }

// Decider is what services use of a [Client] or a [Limiter] most, for those who put an implementation of their own in its
// place. Package tollkeepertest has a service for tests, which leaves the client as it is.
type Decider interface {
	Decide(ctx context.Context, descriptors ...Descriptor) (Decision, error)
	DecideCall(ctx context.Context, call Call) (Decision, error)
	DecideAll(ctx context.Context, calls ...Call) ([]Decision, error)
	Hold(ctx context.Context, estimate int64, descriptors ...Descriptor) (*Hold, error)
	HoldCall(ctx context.Context, call Call) (*Hold, error)
}

var (
	_ Decider = (*Client)(nil)
	_ Decider = (*Limiter)(nil)
)

// Client decides calls in one domain. Make one for the process: its goroutines share its connections.
type Client struct {
	*link
	options Options
	domain  string
	isView  bool
	// decideOne is what middleware calls in place of Decide, if it is not nil.
	decideOne func(context.Context, ...Descriptor) (Decision, error)
}

// New makes a client of the service at target, such as host:port, for a domain. It connects at once, without waiting.
//
// Calls go to all addresses of the name in turn, so use the name of a headless Service in Kubernetes. Options of gRPC
// override those of the client.
func New(target, domain string, options Options, dialing ...grpc.DialOption) (*Client, error) {
	client, err := NewFromConn(nil, domain, options)
	if err != nil {
		return nil, err
	}
	// gRPC would take it, and each call would be one without an answer.
	if target == "" {
		return nil, mistake("target", "must not be empty")
	}
	connection, err := dial(target, options.TLS, dialing)
	if err != nil {
		return nil, &ArgumentError{"target", err.Error()}
	}
	secured := map[bool]string{true: "with TLS", false: "without TLS"}[options.TLS != nil]
	client.link = newLink(connection, target+", "+secured, connection.Close)
	return client, nil
}

// NewFromConn makes a client on a connection of the caller, which Close leaves open: decisions under way then end by their
// timeouts. Its options are the caller's: it must not retry Decide or Renew, which could charge twice.
func NewFromConn(connection grpc.ClientConnInterface, domain string, options Options) (*Client, error) {
	client := &Client{
		link: newLink(connection, "the connection of the caller", nil), options: options.withDefaults(), domain: domain,
	}
	if err := client.checkSettings(); err != nil {
		return nil, err
	}
	return client, nil
}

// checkSettings returns the mistake that With and WithDomain cannot return.
func (c *Client) checkSettings() error {
	switch {
	case c.domain == "":
		return mistake("domain", "must not be empty")
	case c.options.Timeout < 0:
		return mistake("timeout", "must be at least 0, and is %s", c.options.Timeout)
	case c.options.CommitTimeout < 0:
		return mistake("commit_timeout", "must be at least 0, and is %s", c.options.CommitTimeout)
	case c.options.RememberDenials < 0:
		return mistake("remember_denials", "must be at least 0, and is %s", c.options.RememberDenials)
	}
	return nil
}

// With returns a client on the same connections with other options, which the function sets. TLS stays as it is. It is cheap
// enough for one call. Its Close does nothing.
func (c *Client) With(change func(*Options)) *Client {
	view := *c
	view.isView, view.decideOne = true, nil
	change(&view.options)
	view.options = view.options.withDefaults()
	return &view
}

// WithDomain returns a client of another domain on the same connections. Its Close does nothing.
func (c *Client) WithDomain(domain string) *Client {
	view := c.With(func(*Options) {})
	view.domain = domain
	return view
}

// Close ends the client and all that With and WithDomain have made of it. It waits at most [Options.CommitTimeout] for commits
// and for what is given back, and at most that until the calls that it has ended are counted for the log. OnFailure decides
// them, and later calls. It may be called again, also by functions of the options.
func (c *Client) Close() error {
	if c.isView {
		return nil
	}
	defer c.remind(true)
	return c.end(c.options.CommitTimeout)
}

// Decide charges one hit to each descriptor if all of them have room, or else nothing.
func (c *Client) Decide(ctx context.Context, descriptors ...Descriptor) (Decision, error) {
	return c.DecideCall(ctx, Take(1, descriptors...))
}

// DecideN is Decide for a number of hits. With 0 hits it is Check.
func (c *Client) DecideN(ctx context.Context, hits int64, descriptors ...Descriptor) (Decision, error) {
	return c.DecideCall(ctx, Take(hits, descriptors...))
}

// Check charges nothing, and answers as for one hit.
func (c *Client) Check(ctx context.Context, descriptors ...Descriptor) (Decision, error) {
	return c.DecideCall(ctx, Check(descriptors...))
}

// Read charges nothing and denies nothing: the decision has a status for each limit of each descriptor.
func (c *Client) Read(ctx context.Context, descriptors ...Descriptor) (Decision, error) {
	return c.DecideCall(ctx, Read(descriptors...))
}

// Debit charges hits in any case, for work that is done. The decision shows whether they fit.
func (c *Client) Debit(ctx context.Context, hits int64, descriptors ...Descriptor) (Decision, error) {
	return c.DecideCall(ctx, Debit(hits, descriptors...))
}

// Part charges as many of the hits as fit, which Decision.Hits shows, and is denied if none does.
func (c *Client) Part(ctx context.Context, hits int64, descriptors ...Descriptor) (Decision, error) {
	return c.DecideCall(ctx, Part(hits, descriptors...))
}

// Refund gives hits back.
func (c *Client) Refund(ctx context.Context, hits int64, descriptors ...Descriptor) (Decision, error) {
	return c.DecideCall(ctx, Refund(hits, descriptors...))
}

// DecideAll decides up to 1,000 calls in one request, each for itself. The decisions are in the order of the calls.
func (c *Client) DecideAll(ctx context.Context, calls ...Call) ([]Decision, error) {
	decisions, _, err := c.decideAll(ctx, "calls[%d].", calls, c.bounded)
	return decisions, err
}

// DecideCall decides one call.
func (c *Client) DecideCall(ctx context.Context, call Call) (Decision, error) {
	decisions, _, err := c.decideAll(ctx, "", []Call{call}, c.bounded)
	if err != nil {
		return Decision{}, err
	}
	return decisions[0], nil
}

// decideForMiddleware is Decide of a client, or of the limiter that it is in.
func (c *Client) decideForMiddleware(ctx context.Context, descriptors []Descriptor) (Decision, error) {
	if c.decideOne != nil {
		return c.decideOne(ctx, descriptors...)
	}
	return c.Decide(ctx, descriptors...)
}

// decideAll returns the decisions, and the tokens of what they hold, also where a call lacks a limit. The path of a call is
// the beginning of its errors. What ends the request is the part of [Client.bounded] or [Client.kept].
func (c *Client) decideAll(
	ctx context.Context, path string, calls []Call, ending func(asking) asking,
) ([]Decision, []string, error) {
	if len(calls) == 0 {
		return nil, nil, nil
	}
	if err := c.checkSettings(); err != nil {
		return nil, nil, err
	}
	request, err := encode(c.domain, path, calls)
	if err != nil {
		return nil, nil, err
	}
	memorable := c.memorable(request)
	if denial, isFound := c.denials.find(memorable, c.options.RememberDenials); isFound {
		return []Decision{denial}, []string{""}, nil
	}
	found, end, err := c.ask(ctx, "decide", request.Calls, ending(func(ctx context.Context) (answer, error) {
		response, err := c.service.Decide(ctx, request)
		return answer{verdicts: response.GetVerdicts()}, err
	}))
	decisions, tokens, lacking := c.decisions(ctx, path, calls, found.verdicts, end, err)
	if lacking != nil {
		return nil, tokens, lacking
	}
	// Only denials of the service have a time after which to come again.
	if memorable != "" && decisions[0].RetryAfter > 0 {
		c.denials.add(memorable, decisions[0])
	}
	return decisions, tokens, nil
}

// asking sends a request of decisions once.
type asking = func(context.Context) (answer, error)

type answer struct {
	verdicts []*pb.Verdict
	// hasCommitted is true of a renewal that has committed the hold before it, and open is why one has not.
	hasCommitted bool
	open         error
}

// bounded ends a request at the timeout, or with its caller.
func (c *Client) bounded(send asking) asking {
	return func(ctx context.Context) (answer, error) {
		ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
		defer cancel()
		return send(ctx)
	}
}

// ask makes a request, if its calls may be sent. It is under way until its end is called, which tells the hook its error, or
// else the first error of its items.
func (c *Client) ask(ctx context.Context, method string, calls []*pb.Call, send asking) (found answer, end func(), err error) {
	start, closed := time.Now(), c.begin(&c.calls)
	if err = cmp.Or(tooLarge(calls), closed); err == nil {
		found, err = send(ctx)
	}
	if err == nil && len(found.verdicts) != len(calls) {
		err = errNotOurs
	}
	err = c.failureOf(ctx, err)
	first := cmp.Or(err, found.open)
	for _, verdict := range found.verdicts {
		first = cmp.Or(first, errorOf(verdict))
	}
	elapsed := time.Since(start)
	return found, func() {
		if closed == nil {
			c.calls.Done()
		}
		c.heard(method, elapsed, first)
	}, err
}

// decisions returns what the verdicts say, or what is decided without them, and the tokens of what is held. The error is a
// call that lacks a limit. Functions of the caller may close the client, so the request ends before them, once it is counted.
func (c *Client) decisions(
	ctx context.Context, path string, calls []Call, verdicts []*pb.Verdict, end func(), err error,
) (decisions []Decision, tokens []string, lacking error) {
	decisions, tokens = make([]Decision, len(calls)), make([]string, len(calls))
	defer c.remind(false)
	failures, unknown, last := 0, 0, error(nil)
	// Nobody waits for the work of a context that has ended, and the service is not to blame.
	isAwaited := endOf(ctx) == nil
	for i, call := range calls {
		decisions[i] = Decision{Failed: true, Err: err}
		if err == nil {
			decisions[i], tokens[i] = decode(verdicts[i])
			if decisions[i].Err == nil && verdicts[i].DomainUnknown {
				unknown++
			}
		}
		if decisions[i].Failed && isAwaited {
			decisions[i].Failed = !isRefusal(decisions[i].Err)
			if decisions[i].Failed {
				failures, last = failures+1, decisions[i].Err
			}
		}
		if mistake := c.lacksLimit(call, decisions[i]); mistake != nil && lacking == nil {
			lacking = mistake.below(path, i)
		}
	}
	logFailures := c.warn(failures, last, "call of the domain \"%s\" had no answer and was decided by on_failure",
		"calls of the domain \"%s\" had no answer and were decided by on_failure")
	logUnknown := c.warnUnknown(unknown)
	end()
	for i, call := range calls {
		if decisions[i].Failed && isAwaited {
			decisions[i].Allowed = c.onFailure(decisions[i].Err, call.descriptors)
		}
	}
	logFailures()
	logUnknown()
	return decisions, tokens, lacking
}

// lacksLimit is the mistake of a call with a descriptor without limit and rule, if a limit is required.
func (c *Client) lacksLimit(call Call, decision Decision) *ArgumentError {
	if !c.options.RequireLimit {
		return nil
	}
	for _, status := range decision.Statuses {
		if status.Limit == nil && status.Rule == "" && status.Descriptor < len(call.descriptors) {
			return mistake(fmt.Sprintf("descriptors[%d]", status.Descriptor), "no limit applies to %s in the domain %s (require_limit)",
				call.descriptors[status.Descriptor].keys(), c.domain)
		}
	}
	return nil
}

// onFailure asks the function of the options, and denies if it panics.
func (c *Client) onFailure(err error, descriptors []Descriptor) (isAllowed bool) {
	defer c.contain("on_failure panicked, so the call is denied")
	return c.options.OnFailure(err, descriptors)
}

// heard tells the hook of a call.
func (c *Client) heard(method string, elapsed time.Duration, err error) {
	defer c.contain("on_call panicked")
	c.options.OnCall(method, elapsed, err)
}

// contain logs the panic of a function of the caller, and ends it.
func (c *Client) contain(what string) {
	if cause := recover(); cause != nil {
		c.loud(what, 1, func(count int) {
			c.log(context.Background(), slog.LevelWarn, "%s (%d times); the last: %s", what, count, cut(fmt.Sprint(cause)))
		})
	}
}
