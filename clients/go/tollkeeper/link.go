package tollkeeper

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// commitPause is the time before the second attempt of a commit. Each further pause is twice as long.
	commitPause = 100 * time.Millisecond
	quiet       = time.Minute
)

var connecting = grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	// Otherwise an attempt would last only as long as the backoff: too short for a distant service.
	MinConnectTimeout: 2 * time.Second,
}

// link is the connection of a client and of all that is made of it.
type link struct {
	service pb.TollkeeperClient
	target  string
	// close is nil for a connection of the caller.
	close func() error

	denials denials

	// mutex is locked to change what follows.
	mutex sync.Mutex
	// closed is closed by Close.
	closed chan struct{}
	// commits has those under way.
	commits sync.WaitGroup
	// lines has what was logged, by its kind.
	lines map[string]line
	// hasUnsaid is whether a line has a count.
	hasUnsaid atomic.Bool
}

type line struct {
	logged time.Time
	// count is the number of times since then, and write logs them.
	count int
	write func(count int)
}

func dial(target string, secured *tls.Config, options []grpc.DialOption) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if secured != nil {
		transport = credentials.NewTLS(secured)
	}
	connection, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		// A configuration in DNS could add retries, which charge twice.
		grpc.WithDisableServiceConfig(),
		// Without these pings, calls would go to a peer that has vanished until TCP gives up.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true,
		}),
		// By default it may be two minutes until the service is found again.
		grpc.WithConnectParams(connecting),
		// A decision after a quiet time would spend its timeout on a new connection.
		grpc.WithIdleTimeout(0),
	}, options...)...)
	if err == nil {
		connection.Connect()
	}
	return connection, err
}

func newLink(connection grpc.ClientConnInterface, target string, close func() error) *link {
	return &link{
		service: pb.NewTollkeeperClient(connection), target: target, close: close,
		denials: denials{found: map[string]denial{}}, lines: map[string]line{}, closed: make(chan struct{}),
	}
}

func (l *link) errClosed() error {
	select {
	case <-l.closed:
		return ErrClosed
	default:
		return nil
	}
}

// begin counts a commit that is under way, which then must call Done.
func (l *link) begin() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	err := l.errClosed()
	if err == nil {
		l.commits.Add(1)
	}
	return err
}

func (l *link) end() error {
	l.mutex.Lock()
	wasClosed := l.errClosed() != nil
	if !wasClosed {
		close(l.closed)
	}
	l.mutex.Unlock()
	// Commits end by their timeout.
	l.commits.Wait()
	if wasClosed || l.close == nil {
		return nil
	}
	return l.close()
}

// loud logs a line at once, and then at most once a minute for its kind, with the number of times since the last line.
func (l *link) loud(kind string, write func(count int)) {
	l.mutex.Lock()
	found := l.lines[kind]
	l.lines[kind] = line{found.logged, found.count + 1, write}
	l.mutex.Unlock()
	l.hasUnsaid.Store(true)
	l.remind(false)
}

// remind logs the counts whose minute is over; all if the client closes.
func (l *link) remind(closes bool) {
	if !l.hasUnsaid.Load() {
		return
	}
	var due []line
	l.mutex.Lock()
	l.hasUnsaid.Store(false)
	for kind, found := range l.lines {
		switch {
		case found.count == 0:
		case closes || time.Since(found.logged) >= quiet:
			due = append(due, found)
			l.lines[kind] = line{logged: time.Now()}
		default:
			l.hasUnsaid.Store(true)
		}
	}
	l.mutex.Unlock()
	for _, found := range due {
		found.write(found.count)
	}
}

// failed logs calls or commits of the domain that have failed.
func (c *Client) failed(last error, one, many string) {
	c.loud(fmt.Sprintf(one, c.domain), func(count int) {
		what := many
		if count == 1 {
			what = one
		}
		c.logger().Warn(fmt.Sprintf("tollkeeper: %d %s; the last: %v (target %s)", count, fmt.Sprintf(what, c.domain), last, c.target))
	})
}

// mistake logs one of the application, at most once a minute, since its users may cause it.
func (c *Client) mistake(ctx context.Context, err error) {
	c.loud("mistake", func(int) { c.logger().ErrorContext(ctx, "tollkeeper: "+err.Error()) })
}

func (c *Client) logger() *slog.Logger {
	if c.options.Logger == nil {
		return slog.Default()
	}
	return c.options.Logger
}

// commit sends one, and sends it again while there is no answer. Close waits for it, or already does so for its caller.
func (c *Client) commit(ctx context.Context, commit *pb.Commit, isAwaited bool) ([]Charge, error) {
	start := time.Now()
	result, err := c.sendCommit(ctx, &pb.CommitRequest{Domain: c.domain, Commits: []*pb.Commit{commit}}, isAwaited)
	if err == nil {
		err = status.FromProto(result.Error).Err()
	}
	err = c.failureOf(ctx, err)
	c.heard("commit", time.Since(start), err)
	// A caller that has left is no failure of the service, and Close commits its hold.
	if err != nil && endOf(ctx) == nil {
		c.failed(err, "commit of the domain %q failed, and its estimate may count in place of what was used",
			"commits of the domain %q failed, and their estimates may count in place of what was used")
	}
	return chargesOf(result), err
}

func (c *Client) sendCommit(ctx context.Context, request *pb.CommitRequest, isAwaited bool) (*pb.CommitResult, error) {
	if !isAwaited {
		if err := c.begin(); err != nil {
			return nil, err
		}
		defer c.commits.Done()
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.CommitTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	for pause := commitPause; ; pause *= 2 {
		attempt, cancel := context.WithTimeout(ctx, c.options.CommitTimeout/4)
		// In contrast to a decision, a commit may wait for a connection.
		response, err := c.service.Commit(attempt, request, grpc.WaitForReady(true))
		isLate := endOf(attempt) != nil
		cancel()
		switch code := status.Code(err); {
		case code == codes.OK && len(response.Results) == 1:
			return response.Results[0], nil
		case code == codes.OK:
			return nil, errNotOurs
		case code == codes.Unavailable || code == codes.Unknown || code == codes.ResourceExhausted || (code == codes.DeadlineExceeded && isLate):
		default:
			return nil, err
		}
		if time.Until(deadline) <= pause {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}
