package node

import (
	"net"
	"net/http"
	"net/netip"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
)

// serveNICs answers with the node's NICs as they are configured, for programs that draw the fabric.
func (n *Node) serveNICs(w http.ResponseWriter, _ *http.Request) {
	n.mu.RLock()
	cfg := n.engine.Config()
	n.mu.RUnlock()
	out := fabric.NodeView{Node: cfg.Node, NICs: make([]fabric.NICView, 0, len(cfg.NICs))}
	byName, byAddress := localInterfaces()
	for i := range cfg.NICs {
		c := &cfg.NICs[i]
		v := fabric.NICView{NIC: c.NIC, Addresses: []netip.Addr{}, Plane: c.Plane, Rail: c.Rail, Side: c.Side}
		d, ok := byName[c.Device]
		if !ok {
			d = byAddress[c.Address]
		}
		v.MAC = d.mac
		if c.Address.IsValid() {
			v.Addresses = append(v.Addresses, c.Address)
		} else {
			v.Addresses = append(v.Addresses, d.addresses...)
		}
		out.NICs = append(out.NICs, v)
	}
	w.Header().Set("Content-Type", "application/json")
	if err := plainjson.NewEncoder(w).Encode(out); err != nil {
		n.log.Debug("cannot write the list of NICs", "err", err)
	}
}

// device represents an interface of the node.
type device struct {
	mac       string
	addresses []netip.Addr
}

// localInterfaces returns the node's interfaces by name and by address. What cannot be read is absent.
func localInterfaces() (byName map[string]device, byAddress map[netip.Addr]device) {
	byName, byAddress = map[string]device{}, map[netip.Addr]device{}
	list, err := net.Interfaces()
	if err != nil {
		return byName, byAddress
	}
	for _, i := range list {
		d := device{mac: i.HardwareAddr.String()}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					d.addresses = append(d.addresses, ip.Unmap())
				}
			}
		}
		byName[i.Name] = d
		for _, a := range d.addresses {
			byAddress[a] = d
		}
	}
	return byName, byAddress
}
