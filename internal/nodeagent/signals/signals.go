// Package signals captures the in-band signals of frames that arrive at the NICs of a node which tags nothing itself. Its rules:
//
//  1. Every NIC of the configuration with an address is captured, at its interface. An interface that several NICs have is captured once,
//     for the first one.
//  2. Addresses of the configuration, those of the node's own NICs and of its peers, are NICs. Tags of other senders are not used.
//  3. A NIC that cannot be captured is logged once, and tried again every second. The others go on.
//  4. Changes of the configuration, and interfaces that come and go, take effect within two seconds.
package signals

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/capture"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/csig/tap"
	"github.com/graylink/graylink/internal/probe"
)

const (
	updateEvery  = time.Second
	bufferOctets = 2 << 20 // of the kernel's buffer for a NIC and a format: some 8,000 frames
)

// Captures reads the tagged frames of a node's NICs.
type Captures struct {
	profile *csig.Profile
	reader  *capture.Reader
	clock   tap.Clock
	log     *slog.Logger

	known   *probe.Config   // by which the reader knows NICs; nil before the first one
	missing map[string]bool // NICs that no interface has, which was logged

	mu   sync.Mutex
	nics map[string]*captured // by NIC
}

// captured is a NIC that is captured.
type captured struct {
	device string // the name of its interface
	place  *capture.Place
	taps   []*tap.Tap // one for each format
	stop   context.CancelFunc
	ended  sync.WaitGroup
}

// New returns captures of no NIC. flows is the number of flows of the node that are observed, in both directions together.
func New(p *csig.Profile, flows int, log *slog.Logger) *Captures {
	none := func(netip.Addr) string { return "" }
	return &Captures{profile: p, reader: capture.NewReader(p, capture.Options{Observe: observe.Options{Flows: flows}, NICOf: none}),
		clock: tap.NewClock(time.Now()), log: log, missing: map[string]bool{}, nics: map[string]*captured{}}
}

// Profile returns the profile by which tags are read.
func (c *Captures) Profile() *csig.Profile { return c.profile }

// Run captures the NICs of a configuration, which running returns and which may change, until ctx ends.
func (c *Captures) Run(ctx context.Context, running func() *probe.Config) {
	tick := time.NewTicker(updateEvery)
	defer tick.Stop()
	for {
		c.update(running())
		select {
		case <-ctx.Done():
			c.captureDevices(nil)
			return
		case <-tick.C:
		}
	}
}

// Stats returns what the tags said so far.
func (c *Captures) Stats() *observe.Stats {
	s := c.reader.Stats(c.clock.At(time.Now()))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nics {
		if err := tap.AddTotals(s, n.taps); err != nil {
			c.log.Warn("cannot read all counts of a NIC's captures", "nic", n.taps[0].NIC, "err", err)
		}
	}
	return s
}

// update captures the NICs of a configuration, by the interfaces of this moment.
func (c *Captures) update(cfg *probe.Config) {
	if cfg != c.known {
		nics := map[netip.Addr]string{}
		for i := range cfg.Peers {
			nics[cfg.Peers[i].Address.Unmap()] = cfg.Peers[i].NIC
		}
		for i := range cfg.NICs {
			nics[cfg.NICs[i].Address.Unmap()] = cfg.NICs[i].NIC
		}
		delete(nics, netip.Addr{}) // of NICs that are probed by RDMA only
		c.reader.Configure(func(a netip.Addr) string { return nics[a] }, cfg.Stamp.Port, cfg.Stamp.SourcePort)
		c.known = cfg
	}
	c.captureDevices(c.chooseDevices(cfg))
}

// choice is a NIC with the interface at which it is captured.
type choice struct{ nic, device string }

// chooseDevices returns the NICs that are captured. One whose interface cannot be found stays where it was captured before, if it was.
func (c *Captures) chooseDevices(cfg *probe.Config) (out []choice) {
	byAddress, err := interfaceNames(cfg)
	if err != nil {
		c.log.Warn("cannot list the interfaces; NICs are captured where they were before", "err", err)
	}
	taken, seen := map[string]bool{}, map[string]bool{}
	for i := range cfg.NICs {
		n := &cfg.NICs[i]
		if !n.Address.IsValid() {
			continue // it is probed by RDMA only
		}
		device := cmp.Or(n.Device, byAddress[n.Address.Unmap()])
		if was := c.nics[n.NIC]; device == "" && was != nil {
			device = was.device
		}
		seen[n.NIC] = true
		if device == "" && !c.missing[n.NIC] && err == nil {
			c.log.Warn("no interface has the address of a NIC; its in-band signals are not captured until one has",
				"nic", n.NIC, "address", n.Address)
		}
		c.missing[n.NIC] = device == "" && (c.missing[n.NIC] || err == nil)
		if device != "" && !taken[device] {
			taken[device] = true
			out = append(out, choice{n.NIC, device})
		}
	}
	for nic := range c.missing {
		if !seen[nic] {
			delete(c.missing, nic)
		}
	}
	return out
}

// interfaceNames returns the names of this host's interfaces by their addresses, if a NIC of the configuration has no other way to its
// interface.
func interfaceNames(cfg *probe.Config) (names map[netip.Addr]string, err error) {
	needed := false
	for i := range cfg.NICs {
		needed = needed || cfg.NICs[i].Device == ""
	}
	if !needed {
		return nil, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	names = map[netip.Addr]string{}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				names[p.Addr().Unmap()] = i.Name
			}
		}
	}
	return names, nil
}

// captureDevices captures NICs at their interfaces, and ends all other captures.
func (c *Captures) captureDevices(wanted []choice) {
	devices := map[string]string{}
	for _, w := range wanted {
		devices[w.nic] = w.device
	}
	for nic, n := range c.nics { // only this goroutine changes it
		if devices[nic] != n.device {
			c.end(nic, n)
		}
	}
	for _, w := range wanted {
		if c.nics[w.nic] == nil {
			c.begin(w)
		}
	}
}

// begin captures a NIC.
func (c *Captures) begin(w choice) {
	ctx, stop := context.WithCancel(context.Background())
	n := &captured{device: w.device, place: c.reader.AddPlace(w.nic), stop: stop}
	for _, f := range csig.Formats {
		if etherType := c.profile.EtherTypes.Of(f); etherType != 0 {
			n.taps = append(n.taps, tap.New(tap.Options{Interface: w.device, NIC: w.nic, EtherType: etherType, Buffer: bufferOctets, Place: n.place,
				Clock: c.clock, Log: c.log}))
		}
	}
	for _, t := range n.taps {
		t.TryOpen() // here, so that the interface is that of this thread's namespace
		n.ended.Go(func() { t.Run(ctx) })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nics[w.nic] = n
}

// end ends the capture of a NIC.
func (c *Captures) end(nic string, n *captured) {
	n.stop()
	n.ended.Wait()
	for _, t := range n.taps {
		if err := t.Close(); err != nil {
			c.log.Warn("cannot close a capture", "nic", nic, "err", err)
		}
	}
	n.place.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nics, nic)
}
