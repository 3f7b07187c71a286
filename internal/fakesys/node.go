package fakesys

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Node describes a node. Only names, PCI addresses and rates must be given: the rest is as the
// driver has it where all is well.
type Node struct {
	Hostname string   `yaml:"hostname,omitempty"`
	BootID   string   `yaml:"boot_id,omitempty"`
	Devices  []Device `yaml:"devices"`
	// Then are steps of the script language that Build takes at the end.
	Then []string `yaml:"then,omitempty"`
}

// Device is a PCI function with what its driver made of it, or, without an address, virtual
// devices.
type Device struct {
	PCI    string `yaml:"pci,omitempty"` // 0000:18:00.0
	Driver string `yaml:"driver,omitempty"`
	Vendor string `yaml:"vendor,omitempty"` // 0x15b3
	ID     string `yaml:"device,omitempty"` // 0x1021
	NUMA   int    `yaml:"numa_node,omitempty"`
	// Link speeds as in "32.0 GT/s PCIe". Those of a virtual function are always "Unknown", width 0.
	LinkSpeed    string `yaml:"current_link_speed,omitempty"`
	LinkWidth    int    `yaml:"current_link_width,omitempty"`
	MaxLinkSpeed string `yaml:"max_link_speed,omitempty"`
	MaxLinkWidth int    `yaml:"max_link_width,omitempty"`
	// TotalVFs makes the sriov_ files, which virtual functions make too.
	TotalVFs int `yaml:"sriov_totalvfs,omitempty"`
	// VFOf is the address of the physical function that this is a virtual one of.
	VFOf string `yaml:"vf_of,omitempty"`
	RDMA *RDMA  `yaml:"rdma,omitempty"`
	Net  []Net  `yaml:"net,omitempty"`
}

// RDMA is a device of /sys/class/infiniband.
type RDMA struct {
	Name         string `yaml:"name"`
	NodeType     string `yaml:"node_type,omitempty"`
	HCAType      string `yaml:"hca_type,omitempty"`
	Firmware     string `yaml:"fw_ver,omitempty"`
	BoardID      string `yaml:"board_id,omitempty"`
	NodeDesc     string `yaml:"node_desc,omitempty"`
	NodeGUID     string `yaml:"node_guid,omitempty"`
	SysImageGUID string `yaml:"sys_image_guid,omitempty"`
	// Parent is the interface that a software device such as rxe is on.
	Parent string `yaml:"parent,omitempty"`
	Ports  []Port `yaml:"ports"`
}

// Port is a port of an RDMA device. Counters not named are those of the driver: zero where they
// count errors, and some number where they count traffic.
type Port struct {
	Port      int    `yaml:"port,omitempty"`       // the next number
	State     string `yaml:"state,omitempty"`      // "4: ACTIVE"
	PhysState string `yaml:"phys_state,omitempty"` // that of State
	Rate      string `yaml:"rate,omitempty"`
	LinkLayer string `yaml:"link_layer,omitempty"` // InfiniBand
	LID       uint16 `yaml:"lid,omitempty"`
	SMLID     uint16 `yaml:"sm_lid,omitempty"`
	CapMask   string `yaml:"cap_mask,omitempty"`
	// GIDTable is how many entries the table of GIDs has. GIDs are those at its start, by default
	// those that the GUID, or the interface with its address, gives; NoGIDs is none.
	GIDTable   int               `yaml:"gid_table,omitempty"`
	GIDs       []GID             `yaml:"gids,omitempty"`
	NoGIDs     bool              `yaml:"no_gids,omitempty"`
	Counters   map[string]uint64 `yaml:"counters,omitempty"`
	HWCounters map[string]uint64 `yaml:"hw_counters,omitempty"`
}

// GID is an entry of a port's table of GIDs.
type GID struct {
	GID    string `yaml:"gid"`
	Type   string `yaml:"type,omitempty"`
	NetDev string `yaml:"ndev,omitempty"`
}

// Net represents an interface of /sys/class/net. The loopback interface always exists.
type Net struct {
	Name           string            `yaml:"name"`
	Address        string            `yaml:"address,omitempty"`
	IPv4           string            `yaml:"ipv4,omitempty"` // for GIDs
	Type           int               `yaml:"type,omitempty"` // 1, Ethernet; 32, InfiniBand; 772, loopback
	MTU            int               `yaml:"mtu,omitempty"`
	Speed          int               `yaml:"speed,omitempty"` // Mb/s
	OperState      string            `yaml:"operstate,omitempty"`
	CarrierChanges uint64            `yaml:"carrier_changes,omitempty"`
	DevPort        int               `yaml:"dev_port,omitempty"`
	Statistics     map[string]uint64 `yaml:"statistics,omitempty"`
	Bond           *Bond             `yaml:"bond,omitempty"`
}

// Bond makes an interface a bond of others.
type Bond struct {
	Mode   string   `yaml:"mode,omitempty"` // "802.3ad 4"
	Slaves []string `yaml:"slaves"`
}

// FieldError is a field of a description that will not do. File and Line are set by ParseNode.
type FieldError struct {
	File  string
	Line  int
	Field string // devices[0].rdma.ports[0].rate
	Want  string // what is there, and what is expected
}

func (e *FieldError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("%s: %s", e.Field, e.Want)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Field, e.Want)
}

func newFieldError(field, format string, args ...any) error {
	return &FieldError{Field: field, Want: fmt.Sprintf(format, args...)}
}

// States as drivers/infiniband/core/sysfs.c writes them.
var (
	portStates = []string{"0: NOP", "1: DOWN", "2: INIT", "3: ARMED", "4: ACTIVE", "5: ACTIVE_DEFER"}
	physStates = []string{"0: <unknown>", "1: Sleep", "2: Polling", "3: Disabled", "4: PortConfigurationTraining", "5: LinkUp", "6: LinkErrorRecovery", "7: Phy Test"}
	linkLayers = []string{"InfiniBand", "Ethernet", "Unknown"}
	gidTypes   = []string{"IB/RoCE v1", "RoCE v2"}
	// RFC 2863, as net/core/net-sysfs.c writes them.
	operStates = []string{"unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"}

	namePattern   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}$`)
	pciPattern    = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	hexPattern    = regexp.MustCompile(`^0x[0-9a-f]{1,8}$`)
	ratePattern   = regexp.MustCompile(`^[0-9]+(\.[0-9]+)? Gb/sec( \([0-9]+X [A-Z0-9]+\))?$`)
	guidPattern   = regexp.MustCompile(`^[0-9a-f]{4}(:[0-9a-f]{4}){3}$`)
	gidPattern    = regexp.MustCompile(`^[0-9a-f]{4}(:[0-9a-f]{4}){7}$`)
	macPattern    = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){5}((:[0-9a-f]{2}){14})?$`)
	speedPattern  = regexp.MustCompile(`^([0-9]+\.[0-9] GT/s PCIe|Unknown)$`)
	bootIDPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

const maxGIDTable = 1024 // of rxe; mlx5 has 256 on Ethernet

// Validate returns a *FieldError if a node is wrong.
func (n Node) Validate() error {
	for _, f := range []optionalField{
		{"hostname", n.Hostname, namePattern, "a host name"},
		{"boot_id", n.BootID, bootIDPattern, "a UUID in lower case"},
	} {
		if err := f.checkForm(); err != nil {
			return err
		}
	}
	seen := map[string]string{"interface lo": "the loopback interface"}
	once := func(kind, name, field string) error {
		if was, ok := seen[kind+" "+name]; ok {
			return newFieldError(field, "%q: another name than that of %s is expected", name, was)
		}
		seen[kind+" "+name] = field
		return nil
	}
	functions := map[string]Device{}
	for _, d := range n.Devices {
		functions[d.PCI] = d
	}
	for i, d := range n.Devices {
		if err := d.validate(fmt.Sprintf("devices[%d]", i), functions, once); err != nil {
			return err
		}
	}
	for i, d := range n.Devices {
		if d.PCI == "" {
			continue
		}
		if bridge := path.Base(rootPortDir(d)); functions[bridge].PCI != "" {
			return newFieldError(fmt.Sprintf("devices[%d].pci", i), "%q: its root port is at %s, where a device is", d.PCI, bridge)
		}
	}
	if err := n.validateBonds(); err != nil {
		return err
	}
	for i, s := range n.Then {
		if _, err := parseOp(s); err != nil {
			return newFieldError(fmt.Sprintf("then[%d]", i), "%v", err)
		}
	}
	return nil
}

// optionalField is one that may be empty, and else has a form.
type optionalField struct {
	at, value string
	form      *regexp.Regexp
	want      string
}

func (f optionalField) checkForm() error {
	if f.value != "" && !f.form.MatchString(f.value) {
		return newFieldError(f.at, "%q: %s is expected", f.value, f.want)
	}
	return nil
}

func oneOf(at, value string, allowed []string) error {
	if value != "" && !slices.Contains(allowed, value) {
		return newFieldError(at, "%q: one of %q is expected", value, allowed)
	}
	return nil
}

func oneLine(at, value string) error {
	if strings.ContainsAny(value, "\n\x00") {
		return newFieldError(at, "%q: a single line is expected", value)
	}
	return nil
}

func (d Device) validate(at string, functions map[string]Device, once func(kind, name, field string) error) error {
	for _, f := range []optionalField{
		{at + ".pci", d.PCI, pciPattern, "an address such as 0000:18:00.0"},
		{at + ".driver", d.Driver, namePattern, "the name of a driver"},
		{at + ".vendor", d.Vendor, hexPattern, "a number such as 0x15b3"},
		{at + ".device", d.ID, hexPattern, "a number such as 0x1021"},
		{at + ".current_link_speed", d.LinkSpeed, speedPattern, `a speed such as "32.0 GT/s PCIe"`},
		{at + ".max_link_speed", d.MaxLinkSpeed, speedPattern, `a speed such as "32.0 GT/s PCIe"`},
	} {
		if err := f.checkForm(); err != nil {
			return err
		}
	}
	if d.PCI == "" {
		for name, given := range map[string]bool{"driver": d.Driver != "", "vf_of": d.VFOf != "", "sriov_totalvfs": d.TotalVFs != 0} {
			if given {
				return newFieldError(at+"."+name, "a device without pci has none")
			}
		}
	} else {
		if err := once("function", d.PCI, at+".pci"); err != nil {
			return err
		}
		if d.Driver == "" {
			return newFieldError(at+".driver", "a driver such as mlx5_core is expected")
		}
	}
	for name, n := range map[string]int{"current_link_width": d.LinkWidth, "max_link_width": d.MaxLinkWidth, "sriov_totalvfs": d.TotalVFs} {
		if n < 0 {
			return newFieldError(at+"."+name, "%d: a number that is not negative is expected", n)
		}
	}
	if d.VFOf != "" {
		if pf, ok := functions[d.VFOf]; !ok || d.VFOf == d.PCI || pf.VFOf != "" {
			return newFieldError(at+".vf_of", "%q: the pci of a device that is no virtual function itself is expected", d.VFOf)
		}
		if d.TotalVFs != 0 {
			return newFieldError(at+".sriov_totalvfs", "a virtual function has none")
		}
	}
	for i, f := range d.Net {
		if err := f.validate(fmt.Sprintf("%s.net[%d]", at, i), once); err != nil {
			return err
		}
	}
	if d.RDMA == nil {
		return nil
	}
	return d.RDMA.validate(at+".rdma", once)
}

func (r RDMA) validate(at string, once func(kind, name, field string) error) error {
	if !namePattern.MatchString(r.Name) {
		return newFieldError(at+".name", "%q: a name such as mlx5_0 is expected", r.Name)
	}
	if err := once("RDMA device", r.Name, at+".name"); err != nil {
		return err
	}
	for _, f := range []optionalField{
		{at + ".node_guid", r.NodeGUID, guidPattern, "a GUID such as b83f:d203:00c3:65c4"},
		{at + ".sys_image_guid", r.SysImageGUID, guidPattern, "a GUID such as b83f:d203:00c3:65c4"},
		{at + ".parent", r.Parent, namePattern, "the name of an interface"},
	} {
		if err := f.checkForm(); err != nil {
			return err
		}
	}
	for name, v := range map[string]string{"node_type": r.NodeType, "hca_type": r.HCAType, "fw_ver": r.Firmware, "board_id": r.BoardID, "node_desc": r.NodeDesc} {
		if err := oneLine(at+"."+name, v); err != nil {
			return err
		}
	}
	if len(r.Ports) == 0 {
		return newFieldError(at+".ports", "a port at least is expected")
	}
	numbers := map[int]bool{}
	for i, p := range r.Ports {
		at := fmt.Sprintf("%s.ports[%d]", at, i)
		number := p.numberAt(i)
		if number < 1 || number > 254 || numbers[number] {
			return newFieldError(at+".port", "%d: a number from 1 to 254 that no other port has is expected", number)
		}
		numbers[number] = true
		if err := p.validate(at); err != nil {
			return err
		}
	}
	return nil
}

// numberAt returns the number of the port at index i of its list.
func (p Port) numberAt(i int) int {
	if p.Port == 0 {
		return i + 1
	}
	return p.Port
}

func (p Port) validate(at string) error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{{"state", p.State, portStates}, {"phys_state", p.PhysState, physStates}, {"link_layer", p.LinkLayer, linkLayers}} {
		if err := oneOf(at+"."+f.name, f.value, f.allowed); err != nil {
			return err
		}
	}
	if !ratePattern.MatchString(p.Rate) {
		return newFieldError(at+".rate", `%q: a rate such as "400 Gb/sec (4X NDR)" is expected`, p.Rate)
	}
	if err := (optionalField{at + ".cap_mask", p.CapMask, hexPattern, "a number such as 0xa751e848"}).checkForm(); err != nil {
		return err
	}
	if p.GIDTable < 0 || p.GIDTable > maxGIDTable {
		return newFieldError(at+".gid_table", "%d: a number up to %d is expected", p.GIDTable, maxGIDTable)
	}
	if p.GIDTable > 0 && len(p.GIDs) > p.GIDTable {
		return newFieldError(at+".gids", "%d of them: gid_table allows %d", len(p.GIDs), p.GIDTable)
	}
	if p.NoGIDs && len(p.GIDs) > 0 {
		return newFieldError(at+".gids", "none is expected beside no_gids")
	}
	for i, g := range p.GIDs {
		at := fmt.Sprintf("%s.gids[%d]", at, i)
		if !gidPattern.MatchString(g.GID) {
			return newFieldError(at+".gid", "%q: eight groups of four digits in lower case are expected", g.GID)
		}
		if err := oneOf(at+".type", g.Type, gidTypes); err != nil {
			return err
		}
		if err := (optionalField{at + ".ndev", g.NetDev, namePattern, "the name of an interface"}).checkForm(); err != nil {
			return err
		}
	}
	if err := counterNames(at+".counters", p.Counters); err != nil {
		return err
	}
	return counterNames(at+".hw_counters", p.HWCounters)
}

func counterNames(at string, counters map[string]uint64) error {
	for name := range counters {
		if !namePattern.MatchString(name) {
			return newFieldError(at, "%q: the name of a counter is expected", name)
		}
	}
	return nil
}

func (f Net) validate(at string, once func(kind, name, field string) error) error {
	if !namePattern.MatchString(f.Name) || len(f.Name) > 15 {
		return newFieldError(at+".name", "%q: a name of up to 15 characters such as eth0 is expected", f.Name)
	}
	if err := once("interface", f.Name, at+".name"); err != nil {
		return err
	}
	if err := (optionalField{at + ".address", f.Address, macPattern, "an address such as b8:3f:d2:c3:65:c4, or of 20 bytes,"}).checkForm(); err != nil {
		return err
	}
	if a, err := netip.ParseAddr(f.IPv4); f.IPv4 != "" && (err != nil || !a.Is4()) {
		return newFieldError(at+".ipv4", "%q: an IPv4 address is expected", f.IPv4)
	}
	if err := oneOf(at+".operstate", f.OperState, operStates); err != nil {
		return err
	}
	for name, n := range map[string]int{"type": f.Type, "mtu": f.MTU, "dev_port": f.DevPort} {
		if n < 0 {
			return newFieldError(at+"."+name, "%d: a number that is not negative is expected", n)
		}
	}
	if f.Speed < -1 {
		return newFieldError(at+".speed", "%d: Mb/s, or -1 for unknown, are expected", f.Speed)
	}
	if f.Bond != nil {
		if err := oneLine(at+".bond.mode", f.Bond.Mode); err != nil {
			return err
		}
	}
	return counterNames(at+".statistics", f.Statistics)
}

// validateBonds checks that the slaves of bonds are there, and have one master.
func (n Node) validateBonds() error {
	interfaces, master := map[string]bool{}, map[string]string{}
	for _, d := range n.Devices {
		for _, f := range d.Net {
			interfaces[f.Name] = f.Bond == nil
		}
	}
	for i, d := range n.Devices {
		for j, f := range d.Net {
			if f.Bond == nil {
				continue
			}
			for k, s := range f.Bond.Slaves {
				at := fmt.Sprintf("devices[%d].net[%d].bond.slaves[%d]", i, j, k)
				if !interfaces[s] {
					return newFieldError(at, "%q: an interface of this node that is no bond is expected", s)
				}
				if m, ok := master[s]; ok {
					return newFieldError(at, "%q: it is of %s already", s, m)
				}
				master[s] = f.Name
			}
		}
	}
	return nil
}
