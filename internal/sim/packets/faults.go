package packets

import (
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// AddDelay delays what leaves an end by so many nanoseconds more.
func (n *Network) AddDelay(end string, by int64) error {
	p, err := n.portAt(end)
	if err == nil {
		p.slow += by
	}
	return err
}

// SetLoss loses this part of what leaves an end, 1 being everything.
func (n *Network) SetLoss(end string, part float64) error {
	p, err := n.portAt(end)
	if err == nil {
		p.loss = part
	}
	return err
}

// MarkAll marks what leaves an end, or no longer does.
func (n *Network) MarkAll(end string, on bool) error {
	p, err := n.portAt(end)
	if err == nil {
		p.markAll = on
	}
	return err
}

// ShapePort lets a port send so many octets a second, with a queue that takes so many
// nanoseconds to leave when it is full and marks from a quarter of that; 0: the
// port is its own again.
func (n *Network) ShapePort(end string, octetsPerSecond float64, full int64) error {
	p, err := n.portAt(end)
	if err != nil {
		return err
	}
	defer n.connectSignal(p)
	if octetsPerSecond == 0 {
		p.nsOctet, p.depth, p.mark = p.unshaped.nsOctet, p.unshaped.depth, p.unshaped.mark
		// What waits leaves at the port's own rate.
		p.free = min(p.free, float64(n.now)+p.depth)
		return nil
	}
	p.nsOctet, p.depth, p.mark = 1e9/octetsPerSecond, float64(full), float64(full)/4
	return nil
}

// SlowSwitch delays all that a switch forwards by so many nanoseconds more.
func (n *Network) SlowSwitch(sw string, by int64) error {
	i, err := n.switchAt(sw)
	if err == nil {
		n.switches[i].slow += by
	}
	return err
}

// MuteSwitch stops a switch from reporting that packets expired, or lets it report again.
func (n *Network) MuteSwitch(sw string, on bool) error {
	i, err := n.switchAt(sw)
	if err == nil {
		n.switches[i].mute = on
	}
	return err
}

// SetLink takes a link down or brings it up. Those that are down and withdrawn are
// known to be to all switches.
func (n *Network) SetLink(link string, down, withdrawn bool) {
	setFlag(n.down, link, down)
	setFlag(n.withdrawn, link, down && withdrawn)
	n.computeRoutes()
}

func setFlag(s map[string]bool, key string, on bool) {
	if on {
		s[key] = true
	} else {
		delete(s, key)
	}
}

// SwapCables exchanges the cables of two links between switches at their upper ends, or
// puts them back.
func (n *Network) SwapCables(one, two string) {
	pair := [2]string{n.upperEnd(one), n.upperEnd(two)}
	if i := slices.Index(n.swapped, pair); i >= 0 {
		n.swapped = slices.Delete(n.swapped, i, i+1)
	} else {
		n.swapped = append(n.swapped, pair)
	}
	n.connectPorts()
}

// upperEnd returns the end of a link that is at the switch of the higher tier.
func (n *Network) upperEnd(link string) string {
	a, b, _ := fabric.SplitLink(link)
	if n.g.SwitchTier(fabric.OwnerOf(a)) > n.g.SwitchTier(fabric.OwnerOf(b)) {
		return a
	}
	return b
}

// FlowCrosses reports whether a flow leaves an end by the routes of this moment. Where packets are sprayed, it speaks of one
// packet.
func (n *Network) FlowCrosses(from, to int32, flow uint64, end string) bool {
	for out, left := n.nics[from].out, len(n.switches); out >= 0 && left >= 0; left-- {
		d := &n.ports[out]
		if d.end == end {
			return true
		}
		if d.toNIC >= 0 {
			return false
		}
		out = n.chooseNextHop(d.toSW, to, flow)
	}
	return false
}
