package nodeagent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/graylink/graylink/internal/probe"
)

// resolver finds the addresses of NICs that are configured by their devices.
type resolver struct {
	lookup   func(device string) ([]netip.Addr, error)
	rdmaOf   func(device string) *probe.RDMAConfig // returns the RDMA port of an interface; nil means NICs of an assignment are probed by UDP
	assigned map[string]netip.Addr                 // address from the coordinator, by NIC; invalid: the NIC is an InfiniBand port without addresses
}

// resolveAddresses returns the configuration with an address for every NIC that names a device: the assigned address if
// the device has it, else the one that it has in running. A device without an address keeps the one that it had, or
// else gets the assigned one.
func (r *resolver) resolveAddresses(cfg, running *probe.Config) (*probe.Config, error) {
	if !slices.ContainsFunc(cfg.NICs, func(c probe.NICConfig) bool { return !c.Address.IsValid() && c.Device != "" }) {
		return cfg, nil
	}
	out := *cfg
	out.NICs = slices.Clone(cfg.NICs)
	for i := range out.NICs {
		c := &out.NICs[i]
		if c.Address.IsValid() || c.Device == "" {
			continue // it may be probed by RDMA only
		}
		var had netip.Addr
		if running != nil {
			if j := slices.IndexFunc(running.NICs, func(q probe.NICConfig) bool { return q.NIC == c.NIC }); j >= 0 {
				had = running.NICs[j].Address
				if r.rdmaOf != nil {
					c.RDMA = running.NICs[j].RDMA // a device that is temporarily absent does not make the NIC fall back to UDP
				}
			}
		}
		if r.rdmaOf != nil {
			if port := r.rdmaOf(c.Device); port != nil {
				c.RDMA = port
			}
		}
		var err error
		if c.Address, err = r.chooseAddress(c, had); err != nil {
			return nil, err
		}
	}
	return &out, nil
}

// chooseAddress returns the address of a NIC's device: the assigned one, the one that it had, or its first one.
func (r *resolver) chooseAddress(c *probe.NICConfig, had netip.Addr) (netip.Addr, error) {
	assigned, ofCoordinator := r.assigned[c.NIC]
	if ofCoordinator && !assigned.IsValid() {
		return netip.Addr{}, nil
	}
	addrs, err := r.lookup(c.Device)
	switch {
	case err == nil && slices.Contains(addrs, assigned):
		return assigned, nil
	case err == nil && slices.Contains(addrs, had):
		return had, nil
	case err == nil && len(addrs) > 0:
		return addrs[0], nil
	case had.IsValid():
		return had, nil
	case assigned.IsValid():
		return assigned, nil
	case err != nil:
		return netip.Addr{}, fmt.Errorf("NIC %s: %w", c.NIC, err)
	}
	return netip.Addr{}, fmt.Errorf("NIC %s: device %s has no address, want an IPv4 or IPv6 unicast address", c.NIC, c.Device)
}

// deviceAddresses lists the addresses of an interface at which a NIC can be probed, IPv4 first.
func deviceAddresses(device string) ([]netip.Addr, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", device, err)
	}
	all, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of device %q: %w", device, err)
	}
	var out []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && probe.CheckAddress(p.Addr()) == nil {
			out = append(out, p.Addr())
		}
	}
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return out, nil
}
