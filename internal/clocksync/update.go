package clocksync

import (
	"encoding/binary"
	"fmt"
)

// ClockMap is the map of a clock with its name.
type ClockMap struct {
	Clock string
	Map
}

// Update is the coordinator's message to a node: the maps of the node's own clocks and of its peers'
// clocks.
type Update struct {
	Frame    uint64 // identifier of the frame; times of two frames have nothing in common
	Relative bool   // the frame continues as its clocks' common time, without a reference at present
	Maps     []ClockMap
}

const minMap = 18 // octets

// AppendTo appends the update in its compact form, some 35 octets and a name each map. It leaves out a
// map with numbers that no clock can have.
func (u *Update) AppendTo(b []byte) []byte {
	var maps []byte
	n, before := 0, Map{}
	for i := range u.Maps {
		m := &u.Maps[i]
		if m.Clock == "" || len(m.Clock) > maxClock || m.State > Lost || !rateOK(m.Rate) || !deviationOK(m.Sigma) || !deviationOK(m.RateSigma) ||
			m.Allowance < 0 || n == MaxUpdateMaps {
			continue
		}
		n++
		maps = appendName(maps, m.Clock)
		maps = append(maps, byte(m.State))
		maps = binary.AppendVarint(maps, m.Ref-before.Ref)
		maps = binary.AppendVarint(maps, m.Offset-before.Offset)
		maps = appendRate(maps, m.Rate)
		maps = appendDeviation(maps, m.Sigma)
		maps = appendDeviation(maps, m.RateSigma)
		maps = binary.AppendUvarint(maps, uint64(m.Allowance))
		maps = binary.AppendUvarint(maps, uint64(m.Component))
		maps = binary.AppendUvarint(maps, uint64(m.Steps))
		maps = binary.AppendUvarint(maps, uint64(m.Drifts))
		maps = binary.AppendUvarint(maps, uint64(m.Peers))
		before = m.Map
	}
	b = binary.AppendUvarint(b, u.Frame)
	relative := byte(0)
	if u.Relative {
		relative = 1
	}
	b = append(b, relative)
	b = binary.AppendUvarint(b, uint64(n))
	return append(b, maps...)
}

// ParseUpdate parses the form of AppendTo. For anything else it returns an error that names the field.
// It allocates at most a small multiple of the input.
func ParseUpdate(b []byte) (*Update, error) {
	r := &wireReader{b: b}
	out, err := parseUpdate(r)
	if err != nil {
		return nil, fmt.Errorf("clock update: %w", err)
	}
	return out, nil
}

func parseUpdate(r *wireReader) (*Update, error) {
	out := &Update{Frame: r.readUint("frame", 1<<64-1), Relative: r.readUint("relative", 1) == 1}
	if n := r.readCount("maps", MaxUpdateMaps, minMap); n > 0 {
		out.Maps = make([]ClockMap, n)
	}
	before := Map{}
	for i := range out.Maps {
		m := &out.Maps[i]
		m.Clock = r.readName("clock", maxClock)
		m.State = State(r.readUint("state", uint64(Lost)))
		m.Ref, m.Offset = before.Ref+r.readInt("reference"), before.Offset+r.readInt("offset")
		m.Rate, m.Sigma, m.RateSigma = r.readRate("rate"), r.readDeviation("sigma"), r.readDeviation("rate sigma")
		m.Allowance = int64(r.readUint("allowance", 1<<63-1))
		m.Component, m.Steps = uint32(r.readUint("component", 1<<32-1)), uint32(r.readUint("steps", 1<<32-1))
		m.Drifts, m.Peers = uint32(r.readUint("drifts", 1<<32-1)), uint32(r.readUint("peers", 1<<32-1))
		if r.err != nil {
			return nil, fmt.Errorf("map %d: %w", i, r.err)
		}
		before = m.Map
	}
	return out, r.checkEnd()
}
