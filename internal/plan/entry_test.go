package plan

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/roce"
)

const entryLine = `{"src":"h1/eth1","dst":"h5/eth1","src_addr":"10.0.0.1","dst_addr":"10.0.4.1","proto":"udp","dport":4791,"dscp":26,"sport":49153,` +
	`"path":[{"switch":"leaf1","in":"dn1","out":"up2"},{"switch":"spine2","in":"dn1","out":"dn2"},{"switch":"leaf2","in":"up2","out":"dn1"}],` +
	`"state":"valid","source":"trace","confirmed":"2026-11-22T02:00:00Z"}` + "\n"

// readEntries returns the entries of a text and the errors of its lines.
func readEntries(t testing.TB, text string) (out []Entry, bad []string) {
	t.Helper()
	err := ReadCatalogue(strings.NewReader(text), func(_ int, e *Entry) error {
		c := *e
		c.Path = append(fabric.Path(nil), e.Path...)
		out = append(out, c)
		return nil
	}, func(e fabric.LineError) { bad = append(bad, e.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	return out, bad
}

func TestEntryIsReadAndWritten(t *testing.T) {
	entries, bad := readEntries(t, entryLine)
	want := Entry{Src: "h1/eth1", Dst: "h5/eth1", SrcAddr: netip.MustParseAddr("10.0.0.1"), DstAddr: netip.MustParseAddr("10.0.4.1"), Proto: "udp", DPort: 4791, DSCP: 26, SPort: 49153,
		Path:  fabric.Path{{Switch: "leaf1", In: "dn1", Out: "up2"}, {Switch: "spine2", In: "dn1", Out: "dn2"}, {Switch: "leaf2", In: "up2", Out: "dn1"}},
		State: Valid, Source: Traced, Confirmed: time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)}
	if len(bad) > 0 || len(entries) != 1 || !reflect.DeepEqual(entries[0], want) {
		t.Fatalf("%+v, bad %v", entries, bad)
	}
	if line, err := AppendEntry(nil, &want); err != nil || string(line) != entryLine {
		t.Errorf("%s (%v), want %s", line, err, entryLine)
	}
}

func TestBadEntriesNameTheField(t *testing.T) {
	for _, c := range [][3]string{
		{`"sport":49153`, `"sport":"x"`, `field "sport": a whole number from 0 to 65535 is expected`},
		{`"sport":49153`, `"sport":70000`, `field "sport"`},
		{`"sport":49153,`, ``, `field "sport": is missing`},
		{`"proto":"udp"`, `"proto":"tcp"`, `field "proto": "tcp": udp is expected`},
		{`"dscp":26`, `"dscp":64`, `field "dscp"`},
		{`"state":"valid"`, `"state":"good"`, `field "state": "good": valid, stale or unknown is expected`},
		{`"src":"h1/eth1"`, `"src":"h1"`, `field "src": "h1": a NIC is expected`},
		{`"10.0.0.1"`, `"10.0.0"`, `field "src_addr": "10.0.0": an IP address is expected`},
		{`"switch":"leaf1"`, `"switch":"leaf:1"`, `field "path": hop 0: switch`},
		{`2026-11-22T`, `yesterday `, `field "confirmed"`},
		{`"dscp":26`, `"dscp":26,"dscp":26`, `field "dscp": given twice`},
		{`"}` + "\n", `"} x` + "\n", `nothing is expected behind the object`},
		{`"path":[`, `"path":[[],`, `field "path"`},
	} {
		text := strings.Replace(entryLine, c[0], c[1], 1)
		if entries, bad := readEntries(t, text); len(entries) != 0 || len(bad) != 1 || !strings.Contains(bad[0], "line 1: ") || !strings.Contains(bad[0], c[2]) {
			t.Errorf("%s: %v, bad %v, want %s", c[1], entries, bad, c[2])
		}
	}
}

func TestPortsOfTheKernelsRule(t *testing.T) {
	for p := FirstRoCEPort; p < 65536; p++ {
		label := FlowLabel(uint16(p))
		if got := roce.ConnectedPort(label, 0x123, 0x1234); label == 0 || got != uint16(p) {
			t.Fatalf("port %d: label %d gives %d", p, label, got)
		}
	}
}

func TestBadJobsNameLineAndField(t *testing.T) {
	for _, c := range [][2]string{
		{"", "j.yaml: jobs: at least one job is expected"},
		{"jobs:\n- {nodes: [h1]}", "j.yaml:2: jobs[0].job: is missing"},
		{"jobs:\n- {job: a, nodse: [h1]}", `j.yaml:2: jobs[0]: unknown field "nodse"`},
		{"jobs:\n- {job: a}\n- {job: a}", `j.yaml:3: jobs[1].job: "a" is the name of another job, on line 2`},
	} {
		if _, err := ParseJobs("j.yaml", strings.NewReader(c[0])); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%q: %v, want %s", c[0], err, c[1])
		}
	}
}

func FuzzCatalogue(f *testing.F) {
	f.Add([]byte(entryLine))
	f.Add([]byte(`{"src":"h1/e","x":{"a":[1,"\u00e4"]},"path":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, _ := readEntries(t, string(text))
		for i := range entries {
			line, err := AppendEntry(nil, &entries[i])
			if err != nil {
				t.Fatalf("an entry that was read is not written: %v", err)
			}
			again, bad := readEntries(t, string(line))
			if len(bad) > 0 || len(again) != 1 || again[0].SPort != entries[i].SPort || again[0].Path.CanonicalKey() != entries[i].Path.CanonicalKey() {
				t.Fatalf("%s is read as %+v, bad %v", line, again, bad)
			}
		}
	})
}

func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"version":1,"model":{"goodput_ratio":0.9},"assignments":[{"job":"a","src":"h1/e","dst":"h2/e","qp":0,"sport":49153,"flow_label":1,"weight":1,"links":["h1/e->l:1","l:2->h2/e"]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := Read(bytes.NewReader(text)); err == nil {
			if err := errors.Join(p.Write(io.Discard), p.WriteTable(io.Discard), p.WriteUCX(io.Discard)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// BenchmarkReadCatalogue reads the lines of a fabric of 256 NICs.
func BenchmarkReadCatalogue(b *testing.B) {
	n, jobs := sizeNetwork(b, 32, 8, 8)
	text := sizeText(b, n, jobs, 32)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		readText(b, n, text)
	}
}
