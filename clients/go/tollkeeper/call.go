package tollkeeper

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// HitsMax is the largest number of hits: 2^53 - 1.
const HitsMax int64 = 1<<53 - 1

const idBytesMax = 128

// callsMax is the largest number of calls in one request.
const callsMax = 1000

// entriesBytesMax bounds the keys and values of a request. End users may send long values, and more would take longer than
// the timeout, or be refused by the service, which takes 4 MiB.
const entriesBytesMax = 512 << 10

// Entry is a key and a value of a descriptor. A value may be any bytes.
type Entry struct{ Key, Value string }

// Descriptor says what is limited: entries in the order of the rules. [On] makes it.
type Descriptor struct {
	Entries []Entry
	limit   *Limit
}

// On is a descriptor of one entry.
func On(key, value string) Descriptor { return Descriptor{Entries: []Entry{{key, value}}} }

// And returns the descriptor with one more entry at its end.
func (d Descriptor) And(key, value string) Descriptor {
	d.Entries = append(d.Entries[:len(d.Entries):len(d.Entries)], Entry{key, value})
	return d
}

// WithLimit returns the descriptor with a limit of the caller's own, in place of the one of the rules. Its Name does not
// count, and Units of 0 are 1.
func (d Descriptor) WithLimit(limit Limit) Descriptor {
	d.limit = &limit
	return d
}

// keys shows the descriptor without its values, such as "path|user".
func (d Descriptor) keys() string {
	var keys []string
	for _, entry := range d.Entries {
		keys = append(keys, entry.Key)
	}
	return strings.Join(keys, "|")
}

// Call is what [Client.DecideCall], [Client.DecideAll] and [Client.HoldCall] take. All of its descriptors pass, or none.
type Call struct {
	descriptors []Descriptor
	mode        pb.Call_Mode
	// hits is nil where the service chooses the number.
	hits       *int64
	isRefund   bool
	hitsByKind map[string]int64
	id         string
}

// Take charges hits if all of them fit, or else nothing. With 0 hits it is Check.
func Take(hits int64, descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_TAKE, hits: &hits}
}

// Check charges nothing, and answers as for one hit.
func Check(descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_CHECK}
}

// Read charges nothing and denies nothing.
func Read(descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_READ}
}

// Debit charges hits in any case.
func Debit(hits int64, descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_DEBIT, hits: &hits}
}

// Part charges as many of the hits as fit. [Decision.Hits] is their number.
func Part(hits int64, descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_PART, hits: &hits}
}

// Refund gives hits back.
func Refund(hits int64, descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_TAKE, hits: &hits, isRefund: true}
}

// WithHitsByKind returns the call with estimates by kind, for [Client.HoldCall] on limits with weights.
func (c Call) WithHitsByKind(estimates map[string]int64) Call {
	c.hitsByKind = estimates
	return c
}

// WithID returns the call with an id: the same call is charged once, also if it is repeated within 60 s.
func (c Call) WithID(id string) Call {
	c.id = id
	return c
}

func encode(domain, path string, calls []Call) (*pb.DecideRequest, error) {
	if len(calls) > callsMax {
		return nil, mistake("calls", "must be at most %d, and are %d", callsMax, len(calls))
	}
	request := &pb.DecideRequest{Domain: domain, Calls: make([]*pb.Call, len(calls))}
	for i, call := range calls {
		encoded, err := call.encode()
		if err != nil {
			return nil, err.below(path, i)
		}
		request.Calls[i] = encoded
	}
	return request, nil
}

// tooLarge is why calls are denied without a request, or nil.
func tooLarge(calls []*pb.Call) error {
	bytes := 0
	for _, call := range calls {
		for _, descriptor := range call.Descriptors {
			for _, entry := range descriptor.Entries {
				bytes += len(entry.Key) + len(entry.Value)
			}
		}
	}
	if bytes <= entriesBytesMax {
		return nil
	}
	return status.Errorf(codes.OutOfRange, "keys and values must have at most %d bytes, and have %d", entriesBytesMax, bytes)
}

func (c Call) encode() (*pb.Call, *ArgumentError) {
	if c.hits != nil {
		if err := outOfRange("hits", *c.hits); err != nil {
			return nil, err
		}
	}
	if len(c.id) > idBytesMax || !utf8.ValidString(c.id) {
		return nil, mistake("id", "must be UTF-8 of at most %d bytes, and has %d", idBytesMax, len(c.id))
	}
	if len(c.descriptors) == 0 {
		return nil, mistake("descriptors", "must have at least 1 item")
	}
	call := &pb.Call{Mode: c.mode, Id: c.id, HitsByKind: make(map[string]uint64, len(c.hitsByKind))}
	for kind, hits := range c.hitsByKind {
		if err := checkKind("hits_by_kind", kind, hits); err != nil {
			return nil, err
		}
		call.HitsByKind[kind] = uint64(hits)
	}
	if c.hits != nil && !c.isRefund {
		call.Hits = proto.Uint64(uint64(*c.hits))
	}
	for i, descriptor := range c.descriptors {
		encoded, err := descriptor.encode()
		if err != nil {
			err.below("descriptors[%d].", i)
			return nil, err
		}
		if c.isRefund {
			encoded.IsNegativeHits, encoded.HitsAddend = true, wrapperspb.UInt64(uint64(*c.hits))
		}
		call.Descriptors = append(call.Descriptors, encoded)
	}
	return call, nil
}

func (d Descriptor) encode() (*pb.Descriptor, *ArgumentError) {
	if len(d.Entries) == 0 {
		return nil, mistake("entries", "must have at least 1 item")
	}
	encoded := &pb.Descriptor{}
	for i, entry := range d.Entries {
		if entry.Key == "" {
			return nil, mistake(fmt.Sprintf("entries[%d].key", i), "must not be empty")
		}
		encoded.Entries = append(encoded.Entries, &pb.Descriptor_Entry{Key: []byte(entry.Key), Value: []byte(entry.Value)})
	}
	if d.limit == nil {
		return encoded, nil
	}
	unit, isKnown := pb.Limit_Unit_value[strings.ToUpper(d.limit.Unit)]
	if !isKnown || unit == 0 {
		return nil, mistake("limit.unit", "must be second, minute, hour, day, week, month or year, and is %q", d.limit.Unit)
	}
	if d.limit.Hits < 0 || d.limit.Hits > math.MaxUint32 {
		return nil, mistake("limit.hits", "must be from 0 to %d, and is %d", uint32(math.MaxUint32), d.limit.Hits)
	}
	if d.limit.Units < 0 || int64(d.limit.Units) > math.MaxUint32 {
		return nil, mistake("limit.units", "must be from 0 to %d, and is %d", uint32(math.MaxUint32), d.limit.Units)
	}
	encoded.Limit = &pb.Descriptor_Override{
		RequestsPerUnit: uint32(d.limit.Hits),
		Unit:            pb.Limit_Unit(unit),
		UnitMultiplier:  wrapperspb.UInt32(uint32(max(d.limit.Units, 1))),
	}
	return encoded, nil
}
