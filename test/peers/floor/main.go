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
	sender, err := unix.ListenUDP(netip.AddrPortFrom(from, senderPort), unix.UDPOptions{ReceiveBuffer: receiveBuffer})
	if err != nil {
		return nil, err
	}
	defer sender.Close()
	reflector, err := unix.ListenUDP(netip.AddrPortFrom(from, reflectorPort), unix.UDPOptions{ReceiveBuffer: receiveBuffer})
	if err != nil {
		return nil, err
	}
	defer reflector.Close()
	poll, err := unix.NewPoller()
	if err != nil {
		return nil, err
	}
	defer poll.Close()
	if err := errors.Join(poll.Add(sender.FD(), senderToken), poll.Add(reflector.FD(), senderToken+1)); err != nil {
		return nil, err
	}
	stopped := context.AfterFunc(ctx, func() { _ = poll.Wake() })
	defer stopped()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.TightTimers(); err != nil {
		return nil, err
	}

	t := &totals{}
	size, target := probeLen(), netip.AddrPortFrom(to, reflectorPort)
	in, out := unix.NewBatch(unix.BatchSize), unix.NewBatch(unix.BatchSize)
	failed := func(int, syscall.Errno) { t.Failed++ }
	stamps := func(s *unix.UDP) error {
		for n := unix.BatchSize; n == unix.BatchSize; {
			var err error
			if n, err = in.RecvErrors(s); err != nil {
				return err
			}
			for i := range n {
				if r := in.ReportAt(i); r.Kind == unix.ReportTxStamp && r.Stamp != 0 {
					t.TxStamps++
				}
			}
		}
		return nil
	}
	flush := func(s *unix.UDP) error {
		if out.PendingCount() == 0 {
			return nil
		}
		if err := out.Send(s, failed); err != nil {
			return err
		}
		return stamps(s)
	}
	began := time.Now()
	due := tick
	for ctx.Err() == nil {
		events, err := poll.Wait(due - time.Since(began))
		if err != nil {
			return nil, err
		}
		for i := range events {
			token, readable, queued := poll.EventAt(i)
			s := sender
			if token < 0 {
				continue
			} else if token != senderToken {
				s = reflector
			}
			if queued {
				if err := stamps(s); err != nil {
					return nil, err
				}
			}
			for n := unix.BatchSize; (readable || queued) && n == unix.BatchSize; {
				if n, err = in.Recv(s); err != nil {
					return nil, err
				}
				for j := range n {
					g := in.DatagramAt(j)
					if g.Stamp != 0 {
						t.RxStamps++
					}
					if s == sender {
						t.Replies++
						continue
					}
					t.Reflected++
					out.Commit(s, copy(out.OutBuffer(), g.Data), g.From, 0, 0)
				}
				if err := flush(s); err != nil {
					return nil, err
				}
			}
		}
		// Every tick sends what the rate requires up to now.
		if now := time.Since(began); now >= due {
			for ; due <= now; due += tick {
			}
			for want := uint64(float64(rate) * now.Seconds()); t.Sent < want; t.Sent++ {
				if out.OutBuffer() == nil {
					if err := flush(sender); err != nil {
						return nil, err
					}
				}
				out.Commit(sender, size, target, 0, 0)
			}
			if err := flush(sender); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}
