// Package tollkeeper asks a tollkeeper service whether calls may pass.
//
// Every decision returns within the client's timeout, whatever the service does: without an answer, [Options.OnFailure]
// decides. An error is returned only for a mistake of the caller, before anything is sent.
package tollkeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// DefaultTimeout is how long a decision waits for the service if [Options.Timeout] is 0.
const DefaultTimeout = 50 * time.Millisecond

// Options of a client. The zero value is usable.
type Options struct {
	// Timeout of a decision, and of each attempt of a commit.
	Timeout time.Duration
	// OnFailure decides calls that the service does not answer; [Allow] if nil.
	OnFailure func(err error, descriptors []Descriptor) bool
	// TLS encrypts the connections. [LoadTLS] makes it of PEM files.
	TLS *tls.Config
	// OnCall is called after each attempt of a call: the method is "decide" or "commit", and status.Code(err) its outcome.
	OnCall func(method string, elapsed time.Duration, err error)
}

// Allow fails open: calls pass while the service does not answer.
func Allow(error, []Descriptor) bool { return true }

// Deny fails closed: calls are denied while the service does not answer.
func Deny(error, []Descriptor) bool { return false }

// Client decides calls in one domain. Make one for the process: its goroutines share its connections.
type Client struct {
	options    Options
	domain     string
	connection *grpc.ClientConn
	service    pb.TollkeeperClient
}

// New makes a client of the service at target, such as host:port, for a domain. It does not wait for the service.
//
// Calls go to all addresses of the name in turn, so use the name of a headless Service in Kubernetes.
func New(target, domain string, options Options) (*Client, error) {
	if domain == "" {
		return nil, errors.New("domain: must not be empty")
	}
	if options.Timeout == 0 {
		options.Timeout = DefaultTimeout
	}
	if options.OnFailure == nil {
		options.OnFailure = Allow
	}
	if options.OnCall == nil {
		options.OnCall = func(string, time.Duration, error) {}
	}
	transport := insecure.NewCredentials()
	if options.TLS != nil {
		transport = credentials.NewTLS(options.TLS)
	}
	connection, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		// A configuration in DNS could add retries, which charge twice.
		grpc.WithDisableServiceConfig(),
		// Without these pings, calls would go to a peer that has vanished until TCP gives up.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true,
		}),
		// By default it may be two minutes until the service is found again.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			// Otherwise an attempt would last only as long as the backoff: too short for a distant service.
			MinConnectTimeout: 5 * time.Second,
		}),
		// A decision after a quiet time would spend its timeout on a new connection.
		grpc.WithIdleTimeout(0))
	if err != nil {
		return nil, err
	}
	connection.Connect()
	return &Client{options, domain, connection, pb.NewTollkeeperClient(connection)}, nil
}

// Close closes the connections.
func (c *Client) Close() error { return c.connection.Close() }

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
	decisions, _, err := c.decideAll(ctx, "calls[%d].", calls)
	return decisions, err
}

// DecideCall decides one call.
func (c *Client) DecideCall(ctx context.Context, call Call) (Decision, error) {
	decisions, _, err := c.decideAll(ctx, "", []Call{call})
	if err != nil {
		return Decision{}, err
	}
	return decisions[0], nil
}

// decideAll returns the decisions, and the tokens of what they hold. The path of a call is the beginning of its errors.
func (c *Client) decideAll(ctx context.Context, path string, calls []Call) ([]Decision, []string, error) {
	if len(calls) == 0 {
		return nil, nil, nil
	}
	request, err := encode(c.domain, path, calls)
	if err != nil {
		return nil, nil, err
	}
	var response *pb.DecideResponse
	err = c.call(ctx, "decide", func(ctx context.Context) error {
		response, err = c.service.Decide(ctx, request)
		if err == nil && len(response.Verdicts) != len(calls) {
			err = errNotOurs
		}
		return err
	})
	decisions, holds := make([]Decision, len(calls)), make([]string, len(calls))
	for i, call := range calls {
		if err == nil {
			decisions[i], holds[i] = decode(response.Verdicts[i])
		} else {
			decisions[i] = Decision{Failed: true, Err: err}
		}
		if decisions[i].Failed {
			decisions[i].Allowed = c.options.OnFailure(decisions[i].Err, call.descriptors)
		}
	}
	return decisions, holds, nil
}

// call bounds one attempt of a call by the timeout, and reports it.
func (c *Client) call(ctx context.Context, method string, attempt func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	start := time.Now()
	err := attempt(ctx)
	c.options.OnCall(method, time.Since(start), err)
	return err
}
