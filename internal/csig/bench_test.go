package csig

import (
	"maps"
	"slices"
	"testing"
)

// operations returns what happens per packet. None of the operations may allocate.
func operations(t testing.TB) map[string]func() {
	p := testProfile(t, "")
	port := p.NewPort(PortOptions{Name: "sw:1", Speed: 100 * gigabit}, 0)
	waiting := Waiting{Delay: Nanos{5000, true}}
	out := map[string]func(){}
	buf := make([]byte, 0, 256)
	var now int64
	for name, header := range map[string]string{"": addresses, "BehindTwoVLANTags": headers["two VLAN tags"]} {
		for _, f := range Formats {
			plain := unhex(t, header+"0800"+payload)
			frame, err := lab.Insert(nil, plain, NewTag(f, Delay))
			if err != nil {
				t.Fatal(err)
			}
			kind := map[Format]string{Compact: "Compact", Wide: "Wide"}[f] + name
			out["ParseAndUpdate"+kind] = func() {
				var found Found
				if lab.ParseInto(frame, &found) != Tagged {
					panic("not tagged")
				}
				found.Code = 0 // so that the tag is written each time
				if !found.Update(uint32(now&7+1), 7) {
					panic("not updated")
				}
				found.Put(frame)
				now++
			}
			out["Transmit"+kind] = func() {
				now += 100
				if _, o := port.Transmit(frame, now, waiting); o != Updated && o != Kept {
					panic(o)
				}
			}
			out["Insert"+kind] = func() { buf, _ = lab.Insert(buf[:0], plain, NewTag(f, Delay)) }
			out["InsertAndStrip"+kind] = func() {
				buf, _ = lab.Insert(buf[:0], plain, NewTag(f, Delay))
				lab.Strip(buf)
			}
		}
	}
	table, steps := p.Tables[Delay], p.Steps[Delay]
	out["CodeOfTable"] = func() { now += int64(table.CodeOf(uint64(now))) }
	out["CodeOfSteps"] = func() { now += int64(steps.CodeOf(uint64(now))) }
	out["ParseForeign"] = func() { lab.Parse(buf[:14]) }
	out["Nothing"] = func() { now++ }
	return out
}

func TestNothingAllocates(t *testing.T) {
	for name, op := range operations(t) {
		if n := testing.AllocsPerRun(200, op); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

func BenchmarkOperation(b *testing.B) {
	ops := operations(b)
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		op := ops[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				op()
			}
		})
	}
}
