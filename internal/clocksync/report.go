package clocksync

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// PairEstimate is the estimate of one pair.
type PairEstimate struct {
	ID PairID
	Estimate
}

// Join is a reading of one clock of a node against another: of a NIC's clock B
// against the system clock A.
type Join struct {
	A, B   string
	Ref    int64 // time of clock A
	Offset int64 // clock B minus clock A at Ref
	Width  int64 // ns: the offset lies within +-Width/2
}

// Report is a node's message to the coordinator after a window: the estimates of its own edges and the
// readings that join its own clocks.
type Report struct {
	Node  string
	End   int64 // end of the window, by the node's system clock
	Pairs []PairEstimate
	Joins []Join
}

// The least numbers of octets of a pair and of a join.
const (
	minPair = 23
	minJoin = 5
)

// AppendTo appends the report in its compact form, some 35 octets a pair: names of peers' nodes and of
// devices once each, times and offsets as differences to the pair before, rates of 24 bits, deviations
// of 8. It leaves out a pair that has no estimate, is not the node's own, or has numbers that no clock
// can have, and all pairs and joins beyond MaxReportPairs and MaxReportJoins.
func (r *Report) AppendTo(b []byte) []byte {
	var nodes, devices nameTable
	own := func(nic string) (uint64, bool) { // 0 is the system clock
		if nic == r.Node {
			return 0, true
		}
		node, device, ok := strings.Cut(nic, "/")
		if !ok || node != r.Node || device == "" || len(device) > maxName {
			return 0, false
		}
		return devices.indexOf(device) + 1, true
	}
	var pairs []byte
	n, before := 0, Estimate{Ref: r.End}
	for i := range r.Pairs {
		p := &r.Pairs[i]
		node, device, ok := strings.Cut(p.ID.Dst, "/")
		if !ok || node == "" || device == "" || len(node) > maxName || len(device) > maxName || !p.canEncode() || n == MaxReportPairs {
			continue
		}
		src, ok := own(p.ID.Src)
		if !ok || src == 0 {
			continue
		}
		n++
		pairs = binary.AppendUvarint(pairs, src-1)
		pairs = binary.AppendUvarint(pairs, nodes.indexOf(node))
		pairs = binary.AppendUvarint(pairs, devices.indexOf(device))
		pairs = binary.AppendUvarint(pairs, uint64(p.ID.Flow))
		pairs = append(pairs, byte(p.ID.Kind)<<4|byte(p.Quality))
		pairs = binary.AppendVarint(pairs, p.Ref-before.Ref)
		pairs = binary.AppendVarint(pairs, p.Offset-before.Offset)
		pairs = appendRate(pairs, p.Rate)
		pairs = appendDeviation(pairs, p.Sigma)
		pairs = appendDeviation(pairs, p.RateSigma)
		pairs = appendDeviation(pairs, p.Wander)
		pairs = appendDeviation(pairs, p.RateWander)
		pairs = appendDeviation(pairs, p.Inherited)
		pairs = binary.AppendVarint(pairs, p.Delay)
		pairs = binary.AppendVarint(pairs, p.FirstDelay-p.Delay)
		pairs = binary.AppendUvarint(pairs, uint64(p.Samples[0]))
		pairs = binary.AppendUvarint(pairs, uint64(p.Samples[1]))
		pairs = binary.AppendUvarint(pairs, uint64(p.Moves))
		pairs = binary.AppendUvarint(pairs, uint64(p.Detours))
		before = p.Estimate
	}
	var joins []byte
	m, ref := 0, r.End
	for _, j := range r.Joins {
		x, okA := own(j.A)
		y, okB := own(j.B)
		if !okA || !okB || x == y || j.Width < 0 || m == MaxReportJoins {
			continue
		}
		m++
		joins = binary.AppendUvarint(joins, x)
		joins = binary.AppendUvarint(joins, y)
		joins = binary.AppendVarint(joins, j.Ref-ref)
		joins = binary.AppendVarint(joins, j.Offset)
		joins = binary.AppendUvarint(joins, uint64(j.Width))
		ref = j.Ref
	}
	b = appendName(b, r.Node)
	b = binary.AppendVarint(b, r.End)
	b = nodes.appendTo(b)
	b = devices.appendTo(b)
	b = binary.AppendUvarint(b, uint64(n))
	b = append(b, pairs...)
	b = binary.AppendUvarint(b, uint64(m))
	return append(b, joins...)
}

func (p *PairEstimate) canEncode() bool {
	return p.Quality != None && p.Quality <= Held && p.ID.Kind <= Hardware && p.ID.Flow >= 0 && p.ID.Flow <= maxFlow &&
		rateOK(p.Rate) && deviationOK(p.Sigma) && deviationOK(p.RateSigma) && deviationOK(p.Wander) && deviationOK(p.RateWander) && deviationOK(p.Inherited) && p.Samples[0] >= 0 && p.Samples[1] >= 0
}

const maxFlow = 1<<16 - 1

// ParseReport parses the form of AppendTo. For anything else it returns an error that names the field.
// It allocates at most a small multiple of the input.
func ParseReport(b []byte) (*Report, error) {
	r := &wireReader{b: b}
	out, err := parseReport(r)
	if err != nil {
		return nil, fmt.Errorf("clock report: %w", err)
	}
	return out, nil
}

func parseReport(r *wireReader) (*Report, error) {
	out := &Report{Node: r.readNode("node"), End: r.readInt("end")}
	nodes := make([]string, r.readCount("nodes", MaxReportPairs, 2))
	for i := range nodes {
		nodes[i] = r.readNode("name of a node")
	}
	devices := make([]string, r.readCount("devices", 2*(MaxReportPairs+MaxReportJoins), 2))
	own := make([]string, len(devices)) // the node's NICs of these names, once they have occurred
	for i := range devices {
		devices[i] = r.readName("name of a device", maxName)
	}
	nic := func(i uint64) string {
		if own[i] == "" {
			own[i] = out.Node + "/" + devices[i]
		}
		return own[i]
	}
	if n := r.readCount("pairs", MaxReportPairs, minPair); n > 0 {
		out.Pairs = make([]PairEstimate, n)
	}
	before := Estimate{Ref: out.End}
	var names []byte // names of destinations one after another: one string for all
	lengths := make([]int, len(out.Pairs))
	for i := range out.Pairs {
		p := &out.Pairs[i]
		src := r.readIndex("source", len(devices))
		node, device := r.readIndex("destination node", len(nodes)), r.readIndex("destination device", len(devices))
		p.ID.Flow = int(r.readUint("flow", maxFlow))
		if kind := r.readBytes("kind", 1); kind != nil {
			p.ID.Kind, p.Quality = Kind(kind[0]>>4), Quality(kind[0]&15)
		}
		if p.ID.Kind > Hardware {
			r.setError("kind", "%d is unknown", p.ID.Kind)
		}
		if p.Quality == None || p.Quality > Held {
			r.setError("quality", "%d is not the state of an estimate", p.Quality)
		}
		p.Ref, p.Offset = before.Ref+r.readInt("reference"), before.Offset+r.readInt("offset")
		p.Rate, p.Sigma, p.RateSigma = r.readRate("rate"), r.readDeviation("sigma"), r.readDeviation("rate sigma")
		p.Wander, p.RateWander, p.Inherited = r.readDeviation("wander"), r.readDeviation("rate wander"), r.readDeviation("inherited")
		p.Delay = r.readInt("delay")
		p.FirstDelay = p.Delay + r.readInt("first delay")
		p.Samples = [2]int32{int32(r.readUint("forward samples", 1<<31-1)), int32(r.readUint("reverse samples", 1<<31-1))}
		p.Moves, p.Detours = uint32(r.readUint("moves", 1<<32-1)), uint32(r.readUint("detours", 1<<32-1))
		if r.err != nil {
			return nil, fmt.Errorf("pair %d: %w", i, r.err)
		}
		p.ID.Src = nic(src)
		names = append(append(append(names, nodes[node]...), '/'), devices[device]...)
		lengths[i] = len(nodes[node]) + 1 + len(devices[device])
		before = p.Estimate
	}
	all := string(names)
	for i, n := range lengths {
		out.Pairs[i].ID.Dst, all = all[:n], all[n:]
	}
	if n := r.readCount("joins", MaxReportJoins, minJoin); n > 0 {
		out.Joins = make([]Join, n)
	}
	clock := func(i uint64) string {
		if i == 0 {
			return out.Node
		}
		return nic(i - 1)
	}
	ref := out.End
	for i := range out.Joins {
		j := &out.Joins[i]
		x, y := r.readIndex("clock", len(devices)+1), r.readIndex("joined clock", len(devices)+1)
		j.Ref, j.Offset, j.Width = ref+r.readInt("reference"), r.readInt("offset"), int64(r.readUint("width", 1<<63-1))
		if r.err == nil {
			j.A, j.B, ref = clock(x), clock(y), j.Ref
		}
		if j.A == j.B {
			r.setError("joined clock", "is the clock itself")
		}
		if r.err != nil {
			return nil, fmt.Errorf("join %d: %w", i, r.err)
		}
	}
	return out, r.checkEnd()
}

// nameTable numbers names in the order of their first occurrence.
type nameTable struct {
	names   []string
	numbers map[string]uint64
}

func (t *nameTable) indexOf(s string) uint64 {
	i, ok := t.numbers[s]
	if !ok {
		if t.numbers == nil {
			t.numbers = map[string]uint64{}
		}
		i = uint64(len(t.names))
		t.names, t.numbers[s] = append(t.names, s), i
	}
	return i
}

func (t *nameTable) appendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(t.names)))
	for _, s := range t.names {
		b = appendName(b, s)
	}
	return b
}
