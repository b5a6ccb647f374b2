package tollkeeper

import (
	"cmp"
	"context"
	"strings"
	"sync"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/protobuf/proto"
)

// Hold is hits that are charged before the work, and replaced by what it has really used:
//
//	hold, err := client.Hold(ctx, 400, tollkeeper.On("user", user))
//	if err != nil {
//		return err
//	}
//	if !hold.Allowed {
//		return errTooMany
//	}
//	defer hold.Close()
//	…
//	err = hold.Use(42)
//
// Its methods may be called from any goroutine.
type Hold struct {
	// Decision about the hold. A hold that is not allowed has nothing to commit.
	Decision
	client *Client
	call   Call
	// ctx carries values such as a trace, and is never cancelled: the work may end because its caller has left.
	ctx context.Context
	// turn is full while a commit or a renewal is under way.
	turn chan struct{}

	mutex sync.Mutex
	// commit has the token, which is empty if nothing is held, and what was used since the last renewal.
	commit *pb.Commit
	// carried is what renewals have said that had no answer.
	carried *pb.Commit
}

// Charge is one counter's part of a commit.
type Charge struct {
	// Outcome is "applied"; "repeated" or "late" if an earlier commit or the end of its time has ended the hold, so that
	// nothing has changed; "unknown" if the store gave no answer, so that the service sends the commit later.
	Outcome string
	// Held and Used are numbers of hits: what was held, and what the commit stands for.
	Held, Used int64
}

// Hold charges the estimate if it fits. On a limit without hold, it stays charged. On one with weights, the rule's
// estimate is held instead, or the estimates by kind of [Client.HoldCall].
func (c *Client) Hold(ctx context.Context, estimate int64, descriptors ...Descriptor) (*Hold, error) {
	if mistake := outOfRange("estimate", estimate); mistake != nil {
		return nil, mistake
	}
	return c.HoldCall(ctx, Take(estimate, descriptors...))
}

// HoldDefault is Hold with the estimate of the rule.
func (c *Client) HoldDefault(ctx context.Context, descriptors ...Descriptor) (*Hold, error) {
	return c.HoldCall(ctx, Call{descriptors: descriptors, mode: pb.Call_TAKE})
}

// HoldCall is Hold for a call of [Take], which may have estimates by kind and an id.
func (c *Client) HoldCall(ctx context.Context, call Call) (*Hold, error) {
	decision, token, err := c.take(ctx, call)
	if err != nil {
		return nil, err
	}
	hold := c.Resume(token)
	hold.Decision, hold.call, hold.ctx = decision, call, context.WithoutCancel(ctx)
	return hold, nil
}

// take decides a call, and returns the token of what it holds. If it lacks a limit, what it holds is given back.
func (c *Client) take(ctx context.Context, call Call) (Decision, string, error) {
	decisions, tokens, err := c.decideAll(ctx, "", []Call{call}, c.kept)
	if err == nil {
		return decisions[0], tokens[0], nil
	}
	if len(tokens) > 0 {
		c.refuse(ctx, tokens[0])
	}
	return Decision{}, "", err
}

// refuse gives back what a call holds that lacks a limit, in the background. Close waits for that.
func (c *Client) refuse(ctx context.Context, token string) {
	if c.begin(&c.commits) == nil {
		go c.giveBack(context.WithoutCancel(ctx), token, 0)
	}
}

// kept ends a request at the timeout alone. If its caller leaves before, what the answer holds is given back when it comes,
// and Close waits for that.
func (c *Client) kept(send asking) asking {
	type result struct {
		answer
		err error
	}
	return func(caller context.Context) (answer, error) {
		came, detached := make(chan result, 1), context.WithoutCancel(caller)
		go func() {
			found, err := c.bounded(send)(detached)
			came <- result{found, err}
		}()
		select {
		case it := <-came:
			return it.answer, it.err
		case <-caller.Done():
		}
		if c.begin(&c.commits) == nil {
			go func() {
				verdicts, token := (<-came).verdicts, ""
				// The request had one call, and Close waits for one commit, whatever the service answers.
				if len(verdicts) > 0 {
					token = verdicts[0].GetHold()
				}
				c.giveBack(detached, token, 0)
			}()
		}
		return answer{}, caller.Err()
	}
}

// Resume returns the hold that another process has made, by its [Hold.Token].
func (c *Client) Resume(token string) *Hold {
	hold := &Hold{client: c, ctx: context.Background(), turn: make(chan struct{}, 1), commit: &pb.Commit{Hold: token}}
	hold.Allowed = true
	return hold
}

// Token names what is held, for another process. It is empty if nothing is held: the limit has no hold, the call was not
// decided by the service, or the hold was committed.
func (h *Hold) Token() (token string) {
	h.set(func() { token = h.commit.Hold })
	return token
}

// Use sets the number of hits that the work has used since the hold or its last renewal. Without it, the estimate stays
// charged.
func (h *Hold) Use(hits int64) error {
	if err := outOfRange("used", hits); err != nil {
		return err
	}
	h.set(func() { h.commit.Used = proto.Uint64(uint64(hits)) })
	return nil
}

// UseKind sets the number that was used of one kind, for limits with weights.
func (h *Hold) UseKind(kind string, number int64) error {
	if err := checkKind("used_by_kind", kind, number); err != nil {
		return err
	}
	h.set(func() {
		if h.commit.UsedByKind == nil {
			h.commit.UsedByKind = map[string]uint64{}
		}
		h.commit.UsedByKind[kind] = uint64(number)
	})
	return nil
}

// End sets how the work ended, such as "503 UF", which is compared with unused_on of the rule. Bytes that are not UTF-8 become
// U+FFFD.
func (h *Hold) End(end string) { h.set(func() { h.commit.End = strings.ToValidUTF8(end, "\ufffd") }) }

func (h *Hold) set(change func()) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	change()
}

// Close commits what is not committed yet. Call it with defer: it is sent also if the work panics, or if its caller has
// left. It takes at most [Options.CommitTimeout].
func (h *Hold) Close() error {
	_, err := h.Commit(h.ctx)
	return err
}

// Commit replaces what is held by what was used. It is repeated while the service does not answer, until
// [Options.CommitTimeout] or the end of the context. After a commit that has succeeded, nothing is sent. The error is a
// [Failure]; [Hold.Close] sends the commit again then.
func (h *Hold) Commit(ctx context.Context) ([]Charge, error) {
	done, err := h.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	commit := h.sum()
	if commit.Hold == "" {
		return nil, nil
	}
	charges, err := h.client.commit(ctx, commit, h.client.begin(&h.client.commits))
	if err == nil {
		h.replace("", nil)
	}
	return charges, err
}

// Release gives back all that is held, now: nothing was used.
func (h *Hold) Release(ctx context.Context) error {
	h.set(func() { h.commit.Used, h.commit.UsedByKind, h.carried = proto.Uint64(0), nil, nil })
	_, err := h.Commit(ctx)
	return err
}

// Renew commits what was used so far, and holds a new estimate, in one step: for work that takes longer, or more, than it
// has held. If it is denied, the work must end. It is not repeated. Without an answer, the first hold stays, OnFailure
// decides, and what was used is added to the next commit.
func (h *Hold) Renew(ctx context.Context, used, estimate int64) (Decision, error) {
	if err := h.Use(used); err != nil {
		return Decision{}, err
	}
	if mistake := outOfRange("estimate", estimate); mistake != nil {
		return Decision{}, mistake
	}
	return h.RenewCall(ctx, Take(estimate, h.call.descriptors...))
}

// RenewCall is Renew for a call of [Take], which may have estimates by kind, after [Hold.Use] or [Hold.UseKind]. It is also
// for a hold of another process, whose descriptors are not known here.
func (h *Hold) RenewCall(ctx context.Context, call Call) (Decision, error) {
	encoded, mistake := call.encode()
	if mistake != nil {
		return Decision{}, mistake
	}
	done, err := h.begin(ctx)
	if err != nil {
		return Decision{Failed: true, Err: err}, nil
	}
	defer done()
	commit, c, calls := h.sum(), h.client, []Call{call}
	if commit.Hold == "" {
		decision, token, err := c.take(ctx, call)
		if err == nil {
			h.replace(token, nil)
		}
		return decision, err
	}
	request := &pb.RenewRequest{Domain: c.domain, Renewals: []*pb.Renewal{{Commit: commit, Call: encoded}}}
	found, end, err := c.ask(ctx, "renew", []*pb.Call{encoded}, c.kept(func(ctx context.Context) (found answer, err error) {
		response, err := c.service.Renew(ctx, request)
		for _, result := range response.GetResults() {
			found.verdicts = append(found.verdicts, result.Verdict)
			found.open = cmp.Or(found.open, errorOfItem(result.Commit.GetError()))
			found.hasCommitted = result.Commit != nil && found.open == nil
		}
		return found, err
	}))
	decisions, tokens, lacking := c.decisions(ctx, "", calls, found.verdicts, end, err)
	token := tokens[0]
	if lacking != nil {
		c.refuse(ctx, token)
		token = ""
	}
	if (err == nil && found.hasCommitted) || tokens[0] != "" {
		h.replace(token, nil)
	} else {
		h.replace(commit.Hold, commit)
	}
	if lacking != nil {
		return Decision{}, lacking
	}
	return decisions[0], nil
}

// begin waits for its turn, and returns what ends it.
func (h *Hold) begin(ctx context.Context) (done func(), err error) {
	select {
	case h.turn <- struct{}{}:
		return func() { <-h.turn }, nil
	case <-ctx.Done():
		return nil, h.client.failureOf(ctx, ctx.Err())
	}
}

// sum returns the commit of all that was used.
func (h *Hold) sum() *pb.Commit {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	sum := proto.CloneOf(h.commit)
	if h.carried != nil && h.carried.Used != nil {
		sum.Used = proto.Uint64(sum.GetUsed() + h.carried.GetUsed())
	}
	for kind, number := range h.carried.GetUsedByKind() {
		if sum.UsedByKind == nil {
			sum.UsedByKind = map[string]uint64{}
		}
		sum.UsedByKind[kind] += number
	}
	return sum
}

// replace begins again with a token, and with what was used before.
func (h *Hold) replace(token string, carried *pb.Commit) {
	h.set(func() { h.commit, h.carried = &pb.Commit{Hold: token, End: carried.GetEnd()}, carried })
}

func chargesOf(result *pb.CommitResult) (charges []Charge) {
	for _, charge := range result.GetCharges() {
		outcome := strings.ToLower(charge.Outcome.String())
		charges = append(charges, Charge{outcome, hitsOf(charge.Held), hitsOf(charge.Used)})
	}
	return charges
}
