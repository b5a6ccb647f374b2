package tollkeeper

import (
	"context"
	"fmt"
	"sync"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	commitAttempts = 3
	commitPause    = 100 * time.Millisecond
)

// Hold is hits that are charged before the work, and replaced by what it has really used:
//
//	hold, err := client.Hold(ctx, 400, tollkeeper.On("user", user))
//	if err != nil || !hold.Allowed {
//		return errTooMany
//	}
//	defer hold.Commit()
//	…
//	err = hold.Use(42)
//
// Its methods may be called from any goroutine.
type Hold struct {
	// Decision about the hold. A hold that is not allowed has nothing to commit.
	Decision
	client *Client
	// ctx carries values such as a trace, and is never cancelled: the work may end because its caller has left.
	ctx context.Context

	mutex  sync.Mutex
	commit *pb.Commit
	isDone bool
}

// Hold charges an estimate for work that begins now. All descriptors have room for it, or nothing is held.
//
// For a limit with weights, the rule's estimate is held instead, or the estimates by kind of [Client.HoldCall].
func (c *Client) Hold(ctx context.Context, estimate int64, descriptors ...Descriptor) (*Hold, error) {
	call := Take(estimate, descriptors...)
	call.field = "estimate"
	return c.HoldCall(ctx, call)
}

// HoldDefault is Hold with the estimate of the rule.
func (c *Client) HoldDefault(ctx context.Context, descriptors ...Descriptor) (*Hold, error) {
	return c.HoldCall(ctx, Call{descriptors: descriptors, mode: pb.Call_TAKE})
}

// HoldCall is Hold for a call of [Take], which may have estimates by kind and an id.
func (c *Client) HoldCall(ctx context.Context, call Call) (*Hold, error) {
	decisions, holds, err := c.decideAll(ctx, "", []Call{call})
	if err != nil {
		return nil, err
	}
	commit := &pb.Commit{Hold: holds[0]}
	return &Hold{Decision: decisions[0], client: c, ctx: context.WithoutCancel(ctx), commit: commit}, nil
}

// Use sets the number of hits that the work has used. Without it, the estimate stays charged.
func (h *Hold) Use(hits int64) error {
	if hits < 0 || hits > HitsMax {
		return fmt.Errorf("used: must be from 0 to %d, and is %d", HitsMax, hits)
	}
	used := uint64(hits)
	h.set(func(commit *pb.Commit) { commit.Used = &used })
	return nil
}

// UseKind sets the number that was used of one kind, for limits with weights.
func (h *Hold) UseKind(kind string, number int64) error {
	if number < 0 || number > HitsMax {
		return fmt.Errorf("used_by_kind[%q]: must be from 0 to %d, and is %d", kind, HitsMax, number)
	}
	h.set(func(commit *pb.Commit) {
		if commit.UsedByKind == nil {
			commit.UsedByKind = map[string]uint64{}
		}
		commit.UsedByKind[kind] = uint64(number)
	})
	return nil
}

// End sets how the work ended, such as "503 UF", which is compared with unused_on of the rule.
func (h *Hold) End(end string) { h.set(func(commit *pb.Commit) { commit.End = end }) }

func (h *Hold) set(change func(*pb.Commit)) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	change(h.commit)
}

// Release gives back all that is held, now: nothing was used.
func (h *Hold) Release() {
	h.set(func(commit *pb.Commit) {
		commit.Used, commit.UsedByKind = new(uint64), nil
	})
	h.Commit()
}

// Commit replaces what is held by what was used. Call it with defer: it is sent also if the work panics. A commit that
// has been answered is not sent again. Without an answer it is sent up to three times, and Options.OnCall gets the errors.
func (h *Hold) Commit() {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.isDone || h.commit.Hold == "" {
		return
	}
	request := &pb.CommitRequest{Domain: h.client.domain, Commits: []*pb.Commit{h.commit}}
	for attempt := 1; ; attempt++ {
		isAnswered, isFinal := h.client.commit(h.ctx, request)
		h.isDone = isAnswered
		if isFinal || attempt == commitAttempts {
			return
		}
		time.Sleep(commitPause)
	}
}

// commit makes one attempt. It reports whether the service has answered, and whether another attempt is of no use.
func (c *Client) commit(ctx context.Context, request *pb.CommitRequest) (isAnswered, isFinal bool) {
	err := c.call(ctx, "commit", func(ctx context.Context) error {
		// In contrast to a decision, a commit may wait for a connection.
		response, err := c.service.Commit(ctx, request, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		isAnswered = true
		if len(response.Results) != 1 {
			return errNotOurs
		}
		return status.FromProto(response.Results[0].Error).Err()
	})
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Internal:
		// The service keeps a commit for which the store gave no answer.
		return isAnswered, isAnswered
	default:
		return isAnswered, true
	}
}
