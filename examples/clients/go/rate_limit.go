package main

import (
	"context"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// allowedOnFailure is the decision when the service does not answer: true fails open, false closed.
const allowedOnFailure = true

// Limiter calls a rate-limit service. Make one for the process: its goroutines share its connections.
type Limiter struct {
	connection *grpc.ClientConn
	service    rls.RateLimitServiceClient
	deadline   time.Duration
}

// Entry is one key and value of a descriptor, whose entries are in the order of the rules.
type Entry struct{ Key, Value string }

// Decision is whether the request may pass.
type Decision struct {
	Allowed bool
	// Limit, Remaining and Reset belong to the descriptor; Limit is 0 if no rule limits it.
	Limit, Remaining uint32
	Reset            time.Duration
	// Headers are for the response to your own client; the service's --headers selects them.
	Headers map[string]string
	// Failure is why the service did not decide, or codes.OK.
	Failure codes.Code
}

// NewLimiter connects to host:port, or unix:path, when the first request comes.
func NewLimiter(address string, deadline time.Duration) (*Limiter, error) {
	connection, err := grpc.NewClient(address,
		// With TLS: credentials.NewTLS(&tls.Config{…}).
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Uses every address of the name, so that all replicas of a headless Service get calls.
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		// Notices a peer that disappeared without closing the connection.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		// By default it may be two minutes until the service is found again.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			// Otherwise an attempt to connect would last only as long as the backoff.
			MinConnectTimeout: 2 * time.Second,
		}))
	if err != nil {
		return nil, err
	}
	return &Limiter{connection, rls.NewRateLimitServiceClient(connection), deadline}, nil
}

// Allow charges one hit to the descriptor, and returns within the deadline, whatever the service does.
func (l *Limiter) Allow(ctx context.Context, domain string, entries ...Entry) Decision {
	ctx, cancel := context.WithTimeout(ctx, l.deadline)
	defer cancel()
	descriptor := &ratelimit.RateLimitDescriptor{}
	for _, entry := range entries {
		descriptor.Entries = append(descriptor.Entries,
			&ratelimit.RateLimitDescriptor_Entry{Key: entry.Key, Value: entry.Value})
	}
	response, err := l.service.ShouldRateLimit(ctx, &rls.RateLimitRequest{
		Domain:      domain,
		Descriptors: []*ratelimit.RateLimitDescriptor{descriptor},
	})
	if err != nil {
		return Decision{Allowed: allowedOnFailure, Failure: status.Code(err)}
	}
	decision := Decision{
		Allowed: response.OverallCode != rls.RateLimitResponse_OVER_LIMIT,
		Headers: map[string]string{},
	}
	for _, header := range response.ResponseHeadersToAdd {
		decision.Headers[header.Key] = header.Value
	}
	// One status for each descriptor, in their order.
	for _, status := range response.Statuses {
		decision.Limit = status.GetCurrentLimit().GetRequestsPerUnit()
		decision.Remaining = status.LimitRemaining
		decision.Reset = status.GetDurationUntilReset().AsDuration()
	}
	return decision
}

// Close closes the connections.
func (l *Limiter) Close() error { return l.connection.Close() }
