package coordinator

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"unicode/utf8"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/fabric"
)

// checkMessage returns an error if a message from an agent is invalid. A valid message is bounded in
// size, and its names may become labels and log fields.
func checkMessage(m *agentapi.AgentMessage) error {
	switch b := m.GetBody().(type) {
	case *agentapi.AgentMessage_Hello:
		return checkHello(b.Hello)
	case *agentapi.AgentMessage_Heartbeat:
		return checkHeartbeat(b.Heartbeat)
	case *agentapi.AgentMessage_Addresses:
		return checkInterfaces("addresses.interfaces", b.Addresses.GetInterfaces())
	case *agentapi.AgentMessage_Paths:
		return checkPaths(b.Paths)
	case *agentapi.AgentMessage_Clock:
		if n := len(b.Clock.GetSamples()); n > agentapi.MaxClockReport {
			return fmt.Errorf("clock.samples: %d octets, want at most %d", n, agentapi.MaxClockReport)
		}
	}
	return nil // the message is of a later version
}

func checkText(field, s string) error { return checkTextUpTo(field, s, agentapi.MaxName) }

// checkTextUpTo does what checkText does, with another limit of octets.
func checkTextUpTo(field, s string, most int) error {
	switch {
	case len(s) > most:
		return fmt.Errorf("%s: %d octets, want at most %d", field, len(s), most)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s: not UTF-8", field)
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return fmt.Errorf("%s: holds a control character", field)
		}
	}
	return nil
}

func checkHello(h *agentapi.Hello) error {
	if err := checkText("hello.node", h.GetNode()); err != nil {
		return err
	}
	if err := fabric.CheckName(h.GetNode()); err != nil {
		return fmt.Errorf("hello.node: %w", err)
	}
	if n := len(h.GetInstance()); n != agentapi.InstanceSize {
		return fmt.Errorf("hello.instance: %d octets, want %d", n, agentapi.InstanceSize)
	}
	for _, f := range []struct{ field, text string }{{"hello.boot_id", h.GetBootId()}, {"hello.version", h.GetVersion()},
		{"hello.clock.clock", h.GetClock().GetClock()}, {"hello.clock.source", h.GetClock().GetSource()}} {
		if err := checkText(f.field, f.text); err != nil {
			return err
		}
	}
	if err := checkWeb(h.GetWeb()); err != nil {
		return err
	}
	if err := checkApplied("hello.applied", h.GetApplied()); err != nil {
		return err
	}
	if h.GetLife() > agentapi.MaxLife {
		return fmt.Errorf("hello.life: %d, want at most %d", h.GetLife(), uint64(agentapi.MaxLife))
	}
	return checkInterfaces("hello.interfaces", h.GetInterfaces())
}

func checkWeb(w *agentapi.WebEndpoint) error {
	if w.GetAddress() == "" {
		return nil
	}
	if err := checkText("hello.web.address", w.GetAddress()); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(w.GetAddress())
	if err != nil {
		return fmt.Errorf("hello.web.address: %q, want host:port", w.GetAddress())
	}
	if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 {
		return fmt.Errorf("hello.web.address: port %q, want a number from 1 to 65535", port)
	}
	if _, err := netip.ParseAddr(host); host != "" && err != nil {
		for _, r := range host {
			if r != '.' && r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
				return fmt.Errorf("hello.web.address: host %q, want a name or an address", host)
			}
		}
	}
	switch w.GetScheme() {
	case "", "http", "https":
		return nil
	}
	return fmt.Errorf("hello.web.scheme: %q, want http or https", w.GetScheme())
}

func checkApplied(field string, a *agentapi.Applied) error {
	switch {
	case len(a.GetHash()) > 64:
		return fmt.Errorf("%s.hash: %d octets, want at most 64", field, len(a.GetHash()))
	case len(a.GetKeyIds()) > agentapi.MaxKeys:
		return fmt.Errorf("%s.key_ids: %d, want at most %d", field, len(a.GetKeyIds()), agentapi.MaxKeys)
	}
	return nil
}

func checkInterfaces(field string, in []*agentapi.Interface) error {
	if len(in) > agentapi.MaxInterfaces {
		return fmt.Errorf("%s: %d, want at most %d", field, len(in), agentapi.MaxInterfaces)
	}
	for i, f := range in {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := checkText(at+".name", f.GetName()); err != nil {
			return err
		}
		if f.GetName() == "" {
			return fmt.Errorf("%s.name: empty", at)
		}
		if err := checkRDMA(at+".rdma", f.GetRdma()); err != nil {
			return err
		}
		if err := checkText(at+".ib.device", f.GetIb().GetDevice()); err != nil {
			return err
		}
		if p := f.GetIb(); p != nil {
			if err := p.CheckPort(at + ".ib"); err != nil {
				return err
			}
		}
		if n := len(f.GetAddresses()); n > agentapi.MaxInterfaceAddresses {
			return fmt.Errorf("%s.addresses: %d, want at most %d", at, n, agentapi.MaxInterfaceAddresses)
		}
		for j, a := range f.GetAddresses() {
			if !agentapi.AddrFromBytes(a).IsValid() {
				return fmt.Errorf("%s.addresses[%d]: %d octets, want 4 or 16", at, j, len(a))
			}
		}
		if n := len(f.GetPrefixLengths()); n > 0 && n != len(f.GetAddresses()) {
			return fmt.Errorf("%s.prefix_lengths: %d, want one for each of %d addresses", at, n, len(f.GetAddresses()))
		}
		for j, bits := range f.GetPrefixLengths() {
			if most := agentapi.AddrFromBytes(f.GetAddresses()[j]).BitLen(); bits > uint32(most) {
				return fmt.Errorf("%s.prefix_lengths[%d]: %d, want at most %d", at, j, bits, most)
			}
		}
		if err := checkNeighbours(at+".lldp", f.GetLldp()); err != nil {
			return err
		}
	}
	return nil
}

// checkNeighbours returns an error if there are too many neighbours, or if one is not described by three texts.
func checkNeighbours(field string, in []*agentapi.LLDPNeighbour) error {
	if len(in) > agentapi.MaxNeighbours {
		return fmt.Errorf("%s: %d, want at most %d", field, len(in), agentapi.MaxNeighbours)
	}
	for i, n := range in {
		for _, f := range []struct{ name, text string }{{"system", n.GetSystem()}, {"port", n.GetPort()}, {"chassis", n.GetChassis()}} {
			at := fmt.Sprintf("%s[%d].%s", field, i, f.name)
			if err := checkText(at, f.text); err != nil {
				return err
			}
			if f.text == "" {
				return fmt.Errorf("%s: empty", at)
			}
		}
	}
	return nil
}

// checkRDMA returns an error if a queue pair is invalid. Nil is valid.
func checkRDMA(field string, r *agentapi.RDMA) error {
	if r.GetQpn() == 0 {
		return nil
	}
	if err := checkText(field+".device", r.GetDevice()); err != nil {
		return err
	}
	return r.CheckQueuePair(field)
}

func checkHeartbeat(h *agentapi.Heartbeat) error {
	if err := checkApplied("heartbeat.applied", h.GetApplied()); err != nil {
		return err
	}
	if n := len(h.GetSilentEdges()); n > agentapi.MaxSilentEdges {
		return fmt.Errorf("heartbeat.silent_edges: %d, want at most %d", n, agentapi.MaxSilentEdges)
	}
	for i, e := range h.GetSilentEdges() {
		if _, err := parseEdge(e); err != nil {
			return fmt.Errorf("heartbeat.silent_edges[%d]: %w", i, err)
		}
	}
	if n := len(h.GetApplyError()); n > 4096 {
		return fmt.Errorf("heartbeat.apply_error: %d octets, want at most 4096", n)
	}
	return nil
}

func checkPaths(p *agentapi.PathReport) error {
	if n := len(p.GetTraces()); n > agentapi.MaxTraces {
		return fmt.Errorf("paths.traces: %d, want at most %d", n, agentapi.MaxTraces)
	}
	for i, t := range p.GetTraces() {
		at := fmt.Sprintf("paths.traces[%d]", i)
		if _, err := parseEdge(t.GetEdge()); err != nil {
			return fmt.Errorf("%s.edge: %w", at, err)
		}
		if n := len(t.GetHops()); n > agentapi.MaxHops {
			return fmt.Errorf("%s.hops: %d, want at most %d", at, n, agentapi.MaxHops)
		}
		if n := len(t.GetCarrier()); n != 0 && n != net.IPv6len {
			return fmt.Errorf("%s.carrier: %d octets, want %d or none", at, n, net.IPv6len)
		}
		for j, h := range t.GetHops() {
			if a := h.GetAddress(); len(a) != 0 && !agentapi.AddrFromBytes(a).IsValid() {
				return fmt.Errorf("%s.hops[%d].address: %d octets, want 4, 16 or none", at, j, len(a))
			}
		}
	}
	return nil
}

func parseEdge(s string) (fabric.Flow, error) {
	if len(s) > 4*agentapi.MaxName {
		return fabric.Flow{}, fmt.Errorf("%d octets, want at most %d", len(s), 4*agentapi.MaxName)
	}
	return fabric.ParseFlow(s)
}
