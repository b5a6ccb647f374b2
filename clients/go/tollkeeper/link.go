package tollkeeper

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// commitPause is the time before the second attempt of a commit. Each further pause is twice as long.
	commitPause = 100 * time.Millisecond
	quiet       = time.Minute
	// textMax is the number of characters that a log line has of a text of the service.
	textMax = 300
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
	// calls and commits have those under way.
	calls, commits sync.WaitGroup
	// lines has what was logged within a minute, or has a count, by its kind.
	lines map[string]line
	// due is when a minute of a line ends, or nil without lines.
	due atomic.Pointer[time.Time]
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

// begin adds one to the calls or commits under way, which then must call Done.
func (l *link) begin(group *sync.WaitGroup) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	err := l.errClosed()
	if err == nil {
		group.Add(1)
	}
	return err
}

// end waits for commits, and then for the calls that it ends until they are counted: at most some time for each, since
// the answer to a hold that was left may be long in coming.
func (l *link) end(most time.Duration) error {
	l.mutex.Lock()
	wasClosed := l.errClosed() != nil
	if !wasClosed {
		close(l.closed)
	}
	l.mutex.Unlock()
	within(most, &l.commits)
	if wasClosed || l.close == nil {
		return nil
	}
	err := l.close()
	within(most, &l.calls)
	return err
}

// within waits for a group, at most some time.
func within(most time.Duration, group *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(most):
	}
}

// loud logs a line at once, and then at most once a minute for its kind, with the number of times since the last line.
func (l *link) loud(kind string, times int, write func(count int)) { l.count(kind, times, write)() }

// count is loud for what Close waits for, until it is counted: what it returns logs the line.
func (l *link) count(kind string, times int, write func(count int)) (log func()) {
	now := time.Now()
	l.mutex.Lock()
	found := l.lines[kind]
	count, isDue := found.count+times, now.Sub(found.logged) >= quiet
	if isDue {
		l.lines[kind] = line{logged: now}
	} else {
		l.lines[kind] = line{found.logged, count, write}
	}
	if l.due.Load() == nil {
		l.due.Store(new(now.Add(quiet)))
	}
	l.mutex.Unlock()
	return func() {
		if isDue {
			write(count)
		}
		l.remind(false)
	}
}

// remind logs the counts whose minute is over, and forgets lines without a count; if the client closes, it logs all counts.
func (l *link) remind(closes bool) {
	due := l.due.Load()
	if due == nil || (!closes && time.Now().Before(*due)) {
		return
	}
	var said []line
	l.mutex.Lock()
	if now := time.Now(); closes || l.due.Load() == due {
		next := now.Add(quiet)
		for kind, found := range l.lines {
			isOver := now.Sub(found.logged) >= quiet
			switch {
			case found.count > 0 && (isOver || closes):
				said = append(said, found)
				l.lines[kind] = line{logged: now}
			case isOver:
				delete(l.lines, kind)
			case found.logged.Add(quiet).Before(next):
				next = found.logged.Add(quiet)
			}
		}
		// With many domains, a minute ends all the time.
		if soonest := now.Add(time.Second); next.Before(soonest) {
			next = soonest
		}
		l.due.Store(&next)
		if len(l.lines) == 0 {
			l.due.Store(nil)
		}
	}
	l.mutex.Unlock()
	for _, found := range said {
		found.write(found.count)
	}
}

// warn counts calls or commits of the domain, if there are any, and why the last one has failed, if it has. What it returns
// logs them.
func (c *Client) warn(times int, last error, one, many string) (log func()) {
	if times == 0 {
		return func() {}
	}
	return c.count(fmt.Sprintf(one, c.domain), times, func(count int) {
		what := many
		if count == 1 {
			what = one
		}
		what = fmt.Sprintf(what, c.domain)
		if last != nil {
			what += "; the last: " + brief(last)
		}
		c.log(context.Background(), slog.LevelWarn, "%d %s (target %s)", count, what, c.target)
	})
}

// warnUnknown is warn for calls whose domain the service does not have.
func (c *Client) warnUnknown(calls int) (log func()) {
	return c.warn(calls, nil, "call of the domain \"%s\" met no limit, because the service has no such domain",
		"calls of the domain \"%s\" met no limit, because the service has no such domain")
}

// mistake logs one of the application, at most once a minute, since its users may cause it.
func (c *Client) mistake(ctx context.Context, err error) {
	c.loud("mistake", 1, func(int) { c.log(ctx, slog.LevelError, "%v", err) })
}

// log writes a line without characters that could end it, or change how it is shown. If the logger panics, it is lost.
func (c *Client) log(ctx context.Context, level slog.Level, format string, arguments ...any) {
	defer func() { _ = recover() }()
	logger := c.options.Logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.Log(ctx, level, "tollkeeper: "+strings.Map(shown, fmt.Sprintf(format, arguments...)))
}

// shown is a space in place of a control character, a separator of lines, or what changes the direction of a text.
func shown(character rune) rune {
	isDirection := (character >= '\u202a' && character <= '\u202e') || (character >= '\u2066' && character <= '\u2069')
	if unicode.IsControl(character) || character == '\u2028' || character == '\u2029' || isDirection {
		return ' '
	}
	return character
}

// brief is the failure of a call or commit for a log line.
func brief(err error) string {
	found := failure(err, nil)
	found.Message = cut(found.Message)
	return found.Error()
}

// cut shortens a text that may be of the service.
func cut(text string) string {
	count := 0
	for i := range text {
		if count++; count > textMax {
			return text[:i] + "…"
		}
	}
	return text
}

// giveBack ends what has begun: it commits the hits used of a hold, if there is a token.
func (c *Client) giveBack(ctx context.Context, token string, used int64) {
	if token == "" {
		c.commits.Done()
		return
	}
	// The hook hears of its error, and nobody waits for it.
	_, _ = c.commit(ctx, &pb.Commit{Hold: token, Used: proto.Uint64(uint64(used))}, nil)
}

// commit sends one that has begun, and ends it. The error is why it could not begin. Close waits for it, and not for the
// functions of the caller, which may close the client.
func (c *Client) commit(ctx context.Context, commit *pb.Commit, err error) (charges []Charge, _ error) {
	start, done, log := time.Now(), func() {}, func() {}
	if err == nil {
		var result *pb.CommitResult
		result, err = c.sendCommit(ctx, &pb.CommitRequest{Domain: c.domain, Commits: []*pb.Commit{commit}})
		err, charges, done = cmp.Or(err, errorOfItem(result.GetError())), chargesOf(result), c.commits.Done
	}
	err = c.failureOf(ctx, err)
	// A caller that has left is no failure of the service, and Close commits its hold.
	if err != nil && endOf(ctx) == nil {
		log = c.warn(1, err, "commit of the domain \"%s\" failed, and its estimate may count in place of what was used",
			"commits of the domain \"%s\" failed, and their estimates may count in place of what was used")
	}
	done()
	c.heard("commit", time.Since(start), err)
	log()
	return charges, err
}

func (c *Client) sendCommit(ctx context.Context, request *pb.CommitRequest) (*pb.CommitResult, error) {
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
