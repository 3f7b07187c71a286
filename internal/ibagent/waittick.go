package ibagent

import (
	"strings"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
)

// mellanox is the vendor ID of NVIDIA's devices, and the IDs of their switches are those of pci.ids.
const (
	mellanox  = 0x0002c9
	switchX   = 0xc738
	switchIB  = 0xcb20
	switchIB2 = 0xcf08
	quantum   = 0xd2f0
	quantum2  = 0xd2f2
	quantum3  = 0xd2f4
)

// waitTick returns the seconds that a tick of a port's PortXmitWait lasts, or 0 if that is not known. A tick is the
// time in which a number of octets would leave, which depends on the device: NVIDIA documents it for its switches
// (ibdiagnet user manual 2.13, "Congestion Assessment on InfiniBand Links", read 2026-11-28), as 8 octets of the port
// from Quantum on, and 32 octets of each lane before it.
func waitTick(n *ibfabric.Node, p *ibfabric.Port) float64 {
	gbps := p.RateGbps()
	if n.Vendor != mellanox || n.Type != ibmad.NodeSwitch || gbps <= 0 {
		return 0
	}
	bits := 8.0
	if p.Speed <= ibfabric.QDR {
		bits = 10 // the nominal rate of SDR, DDR and QDR includes the coding, 8b/10b
	}
	switch n.Device {
	case quantum, quantum2, quantum3:
		return 8 * bits / (gbps * 1e9)
	case switchX, switchIB, switchIB2:
		return 32 * bits * float64(p.Width) / (gbps * 1e9)
	}
	return 0
}

// descriptionText returns a node's description as the operator set it. Octets that are no UTF-8 become "?".
func descriptionText(n *ibfabric.Node) string {
	return strings.ToValidUTF8(strings.TrimRight(n.Description, " \x00"), "?")
}
