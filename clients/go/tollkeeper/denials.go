package tollkeeper

import (
	"sync"
	"time"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/protobuf/proto"
)

const denialsMax = 10_000

// Callers may send long values. This bounds the memory that they take.
const requestBytesMax = 1 << 10

// denials are those of the service, by the bytes of their requests.
type denials struct {
	mutex sync.Mutex
	found map[string]denial
}

type denial struct {
	decision Decision
	came     time.Time
}

// find returns the denial of an equal request, unless it is older than most, or its call may be made again.
func (d *denials) find(request string, most time.Duration) (Decision, bool) {
	if request == "" {
		return Decision{}, false
	}
	d.mutex.Lock()
	found := d.found[request]
	d.mutex.Unlock()
	age := time.Since(found.came)
	if age >= min(most, found.decision.RetryAfter) {
		return Decision{}, false
	}
	found.decision.age(age, 0)
	return found.decision, true
}

// add forgets all at one more than the most.
func (d *denials) add(request string, decision Decision) {
	if len(request) > requestBytesMax {
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	decision.age(0, 0)
	d.found[request] = denial{decision, time.Now()}
	if len(d.found) > denialsMax {
		clear(d.found)
	}
}

// memorable returns the bytes of a request, if its denial is remembered, and else nothing.
func (c *Client) memorable(request *pb.DecideRequest) string {
	isOn := c.options.RememberDenials > 0 && c.errClosed() == nil && len(request.Calls) == 1 && tooLarge(request.Calls) == nil
	if !isOn || request.Calls[0].Mode != pb.Call_TAKE || request.Calls[0].Id != "" {
		return ""
	}
	// An error is one of sending, too.
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	return string(encoded)
}
