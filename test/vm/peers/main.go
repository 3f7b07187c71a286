// Command peers answers STAMP probes on many addresses of one machine: on each by UDP, or by
// an RDMA queue pair of its own. Tests take it for the hosts of a fleet, so that one agent has
// hundreds of peers. It answers without sessions (RFC 8762 section 4.2).
//
// Its first line is the numbers of the queue pairs, in the order of the addresses; zeros by UDP.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/rdma"
	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// depth of a queue pair: what comes while another is answered.
const depth = 32

// patience is how long a new address may take to be a GID.
const patience = 5 * time.Minute

// bound is the error of its clock, which is of the machine alone: a second.
var bound = stamp.NewErrorEstimate(int64(time.Second), false, true)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run() error {
	app := kingpin.New("peers", "Answers STAMP probes on many addresses of this machine.")
	first := app.Flag("first", "The first of the IPv4 addresses.").Required().String()
	count := app.Flag("count", "How many there are, one after the other.").Required().Int()
	port := app.Flag("port", "The UDP port.").Default("8862").Uint16()
	device := app.Flag("rdma", "Answer by this RDMA device instead of UDP.").String()
	qkey := app.Flag("qkey", "Of the queue pairs.").Uint32()
	if _, err := app.Parse(os.Args[1:]); err != nil {
		return err
	}
	addr, err := netip.ParseAddr(*first)
	if err != nil {
		return fmt.Errorf("--first: %w", err)
	}
	verbs := rdma.Library()
	if *device != "" && verbs == nil {
		return rdma.ErrNotBuilt
	}
	numbers, failed := make([]uint32, *count), make(chan error)
	for i := range numbers {
		var answer func() error
		if *device == "" {
			s, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, *port)))
			if err != nil {
				return err
			}
			answer = func() error { return byUDP(s) }
		} else {
			gid, err := waitForGID(verbs, *device, addr)
			if err != nil {
				return err
			}
			p, err := openPeer(verbs, *device, *qkey, gid)
			if err != nil {
				return fmt.Errorf("%v: %w", addr, err)
			}
			numbers[i], answer = p.q.Info().QPN, p.answerProbes
		}
		go func() { failed <- answer() }()
		addr = addr.Next()
	}
	if err := json.NewEncoder(os.Stdout).Encode(numbers); err != nil {
		return err
	}
	return <-failed
}

// writeReply writes the answer to a probe, as long as that; 0: it is none.
func writeReply(out, probe []byte, came int64, tos, ttl uint8) int {
	var p stamp.SenderPacket
	if p.Parse(probe) != nil || len(probe) > len(out) {
		return 0
	}
	r := stamp.ReflectorPacket{Seq: p.Seq, ErrorEstimate: bound, Receive: stamp.TimestampPTP(came), Timestamp: stamp.TimestampPTP(time.Now().UnixNano()), SenderTTL: ttl}
	r.EchoProbe(&p)
	r.Put(out)
	v := stamp.ReflectorValues{ReceivedDSCP: tos >> 2, ReceivedECN: tos & 3, Unsupported: stamp.NewTypeSet(stamp.TypeDirectMeasurement, stamp.TypeFollowUp)}
	return v.Reflect(out, probe, stamp.BaseLen, nil).Len
}

func byUDP(s *net.UDPConn) error {
	in, out := make([]byte, 2048), make([]byte, 2048)
	for {
		n, from, err := s.ReadFromUDPAddrPort(in)
		if err != nil {
			return err
		}
		if n = writeReply(out, in[:n], time.Now().UnixNano(), 0, 64); n == 0 {
			continue
		}
		if _, err := s.WriteToUDPAddrPort(out[:n], from); err != nil {
			return err
		}
	}
}

// peer is a queue pair and the peer that it answers.
type peer struct {
	q       rdma.Queue
	qkey    uint32
	wake    *os.File
	gid     int
	handles map[handle]uint64
}

type handle struct {
	gid    [16]byte
	tclass uint8
}

// waitForGID returns the index of an address in the device's table, which follows those of the
// interface some time after.
func waitForGID(verbs rdma.Verbs, device string, addr netip.Addr) (int, error) {
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // asked again
		gids, err := verbs.GIDs(device, 1)
		if err != nil {
			return 0, err
		}
		g, err := rdma.SelectGID(device, 1, gids, false, rdma.GIDChoice{GID: addr}, nil)
		if err == nil || time.Now().After(end) {
			return g.Index, err
		}
	}
}

func openPeer(verbs rdma.Verbs, device string, qkey uint32, gid int) (*peer, error) {
	p := &peer{qkey: qkey, gid: gid, handles: map[handle]uint64{}}
	event, err := unix.NewEventFD()
	if err != nil {
		return nil, err
	}
	p.wake = os.NewFile(uintptr(event.FD()), "eventfd") // which does not block: reads wait in the poller
	p.q, err = verbs.Open(rdma.QueueOptions{Device: device, Port: 1, PKey: rdma.DefaultPKey, QKey: qkey, Depth: depth, Notify: event.FD()})
	return p, err
}

// answerProbes answers each probe with the ports of its flow changed over: they are the immediate.
func (p *peer) answerProbes() error {
	in, out, done, count := make([]rdma.In, depth), make([]rdma.Out, depth), make([]rdma.Completion, depth), make([]byte, 8)
	for {
		if _, err := p.wake.Read(count); err != nil {
			return err
		}
		for {
			n, err := p.q.Recv(in)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			k := 0
			for i := range n {
				// The header before the payload is IPv4's in its last 20 octets.
				ip := in[i].GRH[20:]
				o := &out[k]
				if o.Len = uint32(writeReply(o.Data[:], in[i].Data[:min(in[i].Len, rdma.MaxDatagram)], in[i].Stamp, ip[1], ip[8])); o.Len == 0 {
					continue
				}
				if o.AH, err = p.addressHandle(ip); err != nil {
					return err
				}
				o.QPN, o.QKey, o.Imm = in[i].SrcQPN, p.qkey, in[i].Imm<<16|in[i].Imm>>16
				k++
			}
			p.q.PollSent(done)
			if err := p.q.Send(out[:k]); err != nil {
				return err
			}
		}
	}
}

func (p *peer) addressHandle(ip []byte) (uint64, error) {
	k := handle{tclass: ip[1]}
	copy(k.gid[10:], []byte{0xff, 0xff, ip[12], ip[13], ip[14], ip[15]})
	if h, ok := p.handles[k]; ok {
		return h, nil
	}
	if len(p.handles) == 64 {
		return 0, errors.New("more than 64 address handles: who asks is expected to be one")
	}
	h, err := p.q.MakeAH(rdma.Target{GID: netip.AddrFrom16(k.gid), GIDIndex: p.gid, TClass: k.tclass, HopLimit: 64})
	if err == nil {
		p.handles[k] = h
	}
	return h, err
}
