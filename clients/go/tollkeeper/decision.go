package tollkeeper

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	pbstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Decision is whether a call may pass.
type Decision struct {
	Allowed bool
	// Failed: the service gave no answer to this call. Options.OnFailure has decided it, or it is denied since the context
	// of the caller has ended. Err is the [Failure].
	Failed bool
	// Err is also set if the service has refused the call, with OUT_OF_RANGE or INVALID_ARGUMENT. Then the call is denied.
	Err error
	// Limit is nil if no limit applies. A limit of 0 hits admits nothing.
	Limit *Limit
	// Remaining is the number of hits that would still pass; 0 without a limit.
	Remaining int64
	// Reset is the time until the window ends; without a fixed window, until the hits fit or no hit counts any more.
	Reset time.Duration
	// RetryAfter is when a denied call may be made again; 0 if it is allowed, or if the service gave no answer.
	RetryAfter time.Duration
	// Rule is the path of the rule that Limit belongs to.
	Rule string
	// Statuses has one for each descriptor, in their order; of a read, one for each limit of each descriptor.
	Statuses []Status
	// Hits is the number of hits that Part has charged.
	Hits int64
}

// Limit as the rule has it.
type Limit struct {
	// Name is the limit's name, if it has one.
	Name string
	// Hits is the most hits in one window.
	Hits int64
	// Units and Unit are the length of a window, such as 5 and "minute". Unit is empty for a limit of what is in flight.
	Units int
	Unit  string
}

// Status is the state of one descriptor after the call.
type Status struct {
	Allowed bool
	// Descriptor is the index of the descriptor in the call.
	Descriptor int
	Rule       string
	Limit      *Limit
	Remaining  int64
	Reset      time.Duration
	// Used and Held are known only of a read: hits that count, and hits of open holds without a name.
	Used, Held int64
}

// isRefusal is true if the service has refused a call for its size or its form. Otherwise an end user who chooses the number
// of items or a value could pass any limit.
func isRefusal(err error) bool {
	code := status.Code(err)
	return code == codes.OutOfRange || code == codes.InvalidArgument
}

// errorOf returns why a verdict is none.
func errorOf(verdict *pb.Verdict) error {
	switch {
	case verdict.GetError() != nil:
		return failure(errorOfItem(verdict.Error), nil)
	case verdict.GetCode() != pb.Verdict_OK && verdict.GetCode() != pb.Verdict_OVER_LIMIT:
		return failure(status.Error(codes.Unknown, "the verdict is unknown"), nil)
	}
	return nil
}

// errorOfItem is nil without an error. One of code 0 is none that the service sends.
func errorOfItem(encoded *pbstatus.Status) error {
	if encoded != nil && encoded.Code == int32(codes.OK) {
		return status.Error(codes.Unknown, "the error has no code")
	}
	return status.FromProto(encoded).Err()
}

// decode returns the decision, and the token of what is held.
func decode(verdict *pb.Verdict) (Decision, string) {
	if err := errorOf(verdict); err != nil {
		return Decision{Failed: true, Err: err}, ""
	}
	decision := Decision{Allowed: verdict.Code == pb.Verdict_OK, Hits: hitsOf(verdict.Hits)}
	for _, encoded := range verdict.Statuses {
		decision.Statuses = append(decision.Statuses, decodeStatus(encoded))
	}
	decision.summarize()
	return decision, verdict.Hold
}

func decodeStatus(encoded *pb.Status) Status {
	decoded := Status{
		Allowed:    encoded.Code != pb.Verdict_OVER_LIMIT,
		Descriptor: intOf(encoded.DescriptorIndex),
		Rule:       encoded.Rule,
		Remaining:  hitsOf(encoded.LimitRemaining),
		Reset:      max(0, encoded.DurationUntilReset.AsDuration()),
		Used:       hitsOf(encoded.GetUsed()),
		Held:       hitsOf(encoded.GetHeld()),
	}
	if limit := encoded.CurrentLimit; limit != nil {
		decoded.Limit = &Limit{Name: limit.Name, Hits: hitsOf(limit.RequestsPerUnit), Units: intOf(limit.UnitMultiplier)}
		if limit.Unit != pb.Limit_UNKNOWN {
			decoded.Limit.Unit = strings.ToLower(limit.Unit.String())
		}
	}
	return decoded
}

// hitsOf and intOf clamp a number, also one that the service never sends.
func hitsOf(number uint64) int64 { return int64(min(number, uint64(HitsMax))) }

func intOf(number uint32) int { return int(min(number, math.MaxInt32)) }

// summarize shows, of a denied call, the last status that is over its limit, and else the first with the fewest
// remaining hits, as the headers of the service do.
func (d *Decision) summarize() {
	var shown *Status
	for i := range d.Statuses {
		status := &d.Statuses[i]
		if status.Limit == nil {
			continue
		}
		isOver := !d.Allowed && !status.Allowed
		if isOver {
			d.RetryAfter = max(d.RetryAfter, status.Reset, time.Second)
		}
		if shown == nil || isOver || (status.Remaining < shown.Remaining && (d.Allowed || shown.Allowed)) {
			shown = status
		}
	}
	if !d.Allowed {
		d.RetryAfter = max(d.RetryAfter, time.Second)
	}
	switch {
	case shown != nil:
		d.Limit, d.Remaining, d.Reset, d.Rule = shown.Limit, shown.Remaining, shown.Reset, shown.Rule
	case len(d.Statuses) > 0:
		d.Rule = d.Statuses[0].Rule
	}
}

// age turns a copy of a decision into what it is after some time, if nothing else changes but that some hits have room again.
func (d *Decision) age(elapsed time.Duration, credit int64) {
	statuses := make([]Status, len(d.Statuses))
	copy(statuses, d.Statuses)
	d.Statuses = statuses
	for i := range statuses {
		status := &statuses[i]
		status.Reset = max(0, status.Reset-elapsed)
		if status.Limit != nil {
			status.Remaining += credit
		}
	}
	d.Reset = max(0, d.Reset-elapsed)
	if d.Limit != nil {
		d.Remaining += credit
	}
	if d.RetryAfter > 0 {
		d.RetryAfter = max(time.Second, d.RetryAfter-elapsed)
	}
}

// StatusCode is what to answer with: 200 if the call may pass, 429 if it is denied, 503 if it is denied since the service
// gave no answer.
func (d *Decision) StatusCode() int {
	switch {
	case d.Allowed:
		return http.StatusOK
	case d.Failed:
		return http.StatusServiceUnavailable
	}
	return http.StatusTooManyRequests
}

// Headers for a response of your own: the RateLimit headers if a limit applies, and Retry-After if the service has denied
// the call. Times are in seconds.
func (d *Decision) Headers() map[string]string {
	headers := map[string]string{}
	if d.Limit != nil {
		headers["RateLimit-Limit"] = strconv.FormatInt(d.Limit.Hits, 10)
		headers["RateLimit-Remaining"] = strconv.FormatInt(d.Remaining, 10)
		headers["RateLimit-Reset"] = seconds(d.Reset)
	}
	if d.RetryAfter > 0 {
		headers["Retry-After"] = seconds(d.RetryAfter)
	}
	return headers
}

// seconds rounds up, since a call that comes too early is denied.
func seconds(duration time.Duration) string {
	whole := int64(duration / time.Second)
	if duration%time.Second > 0 {
		whole++
	}
	return strconv.FormatInt(whole, 10)
}
