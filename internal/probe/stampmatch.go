package probe

import (
	"syscall"

	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// sentRef represents the packet that a transmit stamp's number belongs to.
type sentRef struct {
	id          uint32
	wants       uint8 // bit k is set while a stamp of kind k is awaited
	sent        bool  // false if the packet was taken back because it could not be sent
	edge        *edge
	sess        *session // reflector
	seq         uint32
	user        int64
	kernelStamp int64 // the kernel's stamp
}

// socket represents an endpoint and the packets whose transmit stamps are awaited.
type socket struct {
	Endpoint
	link      Transport
	rdma      bool
	refsOwner *socket // the socket that has the awaited packets: itself, or the queue pair's
	name      string
	port      uint16
	queue     sendQueue // edges probed over it
	refs      []sentRef
	closed    bool
}

// rememberSent keeps a packet until its place is needed again.
func (s *socket) rememberSent(r sentRef) { s.refs[int(r.id)&(len(s.refs)-1)] = r }

// recallSent returns the packet that a stamp of a kind belongs to, or nil if none waits for it.
func (s *socket) recallSent(id uint32, kind stampKind) *sentRef {
	r := &s.refs[int(id)&(len(s.refs)-1)]
	if r.id != id || r.wants&(1<<kind) == 0 {
		return nil
	}
	r.wants &^= 1 << kind
	return r
}

// smallestRefs is the number of packets whose transmit stamps a socket waits for at least.
const smallestRefs = 256

// reserveRefs reserves room for the transmit stamps of so many packets per second. Some NICs deliver a stamp only after
// half a second. A socket that has no stamps to wait for stays without room.
func (s *socket) reserveRefs(packets int) {
	n := ringSize(packets)
	if len(s.refs) == 0 || n <= len(s.refs) {
		return
	}
	old := s.refs
	s.refs = make([]sentRef, n)
	for _, r := range old {
		if r.wants != 0 {
			s.rememberSent(r)
		}
	}
}

// outbox sends the packets of a NIC in batches, and matches the transmit stamps that come back to them.
type outbox struct {
	clock  *timeline
	ports  *ports
	traces *traceAnswers // receives the ICMP errors about packets

	socket *socket // socket whose packets its transport holds
	batch  [unix.BatchSize]*sentRef
	failed func(int, syscall.Errno)
	// refused processes an ICMP error about a packet whose path was chosen, and returns false if it is about another.
	refused func(*unix.Report) bool

	sendErrors  map[syscall.Errno]uint64
	unmatched   uint64 // transmit stamps of packets that are no longer known
	kernelDelay Histogram
	nicDelay    Histogram // from the kernel's stamp to the NIC's, of what is sent
}

// outBuffer returns the memory for the next packet over s. It flushes the batch first if that is full or another
// socket's.
func (o *outbox) outBuffer(s *socket) ([]byte, error) {
	if o.socket != s || s.link.OutBuffer() == nil {
		if err := o.flushBatch(); err != nil {
			return nil, err
		}
		o.socket = s
	}
	return s.link.OutBuffer(), nil
}

// registerSent records the packet that was committed last, for its transmit stamps.
func (o *outbox) registerSent(r sentRef) {
	owner := o.socket.refsOwner
	r.sent = true
	owner.rememberSent(r)
	o.batch[o.socket.link.PendingCount()-1] = &owner.refs[int(r.id)&(len(owner.refs)-1)]
}

// flushBatch sends the batch, and reads the transmit stamps that are available at once, as software stamps mostly are.
func (o *outbox) flushBatch() error {
	s := o.socket
	if s == nil || s.closed || s.link.PendingCount() == 0 {
		return nil
	}
	batch := o.batch[:s.link.PendingCount()]
	at, err := s.link.Send(s.Endpoint, o.failed)
	if err != nil {
		return err
	}
	if at != 0 {
		at = o.clock.NodeTime(at)
		for _, r := range batch {
			switch {
			case r.edge != nil:
				r.edge.setSendTime(r.seq, at)
			case r.sess != nil && r.sent && seqNewer(r.sess.seq, r.seq):
				r.sess.follows.addFollowUp(stamp.FollowUp{Seq: r.seq, Timestamp: stamp.TimestampPTP(at), Method: userStamps.stampMethod()})
			}
		}
	}
	return o.drainErrors(s)
}

// sendFailed takes the i-th packet of the batch back, because it could not be sent.
func (o *outbox) sendFailed(i int, errno syscall.Errno) {
	o.sendErrors[errno]++
	r := o.batch[i]
	r.wants, r.sent = 0, false
	switch {
	case r.sess != nil:
		r.sess.tx--
	case r.edge != nil:
		r.edge.sendFailed(r.seq)
	default:
		o.traces.sendFailed(r.seq, errno)
	}
}

// drainErrors reads all transmit stamps and ICMP errors in a socket's error queue.
func (o *outbox) drainErrors(s *socket) error {
	for {
		k, err := s.link.RecvErrors(s.Endpoint)
		if err != nil {
			return err
		}
		for i := range k {
			r := s.link.ReportAt(i)
			r.Stamp = o.clock.NodeTime(r.Stamp)
			switch r.Kind {
			case unix.ReportTxStamp:
				o.txStamp(s, r)
			case unix.ReportICMP, unix.ReportICMP6:
				switch {
				case s != o.ports.udp.outer:
					o.traces.handleICMP(s, r)
				case !o.refused(r):
					o.traces.handleCarriedICMP(s, r)
				}
			}
		}
		if k < unix.BatchSize {
			return nil
		}
	}
}

// txStamp matches a transmit stamp to its packet.
func (o *outbox) txStamp(s *socket, r *unix.Report) {
	kind, at := kernelStamps, r.Stamp
	if r.Hardware != 0 {
		kind = hardwareStamps
		var ok bool
		if at, ok = o.ports.hardwareTime(o.ports.clockFor(s.rdma), r.Hardware); !ok {
			at = 0
		}
	}
	ref := s.refsOwner.recallSent(r.ID, kind)
	if ref == nil {
		o.unmatched++
		return
	}
	if at == 0 {
		return
	}
	if !s.rdma {
		o.ports.stamped[0][kind] = true
	}
	if kind == kernelStamps {
		ref.kernelStamp = at
		if ref.edge != nil || ref.sess != nil {
			o.kernelDelay.Observe(at - ref.user)
		}
	} else if ref.kernelStamp != 0 {
		o.nicDelay.Observe(at - ref.kernelStamp)
	}
	switch {
	case ref.sess != nil:
		// A session that started anew in the meantime has other numbers.
		if kind == o.ports.kindFor(ref.sess.peer) && seqNewer(ref.sess.seq, ref.seq) {
			ref.sess.follows.addFollowUp(stamp.FollowUp{Seq: ref.seq, Timestamp: stamp.TimestampPTP(at), Method: kind.stampMethod()})
		}
	case ref.edge != nil:
		ref.edge.txStamp(ref.seq, kind, at)
	}
}
