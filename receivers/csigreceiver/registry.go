package csigreceiver

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/capture"
	"github.com/graylink/graylink/internal/csig/observe"
	"github.com/graylink/graylink/internal/fabric"
)

// registry knows the senders whose tags are used.
type registry struct {
	graph    *fabric.Graph // nil without a topology
	networks []netip.Prefix
	node     string
}

// newRegistry reads the topology of a configuration, if there is one.
func newRegistry(c *Config) (*registry, error) {
	r := &registry{node: c.Node}
	if r.node == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		r.node = host
	}
	for i, s := range c.Senders {
		n, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("senders[%d]: %w", i, err)
		}
		r.networks = append(r.networks, n)
	}
	if c.Topology == "" {
		return r, nil
	}
	t, problems := fabric.LoadTopology(c.Topology)
	if err := problems.Err(); err != nil {
		return nil, err
	}
	r.graph = fabric.NewGraph(t)
	return r, nil
}

// nicOf returns the NIC of an address by the topology, the address itself if it is in one of the networks, and "" otherwise.
func (r *registry) nicOf(a netip.Addr) string {
	if nic := r.topologyNIC(a); nic != "" {
		return nic
	}
	for _, n := range r.networks {
		if n.Contains(a) {
			return a.String()
		}
	}
	return ""
}

// topologyNIC returns the NIC that has an address in the topology, or "".
func (r *registry) topologyNIC(a netip.Addr) string {
	if r.graph == nil {
		return ""
	}
	if end := r.graph.EndOf(a); end != "" && r.graph.NIC(end) != nil {
		return end
	}
	return ""
}

// interfaceNIC returns the NIC of an interface of this node: by its addresses in the topology, and by its name otherwise.
func (r *registry) interfaceNIC(i *net.Interface) string {
	addresses, err := i.Addrs()
	if err == nil {
		for _, a := range addresses {
			if n, err := netip.ParsePrefix(a.String()); err == nil {
				if nic := r.topologyNIC(n.Addr()); nic != "" {
					return nic
				}
			}
		}
	}
	return r.node + "/" + i.Name
}

// newReader reads the profile and the topology of a configuration, and returns a reader of tags by them.
func newReader(c *Config) (*capture.Reader, *registry, *csig.Profile, error) {
	p, err := csig.LoadProfile(c.Profile)
	if err != nil {
		return nil, nil, nil, err
	}
	r, err := newRegistry(c)
	if err != nil {
		return nil, nil, nil, err
	}
	o := capture.Options{Observe: observe.Options{Flows: c.Flows, NewLocators: c.NewLocators}, NICOf: r.nicOf, StampPort: uint16(c.StampPort),
		SourcePort: uint16(c.SourcePort)}
	return capture.NewReader(p, o), r, p, nil
}
