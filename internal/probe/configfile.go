package probe

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/rdma"
)

// filePeer represents a peer in a file.
type filePeer struct {
	PeerConfig
	tier, flows int
	from        []string // own NICs that probe it; empty means all
	probe       bool     // false if its probes are answered, but it is not probed
}

// ParseConfig parses and checks a configuration. The error names the line, the field and the expected value.
func ParseConfig(b []byte) (*Config, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("not YAML: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("line 1: the file is empty: want node, nics and peers")
	}
	c := defaultConfig()
	r := fileReader{Config: &c, own: map[string]bool{}, addresses: map[netip.Addr]string{}, knownPeers: map[string]bool{}, gids: map[netip.Addr]string{}}
	if err := r.readRoot(doc.Content[0]); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	c.Hash = hex.EncodeToString(sum[:8])
	return &c, nil
}

// fileReader reads a configuration file into a Config.
type fileReader struct {
	*Config
	single     ClassConfig // of stamp.dscp and stamp.class
	own        map[string]bool
	addresses  map[netip.Addr]string // NIC by address
	peersNode  *yaml.Node            // read last, since it refers to own NICs
	peers      []filePeer
	knownPeers map[string]bool
	gids       map[netip.Addr]string // peer's NIC by GID
	carriers   *yaml.Node            // read after the peers, since it refers to their flows
}

// readRoot reads the whole file.
func (r *fileReader) readRoot(root *yaml.Node) error {
	if err := r.rootFields().readMapping(root, ""); err != nil {
		return err
	}
	if r.single != (ClassConfig{}) {
		if len(r.Stamp.Classes) != 1 || r.Stamp.Classes[0] != (ClassConfig{}) {
			return badField(root, "stamp.classes", "given beside class or dscp, want one of both")
		}
		r.Stamp.Classes[0] = r.single
	}
	if len(r.Stamp.Classes) == 0 {
		return badField(root, "stamp.classes", "empty, want at least one class")
	}
	if r.peersNode != nil {
		if err := listField("peers", r.readPeer)(r.peersNode); err != nil {
			return err
		}
	}
	r.connectPeers(r.peers)
	if r.carriers != nil {
		if err := r.readCarriers(r.carriers); err != nil {
			return err
		}
	}
	return r.checkComplete(root)
}

// rootFields returns the keys of the file.
func (r *fileReader) rootFields() fields {
	return fields{
		"node":          r.readNode,
		"cadence":       durationField("cadence", minCadence, maxCadence, &r.Cadence),
		"reply_timeout": durationField("reply_timeout", 10*time.Millisecond, time.Minute, &r.ReplyTimeout),
		"stamp":         r.readStamp,
		"authentication": func(n *yaml.Node) error {
			return fields{"key_file": stringField("authentication.key_file", &r.KeyFile)}.readMapping(n, "authentication")
		},
		"clock": func(n *yaml.Node) error {
			return fields{"error_bound": func(n *yaml.Node) error {
				r.ErrorBound = new(time.Duration)
				return durationField("clock.error_bound", 0, time.Hour, r.ErrorBound)(n)
			}}.readMapping(n, "clock")
		},
		"nics":     listField("nics", r.readNIC),
		"peers":    func(n *yaml.Node) error { r.peersNode = n; return nil },
		"carriers": func(n *yaml.Node) error { r.carriers = n; return nil },
		"trace": func(n *yaml.Node) error {
			return fields{
				"packets_per_second": integerField("trace.packets_per_second", 1, 100_000, &r.Trace.PacketsPerSecond),
				"packets_per_switch": integerField("trace.packets_per_switch", 1, 10_000, &r.Trace.PacketsPerSwitch),
				"concurrency":        integerField("trace.concurrency", 1, 1024, &r.Trace.Concurrency),
			}.readMapping(n, "trace")
		},
	}
}

// readNode reads the node's name.
func (r *fileReader) readNode(n *yaml.Node) error {
	if err := fabric.CheckName(n.Value); err != nil {
		return badField(n, "node", "%v", err)
	}
	r.Node = n.Value
	return nil
}

// claimAddress records the address of a NIC, which no other NIC may have.
func (r *fileReader) claimAddress(n *yaml.Node, at, nic string, a netip.Addr) error {
	if other, taken := r.addresses[a]; taken {
		return badField(n, at+".address", "%v is also that of %s, want one NIC per address", a, other)
	}
	r.addresses[a] = nic
	return nil
}

// readStamp reads the format of probes.
func (r *fileReader) readStamp(n *yaml.Node) error {
	return fields{
		"port":        integerField("stamp.port", 1, 65535, &r.Stamp.Port),
		"source_port": integerField("stamp.source_port", 1, 65535-maxFlows, &r.Stamp.SourcePort),
		"dscp":        integerField("stamp.dscp", 0, 63, &r.single.DSCP),
		"class":       stringField("stamp.class", &r.single.Name),
		"padding":     integerField("stamp.padding", 0, maxPadding, &r.Stamp.Padding),
		"classes": func(n *yaml.Node) error {
			r.Stamp.Classes = nil
			return listField("stamp.classes", r.readClass)(n)
		},
	}.readMapping(n, "stamp")
}

// readClass reads one class of traffic.
func (r *fileReader) readClass(n *yaml.Node, at string) error {
	var v ClassConfig
	if err := (fields{"name": stringField(at+".name", &v.Name), "dscp": integerField(at+".dscp", 0, 63, &v.DSCP), "sl": integerField(at+".sl", 0, 15, &v.SL)}).readMapping(n, at); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Stamp.Classes, func(o ClassConfig) bool { return o.Name == v.Name }) {
		return badField(n, at+".name", "%q is listed twice", v.Name)
	}
	r.Stamp.Classes = append(r.Stamp.Classes, v)
	if len(r.Stamp.Classes) > maxClasses {
		return badField(n, at, "one class too many, want at most %d", maxClasses)
	}
	return nil
}

// readNIC reads one NIC of this node.
func (r *fileReader) readNIC(n *yaml.Node, at string) error {
	var v NICConfig
	port := func(n *yaml.Node) error {
		v.RDMA = &RDMAConfig{}
		return v.RDMA.readBlock(n, at+".rdma")
	}
	rail := func(n *yaml.Node) error {
		v.Rail = new(int)
		return integerField(at+".rail", 0, 1<<20, v.Rail)(n)
	}
	if err := (fields{"nic": nicField(at+".nic", &v.NIC), "address": addressField(at+".address", &v.Address),
		"leaf": stringField(at+".leaf", &v.Leaf), "leaf_port": stringField(at+".leaf_port", &v.LeafPort),
		"plane": stringField(at+".plane", &v.Plane), "rail": rail, "pod": stringField(at+".pod", &v.Pod),
		"side": stringField(at+".side", &v.Side), "device": stringField(at+".device", &v.Device),
		"ssid": integerField(at+".ssid", 1, maxSSID, &v.SSID), "timestamps": timestampsField(at+".timestamps", &v.Timestamps), "rdma": port}).readMapping(n, at); err != nil {
		return err
	}
	switch {
	case v.NIC == "":
		return badField(n, at+".nic", "missing, want a NIC as node/device")
	case !v.Address.IsValid() && v.Device == "" && v.RDMA == nil:
		return badField(n, at+".address", "missing, want an IPv4 or IPv6 unicast address, the device that has one, or rdma")
	case r.own[v.NIC]:
		return badField(n, at+".nic", "%q is listed twice", v.NIC)
	}
	r.own[v.NIC] = true
	r.NICs = append(r.NICs, v)
	if !v.Address.IsValid() {
		return nil
	}
	return r.claimAddress(n, at, v.NIC, v.Address)
}

// appendOwn appends the name of a NIC of this node to a list.
func (r *fileReader) appendOwn(list []string, n *yaml.Node, at string) ([]string, error) {
	var id string
	if err := nicField(at, &id)(n); err != nil {
		return nil, err
	}
	if !r.own[id] {
		return nil, badField(n, at, "%q, want a NIC of this node's nics", id)
	}
	return append(list, id), nil
}

// readPeer reads one NIC of another node.
func (r *fileReader) readPeer(n *yaml.Node, at string) error {
	v := filePeer{flows: 1, probe: true}
	var pair RDMAPeer
	from := listField(at+".from", func(n *yaml.Node, at string) (err error) {
		v.from, err = r.appendOwn(v.from, n, at)
		return err
	})
	if err := (fields{"nic": nicField(at+".nic", &v.NIC), "address": addressField(at+".address", &v.Address),
		"leaf": stringField(at+".leaf", &v.Leaf), "tier": integerField(at+".tier", 0, 9, &v.tier),
		"plane": stringField(at+".plane", &v.Plane), "flows": integerField(at+".flows", 1, fabric.ScheduledFlows, &v.flows),
		"ssid": integerField(at+".ssid", 1, maxSSID, &v.SSID), "hardware": scalarField(at+".hardware", "true or false", &v.Hardware),
		"from": from, "probe": scalarField(at+".probe", "true or false", &v.probe),
		"gid": gidField(at+".gid", &pair.GID), "qpn": numberField(at+".qpn", 2, maxQPN, &pair.QPN), "qkey": numberField(at+".qkey", 1, rdma.MaxQKey, &pair.QKey),
		"lid": integerField(at+".lid", 1, maxLID, &pair.LID)}).readMapping(n, at); err != nil {
		return err
	}
	if pair != (RDMAPeer{}) {
		if err := pair.checkKeys(n, at); err != nil {
			return err
		}
		pair.Hardware = v.Hardware
		v.RDMA = &pair
	}
	switch {
	case v.NIC == "":
		return badField(n, at+".nic", "missing, want a NIC as node/device")
	case !v.Address.IsValid() && v.RDMA == nil:
		return badField(n, at+".address", "missing, want an IPv4 or IPv6 unicast address, or gid, qpn and qkey")
	case r.own[v.NIC]:
		return badField(n, at+".nic", "%q is a NIC of this node, want one of another", v.NIC)
	case r.knownPeers[v.NIC]:
		return badField(n, at+".nic", "%q is listed twice", v.NIC)
	}
	r.knownPeers[v.NIC] = true
	r.peers = append(r.peers, v)
	if v.RDMA != nil {
		if other, taken := r.gids[rdma.CanonicalGID(v.RDMA.GID)]; taken {
			return badField(n, at+".gid", "%v is also that of %s, want one NIC per GID", v.RDMA.GID, other)
		}
		r.gids[rdma.CanonicalGID(v.RDMA.GID)] = v.NIC
	}
	if !v.Address.IsValid() {
		return nil
	}
	return r.claimAddress(n, at, v.NIC, v.Address)
}

// checkKeys returns an error for the first key that is missing beside the others.
func (p *RDMAPeer) checkKeys(n *yaml.Node, at string) error {
	for _, f := range []struct {
		key  string
		have bool
	}{{"gid", p.GID.IsValid()}, {"qpn", p.QPN != 0}, {"qkey", p.QKey != 0}} {
		if !f.have {
			return badField(n, at+"."+f.key, "missing, want it beside the peer's other keys of RDMA")
		}
	}
	return nil
}

// canReach reports whether a NIC and a peer can send to each other, as far as that is known: both by RDMA, or by
// addresses of one family. The address of a NIC that names a device is not known yet.
func canReach(n *NICConfig, p *PeerConfig) bool {
	if n.RDMA != nil && p.RDMA != nil {
		return true
	}
	if !p.Address.IsValid() || !n.Address.IsValid() && n.Device == "" {
		return false
	}
	return !n.Address.IsValid() || n.Address.Is4() == p.Address.Is4()
}

// connectPeers makes edges from the peers of a file.
func (c *Config) connectPeers(peers []filePeer) {
	for i := range peers {
		p := &peers[i]
		c.Peers = append(c.Peers, p.PeerConfig)
		for _, nic := range c.NICs {
			if !canReach(&nic, &p.PeerConfig) {
				continue // neither can reach the other
			}
			for class := range c.Stamp.Classes {
				for f := range p.flows {
					flow := class*FlowsPerClass + f
					if p.probe && (len(p.from) == 0 || slices.Contains(p.from, nic.NIC)) {
						c.Edges = append(c.Edges, EdgeConfig{Src: nic.NIC, Dst: p.NIC, Flow: flow, Tier: p.tier, Cadence: c.Cadence})
					}
					c.Answers = append(c.Answers, EdgeConfig{Src: p.NIC, Dst: nic.NIC, Flow: flow, Tier: p.tier, Cadence: c.Cadence})
				}
			}
		}
	}
}

// readCarriers reads the paths that the node chooses.
func (r *fileReader) readCarriers(n *yaml.Node) error {
	flows := map[fabric.Flow]*EdgeConfig{}
	for i := range r.Edges {
		flows[r.Edges[i].ID()] = &r.Edges[i]
	}
	for i := range r.Answers {
		id := r.Answers[i].ID()
		id.Reply = true
		flows[id] = &r.Answers[i]
	}
	if n.Kind != yaml.MappingNode {
		return badField(n, "carriers", "want a mapping of flows to addresses")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := joinField("carriers", key.Value)
		id, err := fabric.ParseFlow(key.Value)
		e := flows[id]
		switch {
		case err != nil:
			return badField(key, at, "%v", err)
		case e == nil:
			return badField(key, at, "want a flow that this node probes, or one that it answers with /r")
		case e.Carrier.IsValid():
			return badField(key, at, "given twice")
		}
		a, err := netip.ParseAddr(value.Value)
		if err != nil || !isCarrier(a) {
			return badField(value, at, "%q, want an IPv6 address that lists identifiers, such as fcbb:bb00:1:2:3:e000::", value.Value)
		}
		e.Carrier = a
	}
	return nil
}

// Limits of the keys of the rdma blocks.
const (
	maxLID  = 0xbfff           // of unicast: IBTA 4.1.3
	maxBusy = time.Millisecond // longest polling without sleep
)

// readBlock parses the rdma block of a NIC.
func (c *RDMAConfig) readBlock(n *yaml.Node, at string) error {
	c.Port, c.PKey = 1, rdma.DefaultPKey
	pkey, index, pkeyIndex := uint32(0), -1, -1
	if err := (fields{"device": stringField(at+".device", &c.Device), "port": integerField(at+".port", 1, 255, &c.Port), "gid": gidField(at+".gid", &c.GID),
		"gid_index": integerField(at+".gid_index", 0, rdma.MaxGIDIndex, &index), "pkey": numberField(at+".pkey", 1, 0xffff, &pkey),
		"pkey_index": integerField(at+".pkey_index", 0, rdma.MaxPKeyIndex, &pkeyIndex), "qkey": numberField(at+".qkey", 1, rdma.MaxQKey, &c.QKey),
		"busy_poll": durationField(at+".busy_poll", 0, maxBusy, &c.BusyPoll)}).readMapping(n, at); err != nil {
		return err
	}
	if index >= 0 {
		c.GIDIndex = &index
	}
	switch {
	case pkeyIndex >= 0 && pkey != 0:
		return badField(n, at+".pkey_index", "given beside pkey, want one of both")
	case pkeyIndex >= 0:
		c.PKeyIndex = &pkeyIndex
	case pkey != 0:
		c.PKey = uint16(pkey)
	}
	switch {
	case c.Device == "":
		return badField(n, at+".device", "missing, want the name of an RDMA device, such as mlx5_0")
	case c.QKey == 0:
		return badField(n, at+".qkey", "missing, want a number from 1 to %#x that the peers have as well", rdma.MaxQKey)
	}
	return nil
}

// checkComplete returns an error if the file lacks a field, or cannot be run.
func (c *Config) checkComplete(root *yaml.Node) error {
	switch {
	case c.Node == "":
		return badField(root, "node", "missing, want the node's name")
	case len(c.NICs) == 0:
		return badField(root, "nics", "missing, want at least one NIC of this node")
	case c.ReplyTimeout < c.Cadence:
		return badField(root, "reply_timeout", "%v is shorter than the cadence %v, want at least that", c.ReplyTimeout, c.Cadence)
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("line %d: %w", root.Line, err)
	}
	return nil
}
