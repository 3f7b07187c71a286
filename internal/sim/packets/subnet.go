package packets

// Subnet is what is installed in an InfiniBand subnet at one moment. Once a network has one, packets follow it alone:
// there are no routes and no hashes of the network's own.
type Subnet struct {
	// Far maps each end that is active to the end that its cable leads to.
	Far map[string]string
	// Next maps a switch and a NIC to the ends by which the switch sends to it. Of several, every packet takes a random
	// one, as with adaptive routing.
	Next map[string]map[string][]string
}

// SetSubnet replaces what is installed. What is on a cable that is moved arrives where the
// cable leads then.
func (n *Network) SetSubnet(s Subnet) {
	n.subnet = &s
	n.tables = make([][][]int32, len(n.switches))
	for i := range n.switches {
		n.tables[i] = make([][]int32, len(n.nics))
		for nic, ends := range s.Next[n.switches[i].name] {
			k, ok := n.byNIC[nic]
			if !ok {
				continue
			}
			for _, e := range ends {
				if p, ok := n.byEnd[e]; ok {
					n.tables[i][k] = append(n.tables[i][k], p)
				}
			}
		}
	}
	n.connectPorts()
}

// chooseInstalled returns the port by which a switch sends a packet to a NIC by the installed tables, and -1 if there is
// none.
func (n *Network) chooseInstalled(sw, to int32) int32 {
	ways := n.tables[sw][to]
	switch len(ways) {
	case 0:
		return -1
	case 1:
		return ways[0]
	}
	return ways[n.rng.IntN(len(ways))]
}

// activeFarEnd returns the end that an end's cable leads to. ok is false if the end is not active: it sends nothing.
func (n *Network) activeFarEnd(end string) (far string, ok bool) {
	far, ok = n.subnet.Far[end]
	if _, known := n.byEnd[far]; !ok || !known {
		return n.g.PeerOf(end), false
	}
	return far, true
}
