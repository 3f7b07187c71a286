package fakesys

import (
	"fmt"
	"slices"
	"strconv"
)

// Profile is a ready node.
type Profile struct {
	Name, Help string
	Node       func() Node
}

// Profiles returns all built-in nodes.
func Profiles() []Profile {
	return []Profile{
		{"a100", "one compute port of 200 Gb/s InfiniBand, and a management NIC", a100Node},
		{"broken", "h100 with files that cannot be read, hold no number, hang, or are not there", brokenNode},
		{"efa", "four EFA devices, which have neither interfaces nor counters of the port, and an ENA", efaNode},
		{"h100", "eight compute ports of 400 Gb/s InfiniBand, a BlueField with two ports bonded, and a management NIC", h100Node},
		{"irdma", "an E810 with two RoCE ports", irdmaNode},
		{"mlx4", "a ConnectX-3 with an InfiniBand and an Ethernet port on one function", mlx4Node},
		{"rxe", "software RoCE on a management NIC", rxeNode},
		{"sriov34", "eighteen RoCE physical functions, all active, and sixteen virtual ones of one of them, all down", sriov34Node},
	}
}

// FindProfile returns the built-in node with a name.
func FindProfile(name string) (Node, error) {
	var names []string
	for _, p := range Profiles() {
		if p.Name == name {
			return p.Node(), nil
		}
		names = append(names, p.Name)
	}
	return Node{}, fmt.Errorf("%q: one of the profiles %q is expected", name, names)
}

// Rates, as drivers/infiniband/core/sysfs.c writes them.
const (
	rateNDR = "400 Gb/sec (4X NDR)"
	rateHDR = "200 Gb/sec (4X HDR)"
	rateEDR = "100 Gb/sec (4X EDR)"
)

func managementNIC(pci, name string) Device {
	return Device{PCI: pci, Driver: "ixgbe", Net: []Net{{Name: name, Speed: 10000, IPv4: "10.51.186.32", CarrierChanges: 1}}}
}

// h100Node has the PCI addresses of a DGX H100.
func h100Node() Node {
	n := Node{Hostname: "h100"}
	for i, bus := range []int{0x18, 0x40, 0x4f, 0x5e, 0x9a, 0xc0, 0xce, 0xdc} {
		n.Devices = append(n.Devices, Device{
			PCI: fmt.Sprintf("0000:%02x:00.0", bus), Driver: "mlx5_core", NUMA: i / 4, TotalVFs: 16,
			RDMA: &RDMA{Name: fmt.Sprintf("mlx5_%d", i), Ports: []Port{{Rate: rateNDR, LID: uint16(0x20 + i)}}},
			Net:  []Net{{Name: fmt.Sprintf("ibp%ds0", bus), CarrierChanges: 1, Speed: 400000}},
		})
	}
	bluefield := Device{Driver: "mlx5_core", ID: "0xa2dc", TotalVFs: 16}
	first, second := bluefield, bluefield
	first.PCI, second.PCI = "0000:29:00.0", "0000:29:00.1"
	first.RDMA = &RDMA{
		Name: "mlx5_bond_0", HCAType: "MT41692", Firmware: "32.39.2048", BoardID: "MT_0000000884",
		Ports: []Port{{Rate: rateHDR, LinkLayer: "Ethernet"}},
	}
	first.Net = []Net{{Name: "enp41s0f0np0", Speed: 200000, CarrierChanges: 1}}
	second.Net = []Net{{Name: "enp41s0f1np1", Speed: 200000, CarrierChanges: 1}}
	n.Devices = append(n.Devices, first, second,
		Device{Net: []Net{{Name: "bond0", Speed: 400000, IPv4: "10.60.0.32", CarrierChanges: 2, Bond: &Bond{Slaves: []string{"enp41s0f0np0", "enp41s0f1np1"}}}}},
		managementNIC("0000:06:00.0", "eno3"))
	return n
}

// sriov34Node returns the node with 34 devices of the seed's section 8.6.
func sriov34Node() Node {
	n := Node{Hostname: "sriov34"}
	const pfOfVFs = "0000:93:00.1"
	buses := []int{0x93, 0x0c, 0x12, 0x4b, 0x54, 0x8d, 0xba, 0xca, 0xe3}
	for i := range 18 {
		d := Device{
			PCI: fmt.Sprintf("0000:%02x:00.%d", buses[i/2], i%2), Driver: "mlx5_core", NUMA: i / 10, TotalVFs: 16,
			RDMA: &RDMA{Name: "mlx5_" + strconv.Itoa(i), Ports: []Port{{Rate: rateHDR, LinkLayer: "Ethernet"}}},
			Net:  []Net{{Name: "rdma" + strconv.Itoa(i+3), Speed: 200000, IPv4: fmt.Sprintf("172.16.%d.32", i), CarrierChanges: 1}},
		}
		if i == 0 { // the host's management
			d.RDMA.Ports[0].Rate = rateEDR
			d.Net[0] = Net{Name: "eth0", Speed: 100000, IPv4: "10.51.186.32", CarrierChanges: 1}
		}
		n.Devices = append(n.Devices, d)
	}
	for i := range 16 {
		vf := i + 2 // functions 0 and 1 are physical
		n.Devices = append(n.Devices, Device{
			PCI: fmt.Sprintf("0000:93:%02x.%d", vf/8, vf%8), Driver: "mlx5_core", ID: "0x101e", NUMA: 0, VFOf: pfOfVFs,
			// The rate of an Ethernet port without a link is that of mlx5's defaults.
			RDMA: &RDMA{Name: "mlx5_" + strconv.Itoa(18+i), Ports: []Port{{State: "1: DOWN", Rate: "40 Gb/sec (4X QDR)", LinkLayer: "Ethernet"}}},
			Net:  []Net{{Name: "enp147s0f1v" + strconv.Itoa(i), OperState: "down"}},
		})
	}
	return n
}

func a100Node() Node {
	return Node{Hostname: "a100", Devices: []Device{
		{
			PCI: "0000:0c:00.0", Driver: "mlx5_core", ID: "0x101b", LinkSpeed: "16.0 GT/s PCIe", MaxLinkSpeed: "16.0 GT/s PCIe",
			RDMA: &RDMA{Name: "mlx5_0", HCAType: "MT4123", Firmware: "20.39.2048", BoardID: "MT_0000000223", Ports: []Port{{Rate: rateHDR, LID: 0x20}}},
			Net:  []Net{{Name: "ibp12s0", Speed: 200000, CarrierChanges: 1}},
		},
		managementNIC("0000:e2:00.0", "eno1"),
	}}
}

// efaNode has the names that udev gives on an EC2 instance: PCI bus 79 is 0x4f.
func efaNode() Node {
	n := Node{Hostname: "efa"}
	for i := range 4 {
		bus := 79 + 2*i // each behind a root port of its own
		n.Devices = append(n.Devices, Device{
			PCI: fmt.Sprintf("0000:%02x:00.0", bus), Driver: "efa",
			RDMA: &RDMA{Name: fmt.Sprintf("rdmap%ds0", bus), Ports: []Port{{
				Rate: rateEDR, LinkLayer: "Unknown", CapMask: "0x00000000", GIDTable: 1,
			}}},
		})
	}
	n.Devices = append(n.Devices, Device{PCI: "0000:00:05.0", Driver: "ena", Net: []Net{{Name: "ens5", Speed: -1, MTU: 9001, IPv4: "10.0.1.32", CarrierChanges: 1}}})
	return n
}

func irdmaNode() Node {
	n := Node{Hostname: "irdma"}
	for i := range 2 {
		n.Devices = append(n.Devices, Device{
			PCI: fmt.Sprintf("0000:b1:00.%d", i), Driver: "ice", NUMA: 1, TotalVFs: 128,
			RDMA: &RDMA{Name: fmt.Sprintf("irdma%d", i), Ports: []Port{{Rate: rateEDR, LinkLayer: "Ethernet", GIDTable: 32}}},
			Net:  []Net{{Name: fmt.Sprintf("ens1f%d", i), Speed: 100000, IPv4: fmt.Sprintf("10.70.%d.32", i), CarrierChanges: 1}},
		})
	}
	return n
}

func mlx4Node() Node {
	return Node{Hostname: "mlx4", Devices: []Device{
		{
			PCI: "0000:04:00.0", Driver: "mlx4_core",
			RDMA: &RDMA{Name: "mlx4_0", Ports: []Port{
				{Rate: "56 Gb/sec (4X FDR)", LID: 0x20},
				{Rate: "40 Gb/sec (4X FDR10)", LinkLayer: "Ethernet"},
			}},
			Net: []Net{{Name: "ib0", Speed: 56000, CarrierChanges: 1}, {Name: "ens2d1", DevPort: 1, Speed: 40000, IPv4: "10.80.0.32", CarrierChanges: 1}},
		},
		managementNIC("0000:06:00.0", "eno1"),
	}}
}

func rxeNode() Node {
	return Node{Hostname: "rxe", Devices: []Device{
		// As Linux 6.1 shows it: test/vm compares this with a real one.
		{RDMA: &RDMA{Name: "rxe0", Parent: "eth0", NodeDesc: "rxe", Ports: []Port{{Rate: "10 Gb/sec (1X FDR10)", LinkLayer: "Ethernet", CapMask: "0x00010000", GIDTable: 1024}}}},
		managementNIC("0000:06:00.0", "eth0"),
	}}
}

// brokenNode returns h100 with one fault at each of several devices.
func brokenNode() Node {
	n := h100Node()
	n.Hostname = "broken"
	n.Devices = slices.Clone(n.Devices)
	n.Devices[3].RDMA.Ports[0].NoGIDs = true
	const port = "sys/class/infiniband/mlx5_%d/ports/1/"
	n.Then = []string{
		"fail sys/class/infiniband/mlx5_0/fw_ver",
		fmt.Sprintf("set mlx5_1/1 counters/VL15_dropped %s", noPMA),
		fmt.Sprintf("hang "+port+"counters/symbol_error", 2),
		"remove sys/class/infiniband/mlx5_4/ports",
	}
	return n
}

// noPMA is the text that older kernels write for counters of a port that has no performance agent
// (drivers/infiniband/core/sysfs.c).
const noPMA = "N/A (no PMA)"
