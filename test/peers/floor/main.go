// Command floor is the least a probing node can do: send stamped packets in
// batches at every tick, send back those of the other end, and read every
// stamp. It keeps no account of anything but totals, so that its cost is what
// the kernel takes. Two of them make a pair, each probing and reflecting.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/internal/stamp"
	"github.com/graylink/graylink/internal/unix"
)

// totals are printed at the end, as JSON.
type totals struct {
	Sent      uint64 `json:"sent"`      // probes
	Replies   uint64 `json:"replies"`   // to them
	Reflected uint64 `json:"reflected"` // probes of the other end
	TxStamps  uint64 `json:"tx_stamps"`
	RxStamps  uint64 `json:"rx_stamps"`
	Failed    uint64 `json:"failed"`
}

func main() {
	local := kingpin.Flag("local", "Own address.").Required().String()
	remote := kingpin.Flag("remote", "Address of the other end.").Required().String()
	rate := kingpin.Flag("rate", "Probes per second.").Default("1000").Int()
	tick := kingpin.Flag("tick", "Time between batches.").Default("10ms").Duration()
	kingpin.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t, err := run(ctx, *local, *remote, *rate, *tick)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(t)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

const (
	senderPort    = 50000
	reflectorPort = 8862
	senderToken   = 0
	receiveBuffer = 4 << 20
)

// probeLen returns the length of a probe with the TLVs that a node sends.
func probeLen() int {
	b := make([]byte, stamp.BaseLen, unix.MaxDatagram)
	b = stamp.AppendTimestampInfo(b)
	b = stamp.AppendClassOfService(b, 0)
	b = stamp.AppendDirectMeasurement(b, 0)
	return len(stamp.AppendFollowUp(b))
}

func run(ctx context.Context, local, remote string, rate int, tick time.Duration) (*totals, error) {
	from, err := netip.ParseAddr(local)
	if err != nil {
		return nil, fmt.Errorf("--local: %w", err)
	}
	to, err := netip.ParseAddr(remote)
	if err != nil {
		return nil, fmt.Errorf("--remote: %w", err)
	}
	l := &loop{rate: rate, tick: tick, target: netip.AddrPortFrom(to, reflectorPort), in: unix.NewBatch(unix.BatchSize), out: unix.NewBatch(unix.BatchSize)}
	l.failed = func(int, syscall.Errno) { l.totals.Failed++ }
	if l.sender, err = unix.ListenUDP(netip.AddrPortFrom(from, senderPort), unix.UDPOptions{ReceiveBuffer: receiveBuffer}); err != nil {
		return nil, err
	}
	defer l.sender.Close()
	if l.reflector, err = unix.ListenUDP(netip.AddrPortFrom(from, reflectorPort), unix.UDPOptions{ReceiveBuffer: receiveBuffer}); err != nil {
		return nil, err
	}
	defer l.reflector.Close()
	if l.poll, err = unix.NewPoller(); err != nil {
		return nil, err
	}
	defer l.poll.Close()
	if err := errors.Join(l.poll.Add(l.sender.FD(), senderToken), l.poll.Add(l.reflector.FD(), senderToken+1)); err != nil {
		return nil, err
	}
	stopped := context.AfterFunc(ctx, func() { _ = l.poll.Wake() })
	defer stopped()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.TightTimers(); err != nil {
		return nil, err
	}
	if err := l.exchangePackets(ctx); err != nil {
		return nil, err
	}
	return &l.totals, nil
}

// loop sends and reflects packets.
type loop struct {
	rate              int
	tick              time.Duration
	target            netip.AddrPort
	sender, reflector *unix.UDP
	poll              *unix.Poller
	in, out           *unix.Batch
	totals            totals
	failed            func(int, syscall.Errno) // counts a packet that could not be sent
}

// exchangePackets sends and reflects packets until ctx ends.
func (l *loop) exchangePackets(ctx context.Context) error {
	began := time.Now()
	due := l.tick
	for ctx.Err() == nil {
		events, err := l.poll.Wait(due - time.Since(began))
		if err != nil {
			return err
		}
		for i := range events {
			token, readable, queued := l.poll.EventAt(i)
			s := l.sender
			if token < 0 {
				continue
			} else if token != senderToken {
				s = l.reflector
			}
			if err := l.serveSocket(s, readable, queued); err != nil {
				return err
			}
		}
		if now := time.Since(began); now >= due {
			for ; due <= now; due += l.tick {
			}
			if err := l.sendDue(now); err != nil {
				return err
			}
		}
	}
	return nil
}

// serveSocket reads what a socket has, and reflects probes.
func (l *loop) serveSocket(s *unix.UDP, readable, queued bool) error {
	if queued {
		if err := l.readStamps(s); err != nil {
			return err
		}
	}
	for n := unix.BatchSize; (readable || queued) && n == unix.BatchSize; {
		var err error
		if n, err = l.in.Recv(s); err != nil {
			return err
		}
		for j := range n {
			g := l.in.DatagramAt(j)
			if g.Stamp != 0 {
				l.totals.RxStamps++
			}
			if s == l.sender {
				l.totals.Replies++
				continue
			}
			l.totals.Reflected++
			l.out.Commit(s, copy(l.out.OutBuffer(), g.Data), g.From, 0, 0)
		}
		if err := l.sendBatch(s); err != nil {
			return err
		}
	}
	return nil
}

// readStamps counts the transmit stamps of a socket.
func (l *loop) readStamps(s *unix.UDP) error {
	for n := unix.BatchSize; n == unix.BatchSize; {
		var err error
		if n, err = l.in.RecvErrors(s); err != nil {
			return err
		}
		for i := range n {
			if r := l.in.ReportAt(i); r.Kind == unix.ReportTxStamp && r.Stamp != 0 {
				l.totals.TxStamps++
			}
		}
	}
	return nil
}

// sendBatch sends the packets that are committed to a socket.
func (l *loop) sendBatch(s *unix.UDP) error {
	if l.out.PendingCount() == 0 {
		return nil
	}
	if err := l.out.Send(s, l.failed); err != nil {
		return err
	}
	return l.readStamps(s)
}

// sendDue sends what the rate requires up to now.
func (l *loop) sendDue(now time.Duration) error {
	size := probeLen()
	for want := uint64(float64(l.rate) * now.Seconds()); l.totals.Sent < want; l.totals.Sent++ {
		if l.out.OutBuffer() == nil {
			if err := l.sendBatch(l.sender); err != nil {
				return err
			}
		}
		l.out.Commit(l.sender, size, l.target, 0, 0)
	}
	return l.sendBatch(l.sender)
}
