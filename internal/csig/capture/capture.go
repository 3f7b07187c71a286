// Package capture reads the in-band signals of captured frames. Its rules:
//
//  1. A frame without a tag of the profile's EtherTypes is not looked at.
//  2. A tag is used only if the packet behind it is of a registered sender. Others are counted as strangers.
//  3. A STAMP probe belongs to its flow, by the addresses and the sender's UDP port, and a reply to the reverse direction of it. All other
//     packets are data, which is observed by the pair of NICs.
//  4. Windows follow the times of the capture. A time that goes back counts as the last one.
//  5. Memory is bounded: by observe.Options, and by the addresses that are remembered. A flow without a tag for ten minutes is forgotten.
package capture

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/observe"
)

// forgetAfter is how long a flow is kept without a tag.
const forgetAfter = int64(10 * time.Minute)

// maxAddresses bounds the addresses whose NICs are remembered. Beyond it all are looked up anew.
const maxAddresses = 1 << 14

// FlowNumbers is how many source ports there are for flows from the first one on: internal/probe has four classes of 64 flows.
const FlowNumbers = 256

// Options are what a Reader needs to know of the fabric.
type Options struct {
	Observe observe.Options
	// NICOf returns the NIC of an address, or "" if the address is not registered.
	NICOf func(netip.Addr) string
	// StampPort is the UDP port of the reflectors, and SourcePort that of flow 0 of the senders.
	StampPort, SourcePort uint16
}

// Reader reads the tags of frames that were captured at several places, and sums up what they say of flows. It is safe for concurrent use.
type Reader struct {
	options Options
	profile *csig.Profile
	hash    string

	mu       sync.Mutex
	observer *observe.Observer
	now      int64 // time of the latest frame
	flows    map[flowKey]*flow
	owners   map[netip.Addr]owner
	places   []*Place
	found    csig.Found // of the frame that is read
	ends     ends
}

// flowKey identifies a flow. Data has the number of no probe.
type flowKey struct {
	src, dst string
	number   int
}

// dataNumber stands for packets that are no probes.
const dataNumber = -1

// flow is observed in up to two directions.
type flow struct {
	directions [2]*observe.Flow
	latest     int64
}

// Place is where frames are captured: a NIC, or a file.
type Place struct {
	reader  *Reader
	name    string
	dropped observe.DropCounts
}

// NewReader returns a reader of tags by a profile.
func NewReader(p *csig.Profile, o Options) *Reader {
	return &Reader{options: o, profile: p, hash: p.Hash(), observer: observe.New(p, o.Observe), flows: map[flowKey]*flow{},
		owners: map[netip.Addr]owner{}}
}

// AddPlace returns the place of capture with a name, by which tags that are not used are counted: that of a NIC, or of a file. Interfaces
// of one NIC are one place.
func (r *Reader) AddPlace(nic string) *Place {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.places, func(p *Place) bool { return p.name == nic }); i >= 0 {
		return r.places[i]
	}
	p := &Place{reader: r, name: nic}
	r.places = append(r.places, p)
	return p
}

// Close ends a capture at the place. What was counted there is no longer part of the statistics.
func (p *Place) Close() {
	r := p.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places = slices.DeleteFunc(r.places, func(q *Place) bool { return q == p })
}

// Configure replaces what the reader knows of the fabric, as Options have it. What flows have said stays.
func (r *Reader) Configure(nicOf func(netip.Addr) string, stampPort, sourcePort uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.options.NICOf, r.options.StampPort, r.options.SourcePort = nicOf, stampPort, sourcePort
	clear(r.owners)
}

// Take reads a frame, which begins with the addresses, at the time of its arrival in nanoseconds since 1970. It keeps no reference to the
// frame.
func (p *Place) Take(frame []byte, at int64) {
	r := p.reader
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = max(r.now, at)
	switch r.profile.EtherTypes.ParseInto(frame, &r.found) {
	case csig.Malformed:
		p.dropped[observe.Malformed]++
	case csig.Tagged:
		if why := r.takeTagged(frame[r.found.Offset+int(r.found.Format)+typeLen:]); why != observe.Used {
			p.dropped[why]++
		}
	}
}

// takeTagged takes the tag that was found before a packet, and returns why it is not used.
func (r *Reader) takeTagged(packet []byte) observe.Reason {
	if !r.ends.parse(packet, r.found.Inner) {
		return observe.Stranger
	}
	src, registered := r.nicOf(r.ends.src)
	if !registered {
		return observe.Stranger
	}
	dst, registered := r.nicOf(r.ends.dst)
	if !registered {
		dst = r.textOf(r.ends.dst)
	}
	key, direction := flowKey{src, dst, dataNumber}, 0
	if r.ends.isUDP {
		if n, ok := r.numberOf(r.ends.srcPort, r.ends.dstPort); ok {
			key.number = n
		} else if n, ok := r.numberOf(r.ends.dstPort, r.ends.srcPort); ok {
			key, direction = flowKey{dst, src, n}, 1
		}
	}
	f := r.flows[key]
	if f == nil {
		f = &flow{}
	}
	if f.directions[direction] == nil {
		d := r.observer.NewFlow()
		if d == nil {
			return observe.Limit
		}
		f.directions[direction] = d
		r.flows[key] = f
	}
	f.latest = r.now
	return f.directions[direction].Add(&r.found.Tag, r.now)
}

// numberOf returns the number of a probe's flow by the ports of its sender and its reflector.
func (r *Reader) numberOf(sender, reflector uint16) (int, bool) {
	n := int(sender) - int(r.options.SourcePort)
	return n, reflector == r.options.StampPort && n >= 0 && n < FlowNumbers
}

// owner is what is remembered of an address.
type owner struct {
	name       string // of the NIC; otherwise the address as text, or "" if that was not needed yet
	registered bool
}

// nicOf returns the NIC of an address. registered is false if the address has none.
func (r *Reader) nicOf(a netip.Addr) (name string, registered bool) {
	o, ok := r.owners[a]
	if !ok {
		if len(r.owners) >= maxAddresses {
			clear(r.owners)
		}
		o.name = r.options.NICOf(a)
		o.registered = o.name != ""
		r.owners[a] = o
	}
	return o.name, o.registered
}

// textOf returns an address without a NIC as text, which is made once.
func (r *Reader) textOf(a netip.Addr) string {
	o := r.owners[a]
	if o.name == "" {
		o.name = a.String()
		r.owners[a] = o
	}
	return o.name
}

// Stats returns what the tags said up to a time, or up to the latest frame if that is later.
func (r *Reader) Stats(now int64) *observe.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = max(r.now, now)
	s := &observe.Stats{ProfileHash: r.hash, DownPorts: r.observer.DownPorts(r.now)}
	for _, p := range r.places {
		s.NICs = append(s.NICs, observe.NICStats{NIC: p.name, Dropped: p.dropped})
	}
	for key, f := range r.flows {
		if r.now-f.latest > forgetAfter {
			r.forget(key, f)
			continue
		}
		x := observe.FlowStats{Src: key.src, Dst: key.dst, Number: key.number}
		if key.number == dataNumber {
			x.Number, x.Data = 0, true
		}
		for i, d := range f.directions {
			x.Directions[i].Fill(d, r.now)
		}
		s.Flows = append(s.Flows, x)
	}
	slices.SortFunc(s.Flows, compareFlows)
	return s
}

// forget ends a flow.
func (r *Reader) forget(key flowKey, f *flow) {
	for _, d := range f.directions {
		if d != nil {
			d.Close()
		}
	}
	delete(r.flows, key)
}

// compareFlows orders flows by their NICs and numbers, data first.
func compareFlows(a, b observe.FlowStats) int {
	if c := strings.Compare(a.Src, b.Src); c != 0 {
		return c
	}
	if c := strings.Compare(a.Dst, b.Dst); c != 0 {
		return c
	}
	if a.Data != b.Data {
		if a.Data {
			return -1
		}
		return 1
	}
	return a.Number - b.Number
}
