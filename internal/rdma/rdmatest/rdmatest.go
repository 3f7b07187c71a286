// Package rdmatest is a fabric of RDMA devices in memory, for tests of packages that use package rdma. Its devices can
// be removed, brought down and made to fail. A port of InfiniBand has a LID, and drops what a channel adapter would drop:
// packets for another LID or GID, or of another partition.
package rdmatest

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/unix"
)

// Fabric joins devices. Several goroutines may call its methods.
type Fabric struct {
	mu      sync.Mutex
	devices map[string]*Device
	nextQPN uint32
	nextAH  uint64
	now     func() int64 // returns the time of stamps, Unix nanoseconds
}

// New makes a fabric without devices. now returns the time of stamps.
func New(now func() int64) *Fabric {
	return &Fabric{devices: map[string]*Device{}, nextQPN: 16, nextAH: 1, now: now}
}

// Device represents a device with one port.
type Device struct {
	f        *Fabric
	host     string
	name     string
	gids     []rdma.GID
	ib       bool   // its link layer is InfiniBand
	lid      uint16 // of an InfiniBand port; 0 if it has none
	pkeys    []uint16
	headless bool // it does not write global headers
	active   bool
	present  bool
	failOpen syscall.Errno
	failAH   syscall.Errno
	qkeyViol uint32
	queues   []*queue
	lose     func(payload []byte) bool
	hardware uint64 // rate of its clock in kHz; 0: it has none
	handles  int
}

// AddDevice adds a device to a host. Its table has entries of RoCE v2, from index 0.
func (f *Fabric) AddDevice(host, name string, gids ...string) *Device {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := &Device{f: f, host: host, name: name, active: true, present: true, pkeys: []uint16{rdma.DefaultPKey}}
	f.devices[host+"/"+name] = d
	for i, g := range gids {
		d.gids = append(d.gids, rdma.GID{Index: i, Type: rdma.GIDRoCEv2, Addr: rdma.CanonicalGID(netip.MustParseAddr(g))})
	}
	return d
}

// AddInfiniBandDevice adds a device whose port is one of InfiniBand, with a LID and its first GID.
func (f *Fabric) AddInfiniBandDevice(host, name string, lid uint16, gid string) *Device {
	d := f.AddDevice(host, name)
	d.withLock(func() {
		d.ib, d.lid = true, lid
		d.gids = []rdma.GID{{Type: rdma.GIDInfiniBand, Addr: netip.MustParseAddr(gid)}}
	})
	return d
}

// SetLID gives the port another LID, as a subnet manager does. If deaf is true, there is no event.
func (d *Device) SetLID(lid uint16, deaf bool) {
	d.withLock(func() {
		d.lid = lid
		if !deaf {
			d.postEvent(rdma.EventTables)
		}
	})
}

// SetPKeys replaces the table of P_Keys, for queue pairs that are opened from now on.
func (d *Device) SetPKeys(table ...uint16) { d.withLock(func() { d.pkeys = table }) }

// SetHeadless makes the device write no global headers before payloads. What is in their place is not valid then.
func (d *Device) SetHeadless(headless bool) { d.withLock(func() { d.headless = headless }) }

// Targets returns where the open address handles lead, in the order in which they were made.
func (d *Device) Targets() (out []rdma.Target) {
	d.withLock(func() {
		for _, q := range d.queues {
			for _, ah := range slices.Sorted(maps.Keys(q.handles)) {
				out = append(out, q.handles[ah])
			}
		}
	})
	return out
}

func (d *Device) withLock(change func()) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	change()
}

// SetGIDs replaces the GID table.
func (d *Device) SetGIDs(table ...rdma.GID) {
	d.withLock(func() { d.gids = table; d.postEvent(rdma.EventTables) })
}

// SetActive brings the port up or down.
func (d *Device) SetActive(up bool) {
	d.withLock(func() {
		d.active = up
		e := rdma.EventPortDown
		if up {
			e = rdma.EventPortUp
		}
		d.postEvent(e)
	})
}

// SetPresent removes the device, or brings it back. Programs that have it open get no event.
func (d *Device) SetPresent(there bool) { d.withLock(func() { d.present = there }) }

// FailOpen makes queue pairs fail to open with an error. With 0, they open again.
func (d *Device) FailOpen(e syscall.Errno) { d.withLock(func() { d.failOpen = e }) }

// FailAH makes address handles fail with an error. With 0, they are made again.
func (d *Device) FailAH(e syscall.Errno) { d.withLock(func() { d.failAH = e }) }

// FailQueues brings all queue pairs into their error state. If deaf is true, there is no event.
func (d *Device) FailQueues(deaf bool) {
	d.withLock(func() {
		for _, q := range d.queues {
			q.state = 6
		}
		if !deaf {
			d.postEvent(rdma.EventQueueFatal)
		}
	})
}

// SetLoss sets the function that decides which packets of the device are lost. With nil, none are.
func (d *Device) SetLoss(lose func(payload []byte) bool) { d.withLock(func() { d.lose = lose }) }

// SetClockRate gives the device a clock with a rate in kHz, for queue pairs that are opened from now on.
func (d *Device) SetClockRate(kilohertz uint64) { d.withLock(func() { d.hardware = kilohertz }) }

// HandleCount returns the number of address handles.
func (d *Device) HandleCount() (n int) {
	d.withLock(func() { n = d.handles })
	return n
}

// QueueCount returns the number of open queue pairs.
func (d *Device) QueueCount() (n int) {
	d.withLock(func() { n = len(d.queues) })
	return n
}

func (d *Device) postEvent(e rdma.EventKind) {
	for _, q := range d.queues {
		q.events = append(q.events, e)
	}
}

// HostVerbs returns the verbs library of one host.
func (f *Fabric) HostVerbs(name string) rdma.Verbs { return host{f, name} }

type host struct {
	f    *Fabric
	name string
}

func (h host) presentDevice(name string) *Device {
	d := h.f.devices[h.name+"/"+name]
	if d == nil || !d.present {
		return nil
	}
	return d
}

func (h host) Devices() ([]string, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	var out []string
	for _, d := range h.f.devices {
		if d.host == h.name && d.present {
			out = append(out, d.name)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (h host) GIDs(device string, port int) ([]rdma.GID, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	d := h.presentDevice(device)
	if d == nil {
		return nil, &rdma.VerbsError{Device: device, Port: port, Call: "read the GID table", Errno: syscall.ENODEV}
	}
	return slices.Clone(d.gids), nil
}

func (h host) Present(i rdma.QueueInfo) bool {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	for _, d := range h.f.devices {
		for _, q := range d.queues {
			if q.info.QPN == i.QPN {
				return d.present
			}
		}
	}
	return false
}

func (h host) Open(o rdma.QueueOptions) (rdma.Queue, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	d := h.presentDevice(o.Device)
	fail := func(e syscall.Errno) (rdma.Queue, error) {
		return nil, &rdma.VerbsError{Device: o.Device, Port: o.Port, Call: "ibv_open_device", Errno: e}
	}
	switch {
	case d == nil:
		return fail(syscall.ENODEV)
	case d.failOpen != 0:
		return fail(d.failOpen)
	}
	pkey, ok := d.findPKey(o)
	if !ok {
		return nil, &rdma.VerbsError{Device: o.Device, Port: o.Port, Call: "find the P_Key in the port's table", Errno: syscall.ENOENT}
	}
	h.f.nextQPN++
	q := &queue{d: d, o: o, pkey: pkey, state: 3, handles: map[uint64]rdma.Target{},
		info: rdma.QueueInfo{QPN: h.f.nextQPN, Depth: o.Depth, MaxInline: 256, MTU: 1024, InfiniBand: d.ib, LID: d.lid, Hardware: d.hardware > 0, ClockKilohertz: d.hardware, Uverbs: 0}}
	d.queues = append(d.queues, q)
	return q, nil
}

// findPKey returns the P_Key of a new queue pair. It returns false if the table does not have it.
func (d *Device) findPKey(o rdma.QueueOptions) (pkey uint16, ok bool) {
	if o.PKeyIndex != nil {
		ok = *o.PKeyIndex < len(d.pkeys) && d.pkeys[*o.PKeyIndex]&0x7fff != 0
		if ok {
			pkey = d.pkeys[*o.PKeyIndex]
		}
		return pkey, ok
	}
	i := slices.IndexFunc(d.pkeys, func(k uint16) bool { return k&0x7fff != 0 && k&0x7fff == o.PKey&0x7fff })
	if i < 0 {
		return 0, false
	}
	return d.pkeys[i], true
}

// queue represents a queue pair. The fabric's mutex guards it.
type queue struct {
	d       *Device
	o       rdma.QueueOptions
	info    rdma.QueueInfo
	pkey    uint16
	state   int
	events  []rdma.EventKind
	handles map[uint64]rdma.Target
	ring    []rdma.In
	done    []rdma.Completion
	recv    rdma.Errors
	send    rdma.Errors
}

func (q *queue) Info() rdma.QueueInfo { return q.info }

func (q *queue) rawClock(at int64) uint64 {
	if q.d.hardware == 0 {
		return 0
	}
	return uint64(at/1e6) * q.d.hardware
}

func (q *queue) Send(out []rdma.Out) error {
	f := q.d.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range out {
		o := &out[i]
		t, ok := q.handles[o.AH]
		switch {
		case o.AH == 0:
			o.Errno = int32(syscall.EHOSTUNREACH)
			continue
		case !ok:
			panic("an address handle that was destroyed")
		}
		if q.state != 3 {
			q.send[5]++
			q.done = append(q.done, rdma.Completion{ID: o.ID, Status: 5})
			continue
		}
		if q.info.Hardware {
			q.done = append(q.done, rdma.Completion{ID: o.ID, Hardware: q.rawClock(f.now())})
		}
		if q.d.active && (q.d.lose == nil || !q.d.lose(o.Data[:o.Len])) {
			q.deliverPacket(t, o)
		}
	}
	return nil
}

// samePartition reports whether two P_Keys allow a packet (IBTA 10.9.3): they are of one partition, and not both of
// limited members.
func samePartition(a, b uint16) bool { return a&0x7fff == b&0x7fff && (a|b)&0x8000 != 0 }

// deliverPacket delivers a packet to its queue pair. The device drops and counts a packet with a wrong Q_Key. On
// InfiniBand the LID leads to the port, which drops the packet if the GID is not its own.
func (q *queue) deliverPacket(t rdma.Target, o *rdma.Out) {
	if t.GIDIndex >= len(q.d.gids) {
		return
	}
	src := q.d.gids[t.GIDIndex].Addr
	for _, d := range q.d.f.devices {
		if !d.present || !d.active || d.ib != q.d.ib || d.ib && d.lid != t.LID || !slices.ContainsFunc(d.gids, func(g rdma.GID) bool { return g.Addr == t.GID }) {
			continue
		}
		for _, to := range d.queues {
			if to.info.QPN != o.QPN || to.state != 3 {
				continue
			}
			if !samePartition(to.pkey, q.pkey) {
				continue
			}
			if to.o.QKey != o.QKey {
				d.qkeyViol++
				continue
			}
			in := rdma.In{Stamp: d.f.now(), Hardware: to.rawClock(d.f.now()), Imm: o.Imm, SrcQPN: q.info.QPN, Len: o.Len, Flags: 3, Data: o.Data}
			writeHeader(&in, src, t)
			if d.headless {
				in.Flags &^= 1
			}
			to.ring = append(to.ring, in)
			_ = unix.SignalEventFD(to.o.Notify) // an error only means that the port closed it, so nothing waits
		}
	}
}

// writeHeader writes what a device writes before the payload: a global route header, or an IPv4 header with RoCE over
// IPv4.
func writeHeader(in *rdma.In, src netip.Addr, t rdma.Target) {
	s, dst := src.As16(), t.GID.As16()
	if src.Is4In6() {
		in.GRH[20], in.GRH[21], in.GRH[28] = 0x45, t.TClass, t.HopLimit
		copy(in.GRH[32:], s[12:])
		copy(in.GRH[36:], dst[12:])
		return
	}
	binary.BigEndian.PutUint32(in.GRH[:], 6<<28|uint32(t.TClass)<<20|t.FlowLabel)
	in.GRH[6], in.GRH[7] = 0x1b, t.HopLimit // IBTA 8.3: the next header is IBA's transport
	copy(in.GRH[8:], s[:])
	copy(in.GRH[24:], dst[:])
}

func (q *queue) Recv(in []rdma.In) (int, error) {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	n := copy(in, q.ring)
	q.ring = slices.Delete(q.ring, 0, n)
	return n, nil
}

func (q *queue) PollSent(sent []rdma.Completion) int {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	n := copy(sent, q.done)
	q.done = slices.Delete(q.done, 0, n)
	return n
}

func (q *queue) Errors() (recv, send rdma.Errors) {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	return q.recv, q.send
}

func (q *queue) Reset() error {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	if q.d.failOpen != 0 {
		return &rdma.VerbsError{Device: q.o.Device, Port: q.o.Port, Call: "reset the queue pair", Errno: q.d.failOpen}
	}
	q.state, q.ring, q.done = 3, nil, nil
	return nil
}

func (q *queue) State() (int, error) {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	return q.state, nil
}

func (q *queue) Port() (rdma.PortState, error) {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	s := rdma.PortState{Active: q.d.active, State: "down", LID: q.d.lid, QKeyViolations: q.d.qkeyViol}
	if s.Active {
		s.State = "active"
	}
	return s, nil
}

func (q *queue) GIDs() ([]rdma.GID, error) {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	return slices.Clone(q.d.gids), nil
}

func (q *queue) Events() []rdma.EventKind {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	e := q.events
	q.events = nil
	return e
}

func (q *queue) MakeAH(t rdma.Target) (uint64, error) {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	if q.d.failAH != 0 {
		return 0, &rdma.VerbsError{Device: q.o.Device, Port: q.o.Port, Call: "ibv_create_ah to " + t.GID.String(), Errno: q.d.failAH}
	}
	if q.d.ib && (t.LID == 0 || t.LID > 0xbfff) {
		return 0, &rdma.VerbsError{Device: q.o.Device, Port: q.o.Port, Call: "ibv_create_ah to " + t.GID.String(), Errno: syscall.EINVAL}
	}
	q.d.f.nextAH++
	q.handles[q.d.f.nextAH] = t
	q.d.handles++
	return q.d.f.nextAH, nil
}

func (q *queue) DropAH(ah uint64) error {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	if _, ok := q.handles[ah]; !ok {
		panic("an address handle that was destroyed before")
	}
	delete(q.handles, ah)
	q.d.handles--
	return nil
}

func (q *queue) Clock() (raw uint64, before, after int64, err error) {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	at := q.d.f.now()
	return q.rawClock(at), at, at, nil
}

func (q *queue) Close() error {
	q.d.f.mu.Lock()
	defer q.d.f.mu.Unlock()
	if len(q.handles) > 0 {
		panic("a queue pair is closed before its address handles")
	}
	i := slices.Index(q.d.queues, q)
	q.d.queues = slices.Delete(q.d.queues, i, i+1)
	return nil
}
