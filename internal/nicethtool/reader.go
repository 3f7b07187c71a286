package nicethtool

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/graylink/graylink/internal/nicethtool/module"
	"github.com/graylink/graylink/internal/nichw"
)

// DefaultExclude are the statistics that most drivers have once for every queue, ring, processor
// or virtual function: rx0_packets, tx-3.bytes, rx_queue_2_drops, "[7]: rx_ucast_packets". Sizes
// (rx_64_bytes_phy), lanes and priorities are none of them.
const DefaultExclude = `^(\[\d+\]|(ptp_)?(rx|tx|ch|txq|rxq|xdpq?|q)-?\d+[_.:]|((rx|tx|xdp|xsk|vf|q)[-_])?(queue|qp|q|ring|cpu|channel|chan|vf)[-_ ]?\d+[-_.: ])`

// Options select the kernel, the interfaces' statistics and the patience.
type Options struct {
	// Kernel receives the requests. Nil means that of this machine.
	Kernel Kernel
	// Patience is how long one answer may take; 0: half a second. ModulePatience is that for a
	// page of a module, whose bus is slow; 0: two seconds.
	Patience, ModulePatience time.Duration
	// Exclude matches the names of driver statistics that are left out. Nil means DefaultExclude.
	Exclude *regexp.Regexp
}

// Parts select what a poll reads.
type Parts uint8

// Parts of a poll.
const (
	// ReadCounters: driver statistics, FEC, pause, link.
	ReadCounters Parts = 1 << iota
	// ReadModules: memory of modules.
	ReadModules
)

// Interface holds what was read of an interface. A part that was not read, or is not supported, is nil.
type Interface struct {
	Name string
	// Statistics are those of the driver, less those left out, in the driver's order.
	Statistics []nichw.Counter
	FEC        *FEC
	Pause      *Pause
	LinkModes  *LinkModes
	LinkState  *LinkState
	Module     *module.Module
}

// Poll holds the result of one poll. It belongs to the caller; the next poll does not change it.
type Poll struct {
	At         time.Time
	Interfaces []Interface // in the order of the request
	// Errors are the parts that could not be read. Their paths are "ethtool eth0 fec".
	Errors []nichw.FileError
	// Denied are the parts for which the agent lacks privileges.
	Denied []string
	// Hanging is how many questions have not been answered, of this poll and of earlier ones.
	Hanging int
}

// Reader polls. It is for one goroutine. Modules are slow: who wants counters often has another
// Reader for them.
type Reader struct {
	o            Options
	counters     *nichw.Querier
	modules      *nichw.Querier
	names        map[string]*statisticNames
	knownModules map[string]*knownModule
}

// knownModule holds what is remembered of a module.
type knownModule struct {
	steady module.Image // and the lower memory as it was
	serial []byte       // where the serial number is not in the lower memory
}

// New returns a reader.
func New(o Options) *Reader {
	if o.Kernel == nil {
		o.Kernel = &Machine{}
	}
	if o.Exclude == nil {
		o.Exclude = regexp.MustCompile(DefaultExclude)
	}
	return &Reader{o: o, counters: nichw.NewQuerier(o.Patience), modules: nichw.NewQuerier(cmp.Or(o.ModulePatience, 2*time.Second)), names: map[string]*statisticNames{}, knownModules: map[string]*knownModule{}}
}

// Names of parts, in errors.
const (
	partStatistics = "statistics"
	partFEC        = "fec"
	partPause      = "pause"
	partLinkModes  = "link modes"
	partLinkState  = "link state"
	partModule     = "module"
)

// Poll reads the interfaces. at is only stored in the result.
func (r *Reader) Poll(at time.Time, interfaces []string, parts Parts) *Poll {
	p := &Poll{At: at, Interfaces: make([]Interface, len(interfaces))}
	for i, name := range interfaces {
		p.Interfaces[i].Name = name
	}
	if parts&ReadCounters != 0 {
		maps.DeleteFunc(r.names, func(n string, _ *statisticNames) bool { return !slices.Contains(interfaces, n) })
		r.readCounters(p)
	}
	if parts&ReadModules != 0 {
		maps.DeleteFunc(r.knownModules, func(n string, _ *knownModule) bool { return !slices.Contains(interfaces, n) })
		r.readModules(p)
	}
	slices.SortStableFunc(p.Errors, func(a, b nichw.FileError) int { return cmp.Compare(a.Path, b.Path) })
	slices.Sort(p.Denied)
	p.Denied = slices.Compact(p.Denied)
	p.Hanging = r.counters.HangingCount() + r.modules.HangingCount()
	return p
}

// newQuery returns a query to an interface about a part of it.
func newQuery(name, part string, ask func() (any, error)) *nichw.Query {
	return &nichw.Query{Device: name, Name: "ethtool " + name + " " + part, Run: ask}
}

// recordFailure takes down what a question failed by.
func (p *Poll) recordFailure(part string, q *nichw.Query) {
	switch {
	case q.Err == nil:
	case errors.Is(q.Err, fs.ErrPermission):
		p.Denied = append(p.Denied, part)
	default:
		p.Errors = append(p.Errors, *q.Err)
	}
}

// newNetlinkQuery returns a query by netlink that parses the reply.
func newNetlinkQuery[T any](k Kernel, name, part string, command uint8, flags uint32, parse func([]byte) (*T, error)) *nichw.Query {
	return newQuery(name, part, func() (any, error) {
		b, err := requestReply(k, name, command, flags, nil)
		if err != nil {
			return nil, err
		}
		return parse(b)
	})
}

func (r *Reader) readCounters(p *Poll) {
	k := r.o.Kernel
	var all []*nichw.Query
	for i := range p.Interfaces {
		name := p.Interfaces[i].Name
		have := r.names[name]
		all = append(all,
			newQuery(name, partStatistics, func() (any, error) { return readStatistics(k, name, have) }),
			newNetlinkQuery(k, name, partFEC, getFEC, flagStatistics|flagCompactBitsets, parseFEC),
			newNetlinkQuery(k, name, partPause, getPause, flagStatistics, parsePause),
			newNetlinkQuery(k, name, partLinkModes, getLinkModes, flagCompactBitsets, parseLinkModes),
			newNetlinkQuery(k, name, partLinkState, getLinkState, 0, parseLinkState))
	}
	r.counters.QueryAll(all)
	for i := range p.Interfaces {
		f, q := &p.Interfaces[i], all[5*i:]
		if s, ok := q[0].Answer.(*statistics); ok {
			r.names[f.Name] = s.names
			f.Statistics = s.filteredCounters(r.o.Exclude.MatchString)
		}
		f.FEC, _ = q[1].Answer.(*FEC)
		f.Pause, _ = q[2].Answer.(*Pause)
		f.LinkModes, _ = q[3].Answer.(*LinkModes)
		f.LinkState, _ = q[4].Answer.(*LinkState)
		for j, part := range []string{partStatistics, partFEC, partPause, partLinkModes, partLinkState} {
			p.recordFailure(part, q[j])
		}
	}
}

// blockAnswer is the answer to a question for a block of a module.
type blockAnswer struct {
	image module.Image
	all   bool // there are no others
}

// moduleRead is a module that is being read.
type moduleRead struct {
	f      *Interface
	image  module.Image
	all    bool
	serial []byte
	gone   bool
}

// maxRounds is how many times a module's memory shows that there is more to read: the lower
// memory, page 00h to 02h and bank 0, and the other banks.
const maxRounds = 4

func (r *Reader) readModules(p *Poll) {
	k := r.o.Kernel
	all := make([]*moduleRead, len(p.Interfaces))
	for i := range p.Interfaces {
		all[i] = &moduleRead{f: &p.Interfaces[i], image: module.Image{}}
	}
	for range maxRounds {
		var questions []*nichw.Query
		var done []func(*nichw.Query)
		for _, m := range all {
			name := m.f.Name
			add := func(what string, ask func() (any, error), take func(*nichw.Query)) {
				questions = append(questions, newQuery(name, partModule+" "+what, ask))
				done = append(done, take)
			}
			if len(m.image) == 1 && !m.all { // only the lower memory
				r.restoreSteady(m)
			}
			if m.gone {
				continue
			}
			for _, b := range module.MissingBlocks(m.image) {
				if m.all {
					m.image[b] = nil
					continue
				}
				add(b.String(), func() (any, error) {
					img, all, err := readBlock(k, name, b)
					return blockAnswer{img, all}, err
				}, func(q *nichw.Query) {
					p.recordFailure(partModule, q)
					if got, ok := q.Answer.(blockAnswer); ok {
						maps.Copy(m.image, got.image)
						m.all = m.all || got.all
						return
					}
					m.image[b] = nil
					m.gone = m.gone || b == module.Lower
				})
			}
			// The serial number shows whether what is remembered belongs to this module.
			if old := r.knownModules[name]; old != nil && len(m.image) == 0 && old.serial != nil {
				b, offset, n, _ := module.SerialLocation(old.steady)
				add("serial number", func() (any, error) { return readEEPROM(k, name, b, offset, n) }, func(q *nichw.Query) {
					m.serial, _ = q.Answer.([]byte) // without it, all is read again
				})
			}
		}
		if len(questions) == 0 {
			break
		}
		r.modules.QueryAll(questions)
		for i, q := range questions {
			done[i](q)
		}
	}
	for _, m := range all {
		r.decodeModule(p, m)
	}
}

// restoreSteady puts what is remembered into the image of the same module.
func (r *Reader) restoreSteady(m *moduleRead) {
	old := r.knownModules[m.f.Name]
	if old == nil || m.serial == nil || !bytes.Equal(m.serial, old.serial) {
		return
	}
	before, now := old.steady[module.Lower], m.image[module.Lower]
	if len(before) == 0 || len(now) == 0 || before[0] != now[0] {
		return
	}
	for b, x := range old.steady {
		if module.IsSteady(b) {
			m.image[b] = x
		}
	}
}

// decodeModule makes sense of what was read, and remembers what will not change.
func (r *Reader) decodeModule(p *Poll, m *moduleRead) {
	name := m.f.Name
	delete(r.knownModules, name)
	if m.gone || m.image[module.Lower] == nil {
		return
	}
	// A block that could not be read has been reported already.
	img := maps.Clone(m.image)
	maps.DeleteFunc(img, func(_ module.Block, x []byte) bool { return x == nil })
	decoded, err := module.Decode(img)
	m.f.Module = decoded
	if err != nil {
		p.Errors = append(p.Errors, nichw.FileError{Device: name, Path: "ethtool " + name + " " + partModule, Sort: nichw.Malformed, Err: err})
	}
	if m.all || decoded == nil {
		return
	}
	keep := &knownModule{steady: module.Image{module.Lower: img[module.Lower]}}
	for b, x := range img {
		if module.IsSteady(b) {
			keep.steady[b] = x
		}
	}
	if b, offset, n, ok := module.SerialLocation(img); ok && img[b] != nil {
		keep.serial = img[b][offset-b.Offset():][:n]
	}
	r.knownModules[name] = keep
}
