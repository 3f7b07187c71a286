package nichw

import (
	"bytes"
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/rdmadev"
)

// Options configure where and what to read.
type Options struct {
	// Sys and Proc are the roots of sysfs and procfs; "" stands for /sys and /proc.
	Sys, Proc string
	// Patience is how long one read may take; 0: half a second.
	Patience time.Duration
	// RelistEvery is every how many polls a device's directories are listed again; 0: 60.
	RelistEvery int
	// Interface reports whether an interface without an RDMA device is of interest. device is true if it has hardware
	// behind it. Nil means that those with hardware are.
	Interface func(name string, device bool) bool
}

// Parts select what a poll reads. A part that is not selected keeps the value of the last poll that read it.
type Parts uint8

// Parts of a poll.
const (
	// ReadStates: states, rates, carrier.
	ReadStates Parts = 1 << iota
	// ReadCounters: counters of ports, interfaces and PCI errors.
	ReadCounters
	// ReadGIDs: tables of GIDs.
	ReadGIDs
	// ReadIdentity: what hardly ever changes: types, firmware, places on the bus and their speed.
	ReadIdentity

	ReadAll = ReadStates | ReadCounters | ReadGIDs | ReadIdentity
)

// Kind is the kind of a device, by its driver.
type Kind string

// Kinds. A driver that is none of these is a Kind of its own name.
const (
	MLX5     Kind = "mlx5"
	MLX4     Kind = "mlx4"
	EFA      Kind = "efa"
	IRDMA    Kind = "irdma"
	RXE      Kind = "rxe"
	SIW      Kind = "siw"
	Ethernet Kind = "ethernet"
)

// Function is the role of a device as a PCI function with SR-IOV.
type Function uint8

// Functions. A device that cannot have virtual ones is Plain.
const (
	Plain Function = iota
	Physical
	Virtual
)

func (f Function) String() string { return [...]string{"plain", "physical", "virtual"}[f] }

// Counter is one that only grows, until it is reset.
type Counter struct {
	Name  string
	Value uint64
}

// PCI is a device's place on the bus, and its link.
type PCI struct {
	Address string // "0000:3b:00.0"
	// Parent is the physical function of a virtual one, if it is known.
	Parent string
	// Speed and MaxSpeed are in transfers per second and lane, Width and MaxWidth in lanes. They are nil if the
	// kernel does not report them.
	Speed, MaxSpeed *float64
	Width, MaxWidth *uint64
	// Totals of advanced error reporting (AER), nil where the function has none.
	Correctable, NonFatal, Fatal *uint64
}

// Device is an RDMA device.
type Device struct {
	Name                     string
	Kind                     Kind
	Driver                   string // "" where there is no driver link
	Function                 Function
	HCAType, Firmware, Board string
	GUID                     string
	PCI                      *PCI // nil if it is no PCI function
	Ports                    []Port
}

// Port is one port of an RDMA device.
type Port struct {
	Number int
	State  State
	Phys   Phys
	// Rate is in bytes per second. It is nil if it is not known or 0.
	Rate *int64
	// LinkLayer is "InfiniBand" or "Ethernet", "" if the kernel does not report it.
	LinkLayer string
	// Netdev is the interface of the port, "" where none is known.
	Netdev string
	// Counters are those of counters/, Hardware those of hw_counters/, by name.
	Counters, Hardware []Counter
	// GIDs are the entries that are not empty; GIDsKnown: the table could be read.
	GIDs      []GID
	GIDsKnown bool
}

// Interface is a network interface.
type Interface struct {
	Name     string
	Kind     Kind
	Driver   string
	Function Function
	PCI      *PCI
	// Device is the RDMA device of the same function, "" where there is none.
	Device string
	// OperState is RFC 2863's, in lower case as the kernel writes it: up, down, dormant, ...
	OperState string
	// Carrier is nil where the interface is administratively down.
	Carrier *bool
	// Speed is in bytes per second. It is nil if it is not known.
	Speed *int64
	MTU   *uint64
	// Master is the bond or bridge it is a member of, Members are those of a bond.
	Master  string
	Members []string
	// Changes is carrier_changes. It is nil if the kernel does not count them.
	Changes *uint64
	// Counters are those of statistics/, by name.
	Counters []Counter
}

// Poll holds the result of one poll of all devices. It belongs to the caller; the next poll does not change it.
type Poll struct {
	At    time.Time
	Parts Parts
	// Devices and Interfaces are in order of their names. DevicesKnown: they could be listed.
	Devices                       []Device
	Interfaces                    []Interface
	DevicesKnown, InterfacesKnown bool
	// Boot is the kernel's boot identifier, "" where it could not be read.
	Boot string
	// Errors are the files that could not be read or parsed, in order of their paths.
	Errors []FileError
	// Hanging is how many reads have not returned, of this poll and of earlier ones.
	Hanging int
}

// Reader polls. It is for one goroutine.
type Reader struct {
	o     Options
	rdmas rdmadev.Mapper
	files fileReader
	polls int

	lists      fileGroup // of devices and interfaces
	rdma, net  *file
	devices    map[string]*deviceFiles
	interfaces map[string]*interfaceFiles
}

// New returns a reader.
func New(o Options) *Reader {
	o.Sys = cmp.Or(o.Sys, "/sys")
	o.Patience = cmp.Or(o.Patience, 500*time.Millisecond)
	o.RelistEvery = cmp.Or(o.RelistEvery, 60)
	if o.Interface == nil {
		o.Interface = func(_ string, device bool) bool { return device }
	}
	r := &Reader{o: o, rdmas: rdmadev.Open(o.Sys), files: fileReader{patience: o.Patience, now: time.Now, fetchPath: fetchPath}, devices: map[string]*deviceFiles{}, interfaces: map[string]*interfaceFiles{}}
	r.rdma = r.lists.addFile(filepath.Join(o.Sys, "class/infiniband"), kindNames)
	r.net = r.lists.addFile(filepath.Join(o.Sys, "class/net"), kindNames)
	return r
}

// Poll reads the parts. at is only kept in what it returns.
func (r *Reader) Poll(at time.Time, parts Parts) *Poll {
	r.files.readAll([]*fileGroup{&r.lists})
	p := &Poll{At: at, Parts: parts}
	known := func(f *file) bool { return f.ok || f.gone } // no RDMA at all is known to be none
	p.DevicesKnown, p.InterfacesKnown = known(r.rdma), known(r.net)
	again := r.polls%r.o.RelistEvery == 0
	r.polls++
	changed := false // RDMA devices came or went, so that functions have others
	if p.DevicesKnown {
		changed = syncByName(r.devices, r.rdma.names, r.rdma.ok, func(name string) *deviceFiles { return newDeviceFiles(r.o.Sys, name) })
	}
	if p.InterfacesKnown {
		syncByName(r.interfaces, r.net.names, r.net.ok, func(name string) *interfaceFiles { return newInterfaceFiles(r.o.Sys, r.rdmas, name) })
	}
	for _, s := range r.devices {
		s.stale = s.stale || again
	}
	for _, s := range r.interfaces {
		s.stale = s.stale || again || changed
	}
	// A device is read in two steps: first the list of its ports, then their files.
	r.listDirectories()
	r.listDirectories()
	r.readParts(parts)
	p.Boot, _ = BootID(r.o.Proc) // "" means that it could not be read
	r.assemblePoll(p)
	return p
}

// RelistAll makes the next poll list all directories again, and call Options.Interface again.
func (r *Reader) RelistAll() { r.polls = 0 }

// syncByName makes the shelves those of the names, and reports whether that changed them.
func syncByName[S any](have map[string]S, now []string, ok bool, make func(string) S) (changed bool) {
	if !ok {
		now = nil
	}
	for name := range have {
		if !slices.Contains(now, name) {
			delete(have, name)
			changed = true
		}
	}
	for _, name := range now {
		if _, is := have[name]; !is {
			have[name] = make(name)
			changed = true
		}
	}
	return changed
}

// listDirectories reads the directories of those that have to be looked up.
func (r *Reader) listDirectories() {
	var shelves []*fileGroup
	for _, s := range r.devices {
		if s.stale {
			shelves = append(shelves, s.directoryFiles())
		}
	}
	for _, s := range r.interfaces {
		if s.stale {
			shelves = append(shelves, s.directoryFiles())
		}
	}
	if len(shelves) > 0 {
		r.files.readAll(shelves)
	}
	for _, s := range r.devices {
		s.applyListing()
	}
	for _, s := range r.interfaces {
		s.applyListing(r.o.Interface)
	}
}

func (r *Reader) readParts(parts Parts) {
	var shelves []*fileGroup
	for _, s := range r.devices {
		shelves = append(shelves, s.filesToRead(parts))
	}
	for _, s := range r.interfaces {
		if !s.ignored {
			shelves = append(shelves, s.filesToRead(parts))
		}
	}
	r.files.readAll(slices.DeleteFunc(shelves, func(s *fileGroup) bool { return len(s.files) == 0 }))
}

func (r *Reader) assemblePoll(p *Poll) {
	errs := fileErrors{}
	errs.addFrom(r.lists.files...)
	for _, s := range r.devices {
		p.Devices = append(p.Devices, s.buildDevice(&errs))
	}
	for _, s := range r.interfaces {
		if !s.ignored {
			p.Interfaces = append(p.Interfaces, s.buildInterface(&errs))
		}
	}
	slices.SortFunc(p.Devices, func(a, b Device) int { return byName(a.Name, b.Name) })
	slices.SortFunc(p.Interfaces, func(a, b Interface) int { return byName(a.Name, b.Name) })
	p.linkPortsToInterfaces(func(name string) []string { return r.interfaces[name].functionDevices() })
	slices.SortFunc(errs, func(a, b FileError) int { return cmp.Compare(a.Path, b.Path) })
	p.Errors, p.Hanging = errs, r.files.hangingCount()
}

// byName has mlx5_2 before mlx5_10.
func byName(a, b string) int {
	return cmp.Or(cmp.Compare(trimDigits(a), trimDigits(b)), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func trimDigits(s string) string {
	i := len(s)
	for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
		i--
	}
	return s[:i]
}

// fileErrors collects what files failed by.
type fileErrors []FileError

func (e *fileErrors) addFrom(files ...*file) {
	for _, f := range files {
		if f != nil && f.err != nil {
			*e = append(*e, *f.err)
		}
	}
}

// addMalformed takes down that a file holds something else than it should.
func (e *fileErrors) addMalformed(device string, f *file, err error) {
	*e = append(*e, FileError{Device: device, Path: f.path, Sort: Malformed, Err: err})
}

// linkPortsToInterfaces finds the interfaces of ports, and the devices of interfaces, where they share a function and
// nothing better is known. functionDevices returns the RDMA devices of an interface's function.
func (p *Poll) linkPortsToInterfaces(functionDevices func(netdev string) []string) {
	byDevice := map[string][]*Interface{}
	for i := range p.Interfaces {
		for _, device := range functionDevices(p.Interfaces[i].Name) {
			byDevice[device] = append(byDevice[device], &p.Interfaces[i])
		}
	}
	byInterface := map[string]string{}
	for i := range p.Devices {
		d := &p.Devices[i]
		same := byDevice[d.Name]
		for j := range d.Ports {
			port := &d.Ports[j]
			if port.Netdev == "" && len(d.Ports) == 1 && len(same) == 1 {
				port.Netdev = same[0].Name
			}
			if port.Netdev != "" {
				byInterface[port.Netdev] = d.Name
			}
		}
		for _, f := range same {
			f.Device = d.Name
		}
	}
	for i := range p.Interfaces {
		f := &p.Interfaces[i]
		f.Device = cmp.Or(byInterface[f.Name], f.Device)
	}
}

// BootID reads the kernel's boot identifier (proc is the root of procfs).
func BootID(proc string) (string, error) {
	buf := make([]byte, 64)
	n, err := readFirstPage(filepath.Join(cmp.Or(proc, "/proc"), "sys/kernel/random/boot_id"), buf)
	if err != nil {
		return "", err
	}
	id := string(bytes.TrimSpace(buf[:n]))
	if id == "" {
		return "", errors.New("the kernel's boot identifier is empty")
	}
	return id, nil
}
