package packets

import (
	"fmt"
	"slices"

	"github.com/graylink/graylink/internal/fabric"
)

// Slow delays what leaves an end by so many nanoseconds more.
func (n *Network) Slow(end string, by int64) error {
	p, err := n.port(end)
	if err == nil {
		p.slow += by
	}
	return err
}

// Lose loses this part of what leaves an end, 1 being everything.
func (n *Network) Lose(end string, part float64) error {
	p, err := n.port(end)
	if err == nil {
		p.loss = part
	}
	return err
}

// MarkAll marks what leaves an end, or no longer does.
func (n *Network) MarkAll(end string, on bool) error {
	p, err := n.port(end)
	if err == nil {
		p.markAll = on
	}
	return err
}

// Shape lets a port send so many octets a second, with a queue that takes so many
// nanoseconds to leave when it is full and marks from a quarter of that; 0: the
// port is its own again.
func (n *Network) Shape(end string, octetsPerSecond float64, full int64) error {
	p, err := n.port(end)
	if err != nil {
		return err
	}
	if octetsPerSecond == 0 {
		p.nsOctet, p.depth, p.mark = p.own.nsOctet, p.own.depth, p.own.mark
		// What waits leaves at the port's own rate.
		p.free = min(p.free, float64(n.now)+p.depth)
		return nil
	}
	p.nsOctet, p.depth, p.mark = 1e9/octetsPerSecond, float64(full), float64(full)/4
	return nil
}

// SlowSwitch delays all that a switch forwards by so many nanoseconds more.
func (n *Network) SlowSwitch(sw string, by int64) error {
	i, ok := n.bySwitch[sw]
	if !ok {
		return fmt.Errorf("the fabric has no switch %q", sw)
	}
	n.switches[i].slow += by
	return nil
}

// Mute lets a switch tell nobody that packets expired, or tell it again.
func (n *Network) Mute(sw string, on bool) error {
	i, ok := n.bySwitch[sw]
	if !ok {
		return fmt.Errorf("the fabric has no switch %q", sw)
	}
	n.switches[i].mute = on
	return nil
}

// SetLink takes a link down or brings it up. Those that are down and withdrawn are
// known to be to all switches.
func (n *Network) SetLink(link string, down, withdrawn bool) {
	set(n.down, link, down)
	set(n.known, link, down && withdrawn)
	n.route()
}

func set(s map[string]bool, key string, on bool) {
	if on {
		s[key] = true
	} else {
		delete(s, key)
	}
}

// Swap exchanges the cables of two links between switches at their upper ends, or
// puts them back.
func (n *Network) Swap(one, two string) {
	pair := [2]string{n.upper(one), n.upper(two)}
	if i := slices.Index(n.swapped, pair); i >= 0 {
		n.swapped = slices.Delete(n.swapped, i, i+1)
	} else {
		n.swapped = append(n.swapped, pair)
	}
	n.plug()
}

// upper is the end of a link that is at the switch of the higher tier.
func (n *Network) upper(link string) string {
	a, b, _ := fabric.SplitLink(link)
	if n.g.SwitchTier(fabric.OwnerOf(a)) > n.g.SwitchTier(fabric.OwnerOf(b)) {
		return a
	}
	return b
}

// Crosses reports whether a flow leaves an end by the routes of this moment.
func (n *Network) Crosses(from, to int32, flow uint64, end string) bool {
	for out, left := n.nics[from].out, len(n.switches); out >= 0 && left >= 0; left-- {
		d := &n.ports[out]
		if d.end == end {
			return true
		}
		if d.toNIC >= 0 {
			return false
		}
		out = n.choose(d.toSW, to, flow)
	}
	return false
}
