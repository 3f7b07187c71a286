package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/graylink/graylink/internal/csig"
)

// EndpointOptions describe an Endpoint.
type EndpointOptions struct {
	Interface     int // its number in the namespace of the calling thread
	EtherTypes    csig.EtherTypes
	Format        csig.Format   // of the tags that are sent
	Signals       []csig.Signal // of the tags that are sent, in turns; at least one
	StampPorts    []uint16      // UDP ports of reflectors, this node's and remote ones; at least one
	Authenticated bool          // packets have the format of STAMP with authentication
	Flows         int           // the most tagged flows
	Arrived       int           // the most tags that have arrived and are not fetched yet; older ones give way
}

// Validate returns an error that names the field.
func (o *EndpointOptions) Validate() error {
	if err := o.EtherTypes.Validate(); err != nil {
		return err
	}
	switch {
	case o.Interface < 1:
		return fmt.Errorf("interface %d: the number of an interface is expected", o.Interface)
	case o.EtherTypes.Of(o.Format) == 0:
		return fmt.Errorf("format %v: the profile has no EtherType for it", o.Format)
	case len(o.Signals) == 0 || len(o.Signals) > csig.Signals:
		return fmt.Errorf("%d signals: 1 to %d are expected", len(o.Signals), csig.Signals)
	case len(o.StampPorts) == 0 || len(o.StampPorts) > maxStampPorts:
		return fmt.Errorf("%d STAMP ports: 1 to %d are expected", len(o.StampPorts), maxStampPorts)
	case o.Flows < 1 || o.Flows > maxFlows:
		return fmt.Errorf("%d flows: 1 to %d are expected", o.Flows, maxFlows)
	case o.Arrived < 1 || o.Arrived > maxArrived:
		return fmt.Errorf("%d tags that have arrived: 1 to %d are expected", o.Arrived, maxArrived)
	}
	for _, s := range o.Signals {
		if !s.IsKnown() {
			return fmt.Errorf("%v: a signal with a rule is expected", s)
		}
	}
	return nil
}

// Bounds of EndpointOptions.
const (
	maxStampPorts = 16
	maxFlows      = 1 << 20
	maxArrived    = 1 << 20
)

// Offsets of the sender's sequence number in a reply: RFC 8762, sections 4.3.1 and 4.3.2.
const (
	senderNumberAt              = 24
	senderNumberAtAuthenticated = 48
)

// flowKey is a flow as the programs have it.
type flowKey [keyLen]byte

// probeKey is a packet of a flow: its key and its sequence number.
type probeKey [probeLen]byte

// put writes a flow.
func (k *flowKey) put(from, to netip.AddrPort) {
	*(*[16]byte)(k[keySource:]) = from.Addr().As16()
	*(*[16]byte)(k[keyTarget:]) = to.Addr().As16()
	binary.BigEndian.PutUint16(k[keyPorts:], from.Port())
	binary.BigEndian.PutUint16(k[keyPorts+2:], to.Port())
}

// Endpoint puts tags into the probes of a node's interface, and takes those off with which packets arrive. One goroutine at a
// time may use it.
type Endpoint struct {
	counts, flows, noted, events *ebpf.Map
	sink, source                 *ebpf.Program
	reader                       *ringbuf.Reader
	links                        []io.Closer
	record                       ringbuf.Record
	arrived                      *arrivals
	etherTypes                   csig.EtherTypes
	tagged                       map[flowKey]bool // value: still wanted
}

// OpenEndpoint attaches the programs of an endpoint to an interface of the calling thread's namespace.
func OpenEndpoint(o EndpointOptions) (*Endpoint, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("CSIG endpoint: %w", err)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("eBPF memory limit: %w", err)
	}
	e, err := loadEndpoint(&o)
	if err == nil {
		err = e.attach(o.Interface)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("CSIG endpoint at interface %d: %w", o.Interface, err), e.Close())
	}
	return e, nil
}

// TryEndpoint loads the programs of an endpoint into the kernel and takes them out again, without attaching them. It returns an error if
// that fails.
func TryEndpoint(o EndpointOptions) error {
	o.Interface = 1
	if err := o.Validate(); err != nil {
		return fmt.Errorf("CSIG endpoint: %w", err)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("eBPF memory limit: %w", err)
	}
	e, err := loadEndpoint(&o)
	return errors.Join(err, e.Close())
}

// eventsOctets is the size of the ring buffer: room for 16,384 events between two calls of ReadTags.
const eventsOctets = 1 << 20

// loadEndpoint loads the programs of an endpoint into the kernel. It returns what there is in case of an error.
func loadEndpoint(o *EndpointOptions) (e *Endpoint, err error) {
	e = &Endpoint{arrived: newArrivals(o.Arrived), etherTypes: o.EtherTypes, tagged: map[flowKey]bool{}}
	e.record.RawSample = make([]byte, 0, eventLen)
	if e.counts, err = newCounts(); err != nil {
		return e, err
	}
	for _, m := range []struct {
		at   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&e.flows, ebpf.MapSpec{Name: "csig_flows", Type: ebpf.Hash, KeySize: keyLen, ValueSize: 4, MaxEntries: uint32(o.Flows)}},
		{&e.noted, ebpf.MapSpec{Name: "csig_noted", Type: ebpf.LRUHash, KeySize: probeLen, ValueSize: 4, MaxEntries: uint32(o.Arrived)}},
		{&e.events, ebpf.MapSpec{Name: "csig_events", Type: ebpf.RingBuf, MaxEntries: eventsOctets}},
	} {
		if *m.at, err = ebpf.NewMap(&m.spec); err != nil {
			return e, fmt.Errorf("map %s: %w", m.spec.Name, err)
		}
	}
	if e.reader, err = ringbuf.NewReader(e.events); err != nil {
		return e, fmt.Errorf("map csig_events: %w", err)
	}
	e.reader.SetDeadline(time.Unix(0, 0)) // ReadTags does not wait
	if e.sink, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "csig_sink", Type: ebpf.XDP, License: license, Flags: xdpHasFrags,
		Instructions: assembleSink(o.EtherTypes, sinkMaps{e.counts.FD(), e.events.FD(), e.noted.FD()}, o.StampPorts)}); err != nil {
		return e, fmt.Errorf("sink program: %w", err)
	}
	source := &sourceOptions{etherType: o.EtherTypes.Of(o.Format), format: o.Format, signals: o.Signals, stampPorts: o.StampPorts, senderAt: senderNumberAt}
	if o.Authenticated {
		source.senderAt = senderNumberAtAuthenticated
	}
	if e.source, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "csig_source", Type: ebpf.SchedCLS, License: license,
		Instructions: assembleSource(sourceMaps{e.counts.FD(), e.flows.FD(), e.noted.FD()}, source)}); err != nil {
		return e, fmt.Errorf("source program: %w", err)
	}
	return e, nil
}

func (e *Endpoint) attach(ifindex int) error {
	x, err := link.AttachXDP(link.XDPOptions{Program: e.sink, Interface: ifindex})
	if err != nil {
		return fmt.Errorf("XDP: %w", err)
	}
	e.links = append(e.links, x)
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: e.source, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return fmt.Errorf("TCX, which Linux has from 6.6 on: %w", err)
	}
	e.links = append(e.links, l)
	return nil
}

// TagFlows replaces the flows of which every probe with an odd sequence number is sent with a tag.
func (e *Endpoint) TagFlows(flows []csig.TaggedFlow) error {
	for k := range e.tagged {
		e.tagged[k] = false
	}
	var errs []error
	var added []flowKey
	for _, f := range flows {
		var k flowKey
		k.put(f.From, f.To)
		if _, ok := e.tagged[k]; !ok {
			added = append(added, k)
		}
		e.tagged[k] = true
	}
	for k, wanted := range e.tagged {
		if wanted {
			continue
		}
		if err := e.flows.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("map csig_flows: %w", err))
			continue
		}
		delete(e.tagged, k)
	}
	for _, k := range added {
		if err := e.flows.Put(&k, uint32(1)); err != nil {
			errs = append(errs, fmt.Errorf("map csig_flows, of %d flows: %w", len(flows), err))
			delete(e.tagged, k)
		}
	}
	return errors.Join(errs...)
}

// ReadTags takes in the tags that have arrived since. It must be called after packets were read from sockets, and before
// ArrivedTag. It does not wait, and allocates nothing.
func (e *Endpoint) ReadTags() error {
	for e.reader.AvailableBytes() > 0 {
		if err := e.reader.ReadInto(&e.record); errors.Is(err, os.ErrDeadlineExceeded) {
			continue // the reader says so before it looks for more
		} else if err != nil {
			return fmt.Errorf("tags that have arrived: %w", err)
		}
		if len(e.record.RawSample) >= eventLen {
			e.arrived.add((*[eventLen]byte)(e.record.RawSample))
		}
	}
	return nil
}

// ArrivedTag returns, once, the tag with which a packet arrived that was read from a socket. seq is the first four octets of
// the STAMP packet. ok is false if the packet had no tag, or if it has given way to later ones.
func (e *Endpoint) ArrivedTag(from, to netip.AddrPort, seq uint32) (a csig.ArrivedSignal, ok bool) {
	var k probeKey
	(*flowKey)(k[:keyLen]).put(from, to)
	binary.BigEndian.PutUint32(k[keyNumber:], seq)
	event := e.arrived.take(&k)
	if event == nil {
		return csig.ArrivedSignal{}, false
	}
	a.EtherType = binary.BigEndian.Uint16(event[eventType:])
	a.Malformed = event[eventMalformed] != 0 || event[eventMalformed+1] != 0
	format := csig.Wide
	if a.EtherType == e.etherTypes.Compact {
		format = csig.Compact
	}
	a.Tag.ParseValue(format, event[eventValue:])
	return a, true
}

// EndpointCounts has what the programs of an endpoint have done since they were attached.
type EndpointCounts struct {
	Tagged    uint64 // packets that were sent with a tag
	Stripped  uint64 // frames that arrived with a tag, which was taken off
	Malformed uint64 // of those, frames with two tags
	Lost      uint64 // tags of probes that had no room, because ReadTags was not called for too long
	Failed    uint64 // tags that the kernel refused to take off or to put in
}

// Counts returns what the programs have done.
func (e *Endpoint) Counts() (EndpointCounts, error) {
	var all [maxCounters]uint64
	if err := e.counts.Lookup(uint32(0), &all); err != nil {
		return EndpointCounts{}, fmt.Errorf("map csig_counts: %w", err)
	}
	return EndpointCounts{Tagged: all[countTagged], Stripped: all[countStripped], Malformed: all[countMalformed], Lost: all[countLost], Failed: all[countFailed]}, nil
}

// Close removes the programs from the interface.
func (e *Endpoint) Close() error {
	var errs []error
	for _, l := range e.links {
		errs = append(errs, l.Close())
	}
	if e.reader != nil {
		errs = append(errs, e.reader.Close())
	}
	return errors.Join(append(errs, e.sink.Close(), e.source.Close(), e.counts.Close(), e.flows.Close(), e.noted.Close(), e.events.Close())...)
}
