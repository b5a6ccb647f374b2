package tollkeeper

import (
	"fmt"
	"unicode/utf8"

	pb "github.com/tollkeeper/tollkeeper/clients/go/tollkeeperv1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// HitsMax is the largest number of hits: 2^53 - 1.
const HitsMax = 1<<53 - 1

const idBytesMax = 128

// callsMax is the largest number of calls in one request.
const callsMax = 1000

// Entry is a key and a value of a descriptor. A value may be any bytes.
type Entry struct{ Key, Value string }

// Descriptor says what is limited: entries in the order of the rules. [On] makes it.
type Descriptor []Entry

// On is a descriptor of one entry.
func On(key, value string) Descriptor { return Descriptor{{key, value}} }

// And returns the descriptor with one more entry at its end.
func (d Descriptor) And(key, value string) Descriptor {
	return append(d[:len(d):len(d)], Entry{key, value})
}

// Call is what [Client.DecideCall], [Client.DecideAll] and [Client.HoldCall] take. All of its descriptors pass, or none.
type Call struct {
	descriptors []Descriptor
	mode        pb.Call_Mode
	// hits is nil where the service chooses the number.
	hits     *int64
	isRefund bool
	// field is the name of hits in errors.
	field      string
	hitsByKind map[string]int64
	id         string
}

// Take charges hits if all of them fit, or else nothing. With 0 hits it is Check.
func Take(hits int64, descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_TAKE, hits: &hits, field: "hits"}
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
	return Call{descriptors: descriptors, mode: pb.Call_DEBIT, hits: &hits, field: "hits"}
}

// Part charges as many of the hits as fit. [Decision.Hits] is their number.
func Part(hits int64, descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_PART, hits: &hits, field: "hits"}
}

// Refund gives hits back.
func Refund(hits int64, descriptors ...Descriptor) Call {
	return Call{descriptors: descriptors, mode: pb.Call_TAKE, hits: &hits, isRefund: true, field: "hits"}
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
		return nil, fmt.Errorf("calls: must be at most %d, and are %d", callsMax, len(calls))
	}
	request := &pb.DecideRequest{Domain: domain, Calls: make([]*pb.Call, len(calls))}
	for i, call := range calls {
		encoded, err := call.encode()
		if err != nil {
			if path != "" {
				err = fmt.Errorf(path+"%w", i, err)
			}
			return nil, err
		}
		request.Calls[i] = encoded
	}
	return request, nil
}

func (c Call) encode() (*pb.Call, error) {
	if c.hits != nil && (*c.hits < 0 || *c.hits > HitsMax) {
		return nil, fmt.Errorf("%s: must be from 0 to %d, and is %d", c.field, HitsMax, *c.hits)
	}
	if len(c.id) > idBytesMax || !utf8.ValidString(c.id) {
		return nil, fmt.Errorf("id: must be UTF-8 of at most %d bytes, and has %d", idBytesMax, len(c.id))
	}
	if len(c.descriptors) == 0 {
		return nil, fmt.Errorf("descriptors: must be at least 1")
	}
	call := &pb.Call{Mode: c.mode, Id: c.id, HitsByKind: make(map[string]uint64, len(c.hitsByKind))}
	for kind, hits := range c.hitsByKind {
		if hits < 0 || hits > HitsMax {
			return nil, fmt.Errorf("hits_by_kind[%q]: must be from 0 to %d, and is %d", kind, HitsMax, hits)
		}
		call.HitsByKind[kind] = uint64(hits)
	}
	if c.hits != nil && !c.isRefund {
		call.Hits = proto.Uint64(uint64(*c.hits))
	}
	for i, descriptor := range c.descriptors {
		if len(descriptor) == 0 {
			return nil, fmt.Errorf("descriptors[%d].entries: must be at least 1", i)
		}
		encoded := &pb.Descriptor{IsNegativeHits: c.isRefund}
		if c.isRefund {
			encoded.HitsAddend = wrapperspb.UInt64(uint64(*c.hits))
		}
		for j, entry := range descriptor {
			if entry.Key == "" {
				return nil, fmt.Errorf("descriptors[%d].entries[%d].key: must not be empty", i, j)
			}
			encoded.Entries = append(encoded.Entries, &pb.Descriptor_Entry{Key: []byte(entry.Key), Value: []byte(entry.Value)})
		}
		call.Descriptors = append(call.Descriptors, encoded)
	}
	return call, nil
}
