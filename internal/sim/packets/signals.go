package packets

import "github.com/graylink/graylink/internal/csig"

// UseSignals makes the ports by which switches send update the tags of packets by a profile, from now on.
func (n *Network) UseSignals(p *csig.Profile) {
	n.signals = p
	for i := range n.ports {
		n.connectSignal(&n.ports[i])
	}
}

// connectSignal gives a port the signals of its present rate. What it has measured before is forgotten.
func (n *Network) connectSignal(d *port) {
	if n.signals == nil || d.sw < 0 {
		return
	}
	d.signal = n.signals.NewPort(csig.PortOptions{Name: d.end, Speed: uint64(8e9/d.nsOctet + 0.5), Action: d.tags}, n.now)
	// Traffic of the whole last window has to be known.
	d.cross.forget = max(d.cross.forget, 3*float64(n.signals.DC))
}

// SetTags lets the port by which an end sends update tags, pass them on, or take them off.
func (n *Network) SetTags(end string, what csig.Action) error {
	p, err := n.portAt(end)
	if err == nil {
		p.tags = what
		n.connectSignal(p)
	}
	return err
}

// DropTags makes a switch drop what has a tag, or lets it forward that again.
func (n *Network) DropTags(sw string, on bool) error {
	i, err := n.switchAt(sw)
	if err == nil {
		n.switches[i].dropsTags = on
	}
	return err
}

// TraceTagged does the same as TraceFlow for a packet with a tag, which ends at a switch that drops tags.
func (n *Network) TraceTagged(from, to int32, flow uint64) (hops []Hop, reached bool) {
	hops, reached = n.TraceFlow(from, to, flow)
	for i, h := range hops {
		if sw, ok := n.SwitchNumber(h.Switch); ok && n.switches[sw].dropsTags {
			return hops[:i], false
		}
	}
	return hops, reached
}

// signalTo treats the tag of a packet that leaves when the port is free again, after it has taken so many nanoseconds to wait and to be sent.
func (d *port) signalTo(p *Packet, took float64) {
	before := p.Tag.Format
	ns := csig.Nanos{NS: uint64(took), Known: true}
	if d.signal.TransmitTag(&p.Tag, int(p.Octets), int64(d.free), csig.Waiting{Delay: ns, Queue: ns}) == csig.Stripped {
		p.Octets -= int32(before)
	}
}
