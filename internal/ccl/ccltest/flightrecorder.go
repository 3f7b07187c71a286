package ccltest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/go-json-experiment/json"
)

// Flight is a dump of Flight Recorder.
type Flight struct {
	Version string
	Groups  []FlightGroup
	Entries []FlightEntry
}

// FlightGroup is a process group with the ranks of its members in the job.
type FlightGroup struct {
	Name, Desc string
	Ranks      []int
}

// FlightEntry is an operation. A time of 0 is one that the watchdog did not see.
type FlightEntry struct {
	Group, Desc                 string
	Name                        string // nccl:all_reduce
	Seq                         int64
	P2P                         bool
	Sizes                       [][]int64
	Types                       []string
	Created, Started, Completed int64 // nanoseconds
	State                       string
	Retired                     bool
	DurationMS                  float64 // 0: not measured
}

// member is a key and a value. A dict keeps the order.
type member struct {
	key   string
	value any
}

type dict []member

// tuple is a tuple in a pickle and a list in JSON.
type tuple []any

// value returns the dump as PyTorch writes it. In JSON an absent time is 0, and numbers of pg_status are text.
func (f Flight) value(inJSON bool) dict {
	config, status := dict{}, dict{}
	for i, g := range f.Groups {
		ranks := ""
		for j, r := range g.Ranks {
			if j > 0 {
				ranks += ", "
			}
			ranks += fmt.Sprint(r)
		}
		config = append(config, member{g.Name, dict{{"name", g.Name}, {"desc", g.Desc}, {"ranks", "[" + ranks + "]"}}})
		var last any = int64(len(f.Entries))
		if inJSON {
			last = fmt.Sprint(last)
		}
		status = append(status, member{fmt.Sprint(i), dict{{"last_enqueued_collective", last}, {"last_started_collective", last}, {"last_completed_collective", last}}})
	}
	seen := func(ns int64) any {
		if ns == 0 && !inJSON {
			return nil
		}
		return ns
	}
	frame := dict{{"name", "train"}, {"filename", "train.py"}, {"line", int64(42)}}
	entries := []any{}
	for i, e := range f.Entries {
		d := dict{}
		if !inJSON {
			d = append(d, member{"frames", []any{frame, frame}})
		}
		collective, p2p := e.Seq, int64(0)
		if e.P2P {
			collective, p2p = 0, e.Seq
		}
		sizes, types := []any{}, []any{}
		for _, dims := range e.Sizes {
			list := []any{}
			for _, n := range dims {
				list = append(list, n)
			}
			sizes = append(sizes, list)
		}
		for _, name := range e.Types {
			types = append(types, name)
		}
		d = append(d, member{"record_id", int64(i)}, member{"pg_id", int64(0)}, member{"process_group", tuple{e.Group, e.Desc}}, member{"collective_seq_id", collective}, member{"p2p_seq_id", p2p},
			member{"op_id", int64(i + 1)}, member{"profiling_name", e.Name}, member{"time_created_ns", e.Created})
		if e.DurationMS > 0 {
			d = append(d, member{"duration_ms", e.DurationMS})
		}
		d = append(d, member{"input_sizes", sizes}, member{"input_dtypes", types}, member{"output_sizes", sizes}, member{"output_dtypes", types}, member{"state", e.State},
			member{"time_discovered_started_ns", seen(e.Started)}, member{"time_discovered_completed_ns", seen(e.Completed)}, member{"retired", e.Retired}, member{"timeout_ms", int64(600000)}, member{"is_p2p", e.P2P})
		entries = append(entries, d)
	}
	return dict{{"version", f.Version}, {"pg_config", config}, {"comm_lib_version", "2.28.9"}, {"pg_status", status}, {"entries", entries}}
}

// JSON returns the dump as FlightRecorder::dump_json writes it.
func (f Flight) JSON() []byte { return appendJSON(nil, f.value(true)) }

func appendJSON(to []byte, v any) []byte {
	list := func(items []any) []byte {
		to = append(to, '[')
		for i, item := range items {
			if i > 0 {
				to = append(to, ',')
			}
			to = appendJSON(to, item)
		}
		return append(to, ']')
	}
	switch v := v.(type) {
	case dict:
		to = append(to, '{')
		for i, m := range v {
			if i > 0 {
				to = append(to, ',')
			}
			to = appendJSON(append(appendJSON(to, m.key), ':'), m.value)
		}
		return append(to, '}')
	case tuple:
		return list(v)
	case []any:
		return list(v)
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(to, text...)
}

// Pickle returns the dump as torch::jit::Pickler writes it.
func (f Flight) Pickle() []byte {
	p := pickler{strings: map[string]uint32{}}
	p.WriteString("\x80\x02")
	p.value(f.value(false))
	p.WriteByte('.')
	return p.Bytes()
}

// pickler writes values with the opcodes of torch::jit::Pickler.
type pickler struct {
	bytes.Buffer
	strings map[string]uint32
}

// number writes an opcode and a little-endian number of a size in bytes.
func (p *pickler) number(op byte, n uint64, size int) {
	p.WriteByte(op)
	p.Write(binary.LittleEndian.AppendUint64(nil, n)[:size])
}

func (p *pickler) list(begin, items, end string, fill func()) {
	p.WriteString(begin)
	p.WriteString(items)
	fill()
	p.WriteString(end)
}

func (p *pickler) value(v any) {
	switch v := v.(type) {
	case nil:
		p.WriteByte('N')
	case bool:
		p.WriteByte(map[bool]byte{true: 0x88, false: 0x89}[v])
	case int64:
		p.integer(v)
	case float64:
		p.WriteByte('G')
		p.Write(binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))
	case string:
		p.text(v)
	case tuple:
		for _, item := range v {
			p.value(item)
		}
		p.WriteByte(0x84 + byte(len(v)))
	case []any:
		p.list("]", "(", "e", func() {
			for _, item := range v {
				p.value(item)
			}
		})
	case dict:
		p.list("}", "(", "u", func() {
			for _, m := range v {
				p.text(m.key)
				p.value(m.value)
			}
		})
	}
}

func (p *pickler) integer(n int64) {
	switch {
	case n >= 0 && n <= math.MaxUint8:
		p.number('K', uint64(n), 1)
	case n >= 0 && n <= math.MaxUint16:
		p.number('M', uint64(n), 2)
	case n >= math.MinInt32 && n <= math.MaxInt32:
		p.number('J', uint64(n), 4)
	default:
		p.WriteByte(0x8a)
		p.number(8, uint64(n), 8)
	}
}

// text writes a string once, and a reference to it from then on.
func (p *pickler) text(s string) {
	if at, known := p.strings[s]; known {
		p.memo('h', 'j', at)
		return
	}
	p.number('X', uint64(len(s)), 4)
	p.WriteString(s)
	at := uint32(len(p.strings))
	p.strings[s] = at
	p.memo('q', 'r', at)
}

func (p *pickler) memo(short, long byte, at uint32) {
	if at <= math.MaxUint8 {
		p.number(short, uint64(at), 1)
		return
	}
	p.number(long, uint64(at), 4)
}
