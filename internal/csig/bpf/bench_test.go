package bpf

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/graylink/graylink/internal/csig"
)

// undoIngress puts the tag back that the ingress took off, so that the program can run again and again on one frame.
func undoIngress(f csig.Format, frame []byte) asm.Instructions {
	n := int16(f)
	p := labelled("out",
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, metaLen), asm.FnXdpAdjustMeta.Call(),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, -int32(n)), asm.FnXdpAdjustHead.Call())
	p = append(p, loadPacket(14+int32(n), "end")...)
	for i := int16(0); i < 12; i += 4 {
		p = append(p, asm.LoadMem(asm.R1, asm.R7, n+i, asm.Word), asm.StoreMem(asm.R7, i, asm.R1, asm.Word))
	}
	for i := int16(12); i < 12+n; i += 2 {
		p = append(p, asm.Mov.Imm(asm.R1, int32(binary.NativeEndian.Uint16(frame[i:]))), asm.StoreMem(asm.R7, i, asm.R1, asm.Half))
	}
	return append(p, labelled("end", asm.Mov.Imm(asm.R0, xdpPass), asm.Return())...)
}

// undoEgress takes the tag off again that the egress put in.
func undoEgress(f csig.Format) asm.Instructions {
	p := asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, -int32(f)), asm.Mov.Imm(asm.R3, roomAtMAC), asm.Mov.Imm(asm.R4, fixedGSO), asm.FnSkbAdjustRoom.Call(),
		storeNumber(atTag, int64(networkOrder(typeIPv4)), asm.Half),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, typeAt),
	}
	return join(p, stackPointer(asm.R3, atTag), asm.Instructions{
		asm.Mov.Imm(asm.R4, typeLen), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(), asm.Mov.Imm(asm.R0, tcxNext), asm.Return()})
}

// threadTime returns the processor time of the calling thread, which others that want the processor do not change.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	const thread = 1 // RUSAGE_THREAD: getrusage(2)
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure returns what a run of a program takes. The sum of some counters says that the runs did what is measured.
func measure(b *testing.B, runs int, spec *ebpf.ProgramSpec, counts *ebpf.Map, counters []csig.Outcome, frame []byte, context any) time.Duration {
	b.Helper()
	program, err := ebpf.NewProgram(spec)
	if err != nil {
		b.Fatalf("%+v", err)
	}
	defer program.Close()
	out := make([]byte, len(frame)+16)
	run := &ebpf.RunOptions{Data: frame, DataOut: out, Context: context, Repeat: uint32(runs)}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(b)
	if _, err := program.Run(run); err != nil {
		b.Fatal(err)
	}
	took := (threadTime(b) - began) / time.Duration(runs)
	var all [maxCounters]uint64
	if err := counts.Lookup(uint32(0), &all); err != nil {
		b.Fatal(err)
	}
	var counted uint64
	for _, o := range counters {
		counted += all[o]
	}
	if counters != nil && counted < uint64(runs) {
		b.Fatalf("counters %v: %d of %v are expected", all, runs, counters)
	}
	if !bytes.Equal(run.DataOut, frame) {
		b.Fatalf("%x became %x", frame[:32], run.DataOut[:32])
	}
	return took
}

// BenchmarkTransit measures what a packet costs at the ports of a switch: the program that takes the tag off, and the one that
// measures the port, compares, and puts the tag back. Each run also undoes what it did, so that the figures are upper bounds.
func BenchmarkTransit(b *testing.B) {
	p := parseProfile(b, "interval: 1ms\n")
	port := SwitchPort{Name: "sw:1", Speed: 20_000_000}
	config, err := configOf(p, &port)
	if err != nil {
		b.Fatal(err)
	}
	plain := udpFrame(a4, b4, probe(1, 1000, 0))
	for _, f := range []csig.Format{csig.None, csig.Compact, csig.Wide} {
		for _, s := range []csig.Signal{csig.Share, csig.Delay} {
			b.Run(f.String()+"/"+s.String(), func(b *testing.B) {
				x := newTransit(b, p, &config, 0)
				frame, meta, outcomes := plain, []byte(nil), []csig.Outcome{csig.NoTag}
				if f != csig.None {
					if frame, err = etherTypes.Insert(nil, plain, csig.NewTag(f, s)); err != nil {
						b.Fatal(err)
					}
					_, received, err := x.s.ingress.Test(frame)
					if err != nil {
						b.Fatal(err)
					}
					meta, outcomes = received[:metaLen], []csig.Outcome{csig.Updated, csig.Kept}
				}
				in := assembleIngress(p.EtherTypes, x.s.counts.FD())
				out := assembleEgress(p.EtherTypes, portMaps{x.e.config.FD(), x.e.state.FD(), x.e.counts.FD()}, testBefore(), monotonicClock())
				if f != csig.None {
					in = append(in[:len(in)-2], undoIngress(f, frame)...)
					out = append(out[:len(out)-2], undoEgress(f)...)
				}
				c := context(meta, 0)
				nothing := asm.Instructions{asm.Mov.Imm(asm.R0, tcxNext), asm.Return()}
				ktime := asm.Instructions{asm.FnKtimeGetNs.Call(), asm.Mov.Imm(asm.R0, tcxNext), asm.Return()}
				var base, clock, ingress, egress time.Duration
				for b.Loop() {
					ingress += measure(b, 1_000_000, &ebpf.ProgramSpec{Type: ebpf.XDP, License: license, Instructions: in}, x.s.counts, nil, frame, nil)
					egress += measure(b, 1_000_000, &ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: license, Instructions: out}, x.e.counts, outcomes, plain, c)
				}
				for range b.N {
					base += measure(b, 1_000_000, &ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: license, Instructions: nothing}, x.e.counts, nil, plain, c)
					clock += measure(b, 1_000_000, &ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: license, Instructions: ktime}, x.e.counts, nil, plain, c)
				}
				n := float64(b.N)
				b.ReportMetric(float64(base)/n, "ns/nothing")
				b.ReportMetric(float64(clock)/n, "ns/ktime")
				b.ReportMetric(float64(ingress)/n, "ns/ingress")
				b.ReportMetric(float64(egress)/n, "ns/egress")
				b.ReportMetric(float64(ingress+egress)/n, "ns/packet")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkEndpoint measures what the programs at a node cost a tagged probe, as it is sent and as it is received, and what they
// cost a packet of which they want nothing. Each run also undoes what it did.
func BenchmarkEndpoint(b *testing.B) {
	const runs = 10_000 // events that fit into the ring buffer
	for _, f := range csig.Formats {
		b.Run(f.String(), func(b *testing.B) {
			o := EndpointOptions{Format: f, Signals: []csig.Signal{csig.Share, csig.Delay}}
			e := openTest(b, o)
			if err := e.TagFlows([]csig.TaggedFlow{{From: a4, To: b4}}); err != nil {
				b.Fatal(err)
			}
			plain, other := udpFrame(a4, b4, probe(1, 44, 0)), udpFrame(a4, plain, probe(1, 44, 0))
			frame, err := etherTypes.Insert(nil, plain, csig.NewTag(f, csig.Share))
			if err != nil {
				b.Fatal(err)
			}
			ports := []uint16{stampPort}
			source := assembleSource(sourceMaps{e.counts.FD(), e.flows.FD(), e.noted.FD()},
				&sourceOptions{etherType: etherTypes.Of(f), format: f, signals: o.Signals, stampPorts: ports, senderAt: senderNumberAt})
			sink := assembleSink(etherTypes, sinkMaps{e.counts.FD(), e.events.FD(), e.noted.FD()}, ports)
			undone := append(source[:len(source)-2:len(source)-2], undoSource(f)...)
			again := append(sink[:len(sink)-2:len(sink)-2], undoIngress(f, frame)...)
			var c [192]byte
			var sent, received, passed, taken time.Duration
			for b.Loop() {
				sent += measure(b, runs, &ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: license, Instructions: undone}, e.counts, nil, plain, c)
				passed += measure(b, runs, &ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: license, Instructions: source}, e.counts, nil, other, c)
				received += measure(b, runs, &ebpf.ProgramSpec{Type: ebpf.XDP, License: license, Instructions: again}, e.counts, nil, frame, nil)
				runtime.LockOSThread()
				began := threadTime(b)
				if err := e.ReadTags(); err != nil {
					b.Fatal(err)
				}
				for range runs {
					e.ArrivedTag(a4, b4, 1)
				}
				taken += (threadTime(b) - began) / runs
				runtime.UnlockOSThread()
			}
			counts, err := e.Counts()
			if want := uint64(b.N) * runs; err != nil || counts.Tagged < want || counts.Stripped < want || counts.Lost > 0 || counts.Failed > 0 {
				b.Fatalf("%+v, %v: %d of each are expected", counts, err, want)
			}
			n := float64(b.N)
			b.ReportMetric(float64(sent)/n, "ns/tagged-probe")
			b.ReportMetric(float64(passed)/n, "ns/other-packet")
			b.ReportMetric(float64(received)/n, "ns/tag-received")
			b.ReportMetric(float64(taken)/n, "ns/tag-fetched")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// undoSource takes the tag off again that the source put in.
func undoSource(f csig.Format) asm.Instructions {
	p := undoEgress(f)
	p[0] = p[0].WithSymbol("out")
	return p
}
