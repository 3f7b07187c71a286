package source

import (
	"net/netip"
	"testing"

	"github.com/graylink/graylink/internal/sighting"
)

// BenchmarkSweep measures reading 50,000 flows from the program's table.
func BenchmarkSweep(b *testing.B) {
	e, err := NewEBPF([]uint16{862}, 1<<16)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	for i := range 50_000 {
		p := flowAtPort{sighting.KeyOf(sighting.Flow{Src: netip.AddrPortFrom(a4.Addr(), uint16(i)), Dst: b4}), 1}
		if err := e.fill(&p); err != nil {
			b.Fatal(err)
		}
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		if err := e.SweepFlows(b.Context(), func(*sighting.Key, sighting.Sample) { n++ }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/float64(b.N), "flows")
	f := frame(a4, b4, 17, 0)
	_, took, err := e.program.Benchmark(f, 1_000_000, nil)
	if err == nil {
		b.ReportMetric(float64(took.Nanoseconds()), "ns/packet")
	}
}

// fill takes a slot as the program does.
func (e *EBPF) fill(p *flowAtPort) error {
	var n uint32
	if err := e.free.LookupAndDelete(nil, &n); err != nil {
		return err
	}
	if err := e.table.Put(p, n); err != nil {
		return err
	}
	b := append(append([]byte{}, p.Flow[:]...), 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0)
	return e.slots.Put(n, b)
}
