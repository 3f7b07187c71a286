package csig

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The defaults are those of the specification.
func TestDefaultScales(t *testing.T) {
	p := testProfile(t, "")
	if p.DC != time.Millisecond || p.WAN != time.Millisecond || p.Fastest != 100*gigabit || p.DoNotUpdate != (Bit{}) {
		t.Errorf("%+v", p)
	}
	for s := range Signal(Signals) {
		if table := p.Tables[s]; (table == nil) != (s == Queue) || table != nil && (table.Validate() != nil || len(table.Edges) != 32) {
			t.Errorf("%v: %+v", s, table)
		}
		if steps := p.Steps[s]; (steps == nil) != (s == Queue) || steps != nil && steps.Validate() != nil {
			t.Errorf("%v: %+v", s, steps)
		}
	}
	for code, percent := range map[int]uint64{0: 0, 1: 1, 7: 8, 14: 23, 25: 65, 31: 95} {
		if got := p.Tables[Share].Edges[code]; got != percent*Million/100 {
			t.Errorf("share: code %d begins at %d millionths, want %d %%", code, got, percent)
		}
		if got := p.Tables[Bandwidth].Edges[code]; got != percent*gigabit {
			t.Errorf("bandwidth: code %d begins at %d bit/s, want %d %% of 100 Gbit/s", code, got, percent)
		}
	}
	for code, ns := range map[int]uint64{0: 0, 1: 250, 2: 354, 3: 500, 5: 1000, 31: 8_192_000} {
		if got := p.Tables[Delay].Edges[code]; got != ns {
			t.Errorf("delay: code %d begins at %d ns, want %d", code, got, ns)
		}
	}
	most := uint64(Wide.MaxCode())
	if r, _ := p.Steps[Bandwidth].RangeOf(Wide.MaxCode()); r.Lower != most<<23 || r.Lower < 8_700_000_000_000 || r.HasUpper {
		t.Errorf("bandwidth of wide tags ends with %+v", r)
	}
	if r, _ := p.Steps[Delay].RangeOf(Wide.MaxCode()); r.Lower != most*128 || r.HasUpper {
		t.Errorf("delay of wide tags ends with %+v", r)
	}
	if p.Steps[Share].CodeOf(Million) != Million {
		t.Errorf("the whole share has code %d", p.Steps[Share].CodeOf(Million))
	}
}

// A profile as FBOSS has it: seven thresholds, and a bit in every code.
const fbossProfile = `
ethertypes: {compact: 0x9900}
interval: {dc: 128us, wan: 1024us}
compact:
  0:
    codes:
    - {code: 16, min: 0, max: 10G}
    - {code: 17, min: 10G, max: 50G}
    - {code: 23, min: 50G}
  1: {edges: [0, 12.5, 50]}
  2: {edges: [0, 250ns, 1.5us]}
dnu: r
locators:
  compact: {"leaf1:Ethernet1/12": 5, "leaf2:Ethernet1/12": 5}
down:
  compact: {127: "leaf1:Ethernet1/12"}
`

func TestProfileIsRead(t *testing.T) {
	p, err := ParseProfile("csig.yml", []byte(fbossProfile))
	if err != nil {
		t.Fatal(err)
	}
	want := &Profile{
		EtherTypes: EtherTypes{Compact: 0x9900}, DC: 128 * time.Microsecond, WAN: 1024 * time.Microsecond, DoNotUpdate: Bit{Compact, 1},
		Tables: [Signals]*Table{
			{Edges: []uint64{0, 10 * gigabit, 50 * gigabit}, Codes: []uint8{16, 17, 23}},
			NewTable(0, 125_000, 500_000), NewTable(0, 250, 1500),
		},
		CompactLocators: map[string]uint16{"leaf1:Ethernet1/12": 5, "leaf2:Ethernet1/12": 5}, WideLocators: map[string]uint16{},
		CompactDown: map[uint16]string{127: "leaf1:Ethernet1/12"}, WideDown: map[uint16]string{},
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("%+v, want %+v", p, want)
	}
	if got := p.PortsOf(Compact, 5); !reflect.DeepEqual(got, []string{"leaf1:Ethernet1/12", "leaf2:Ethernet1/12"}) || p.PortsOf(Compact, 6) != nil {
		t.Errorf("ports of locator 5: %v", got)
	}
	if p.DownPort(Compact, 127) != "leaf1:Ethernet1/12" || p.DownPort(Compact, 5) != "" || p.DownPort(Wide, 127) != "" {
		t.Error("wrong ports are down")
	}
	if _, ok := p.Decode(&Tag{Format: Compact, Signal: Bandwidth, Code: 18}); ok {
		t.Error("a code that the table does not have stands for values")
	}
	for _, tag := range []Tag{{Format: Wide}, {Format: Compact, Signal: Queue}, {Format: Compact, Signal: 7}, {}} {
		if _, ok := p.Decode(&tag); ok || p.HasScale(tag.Format, tag.Signal) {
			t.Errorf("%+v stands for values", tag)
		}
	}
	if wan := p.NewPort(PortOptions{WAN: true}, 0).window.interval; wan != 1_024_000 {
		t.Errorf("window between sites: %d ns", wan)
	}
}

// Profiles have one hash if they mean the same, and different ones otherwise.
func TestHash(t *testing.T) {
	const base = "ethertypes: {compact: 0x88b5, wide: 0x88b6}\ninterval: 100us\nfastest_gbps: 400\n"
	hash := func(text string) string {
		t.Helper()
		p, err := ParseProfile("csig.yml", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if h := p.Hash(); len(h) == 16 {
			return h
		}
		t.Fatalf("hash %q", p.Hash())
		return ""
	}
	want := hash(base)
	for _, same := range []string{
		"# a comment\ninterval: {wan: 100us, dc: 100us}\nfastest_gbps: 400.0\nethertypes: {wide: 34998, compact: 34997}\ndnu: none\n",
		base + "wide: {0: {step: 8388608}, 2: {base: 0, step: 0.128us}}\ncompact: {}\nlocators: {compact: {}}\n",
		"ethertypes: {compact: 0x88b5, wide: 0x88b6}\ninterval: 100us\ncompact: {0: {edges: [0,4G,8G,12G,16G,20G,24G,32G,40G,48G,56G,64G,72G,80G,92G,104G,116G,128G,144G,160G,176G,192G,208G,224G,240G,260G,280G,300G,320G,340G,360G,0.38T]}}\n",
	} {
		if got := hash(same); got != want {
			t.Errorf("%s, want %s, of\n%s", got, want, same)
		}
	}
	seen := map[string]string{want: base}
	for _, other := range []string{
		strings.Replace(base, "400", "800", 1), strings.Replace(base, "100us", "1ms", 1), strings.Replace(base, "100us", "{dc: 100us, wan: 1ms}", 1), strings.Replace(base, "0x88b6", "0x88b7", 1),
		base + "dnu: r\n", base + "dnu: res0\n", base + "dnu: res1\n", base + "compact: {1: {edges: [0]}}\n", base + "compact: {1: {codes: [{code: 1, min: 0}]}}\n", base + "compact: {3: {edges: [0]}}\n",
		base + "wide: {2: {step: 64ns}}\n", base + "wide: {2: {base: 1us, step: 128ns}}\n", base + "wide: {3: {step: 128ns}}\n",
		base + "locators: {compact: {\"a:1\": 1}}\n", base + "locators: {wide: {\"a:1\": 1}}\n", base + "locators: {wide: {\"a:1\": 2}}\n", base + "locators: {wide: {\"a:2\": 1}}\n",
		base + "down: {compact: {1: \"a:1\"}}\n", base + "down: {wide: {1: \"a:1\"}}\n", base + "down: {wide: {1: \"a:2\"}}\n",
	} {
		h := hash(other)
		if twin, ok := seen[h]; ok {
			t.Errorf("one hash for\n%s\nand\n%s", twin, other)
		}
		seen[h] = other
	}
}

// badProfiles are profiles and the whole errors that they have.
var badProfiles = []struct{ text, want string }{
	{"", "csig.yml:1: the file is empty: a mapping with ethertypes, interval, fastest_gbps, compact, wide, dnu, locators, down is expected"},
	{"a: [", "csig.yml:1: not YAML: did not find expected node content"},
	{"- a", "csig.yml:1: a mapping with ethertypes, interval, fastest_gbps, compact, wide, dnu, locators, down is expected"},
	{"interval: 1ms\n", "csig.yml:1: ethertypes: is missing"},
	{"ethertypes: {wide: 0x88b6}\n", "csig.yml:1: interval: is missing"},
	{"ethertypes: {wide: 0x88b6}\ninterval: 1ms\nintervall: 1ms\n", `csig.yml:3: unknown field "intervall": one of ethertypes, interval, fastest_gbps, compact, wide, dnu, locators, down is expected`},
	{"ethertypes: {wide: 0x88b6}\ninterval: 1ms\ninterval: 1ms\n", "csig.yml:3: interval: is given twice"},
	{"ethertypes: 0x88b6\ninterval: 1ms\n", "csig.yml:1: ethertypes: a mapping with compact, wide is expected"},
	{"ethertypes: {}\ninterval: 1ms\n", "csig.yml:1: ethertypes: an EtherType is expected for compact tags, wide tags or both: there is no default"},
	{"ethertypes:\n  wide: 0x188b6\ninterval: 1ms\n", `csig.yml:2: ethertypes.wide: "0x188b6": an EtherType is expected, such as 0x88b5`},
	{"ethertypes:\n  wide: 0x86dd\ninterval: 1ms\n", "csig.yml:2: ethertypes.wide: 0x86dd is the EtherType of IPv6: another one is expected"},
	{"ethertypes: {wide: 0x88b6, compact: 0x88b6}\ninterval: 1ms\n", "csig.yml:1: ethertypes: wide: 0x88b6 is that of compact tags as well: another one is expected"},
	{"ethertypes: {wide: 0x88b6}\ninterval: 2ms\n", `csig.yml:2: interval: "2ms": one of 100ns, 1us, 10us, 100us, 1ms, 10ms, 100ms, or 128 to 1024 in steps of 128 with ns, us or ms is expected`},
	{"ethertypes: {wide: 0x88b6}\ninterval: 1152us\n", `csig.yml:2: interval: "1152us": one of 100ns, 1us, 10us, 100us, 1ms, 10ms, 100ms, or 128 to 1024 in steps of 128 with ns, us or ms is expected`},
	{"ethertypes: {wide: 0x88b6}\ninterval: {wan: 1ms}\n", "csig.yml:2: interval.dc: is missing"},
	{"ethertypes: {wide: 0x88b6}\ninterval: {dc: soon}\n", `csig.yml:2: interval.dc: "soon": a duration such as 100us is expected`},
	{"ethertypes: {wide: 0x88b6}\ninterval:\n", `csig.yml:2: interval: "": a duration such as 100us is expected`},
	{"ethertypes: {compact: 0x88b5}\ninterval: 1ms\n", "csig.yml:1: fastest_gbps: is missing: the speed of the fastest port is expected, or edges of compact.0"},
	{"ethertypes: {compact: 0x88b5}\ninterval: 1ms\nfastest_gbps: -4\n", `csig.yml:3: fastest_gbps: "-4": a positive number of gigabits per second is expected`},
	{"ethertypes: {compact: 0x88b5}\ninterval: 1ms\nfastest_gbps: 0.00000001\n", `csig.yml:3: fastest_gbps: "0.00000001": at least 100 bit/s are expected`},
	{compact + "wide: {0: {step: 1}}\n", "csig.yml:4: wide: wide tags have no EtherType: ethertypes.wide is expected"},
	{compact + "dnu: res3\n", "csig.yml:4: dnu: res3 is a bit of wide tags, which have no EtherType: ethertypes.wide is expected"},
	{compact + "dnu: res8\n", `csig.yml:4: dnu: "res8": none, r or res0 to res7 is expected`},
	{compact + "compact: {4: {edges: [0]}}\n", `csig.yml:4: compact: unknown field "4": one of 0, 1, 2, 3 is expected`},
	{compact + "compact: {2: {}}\n", "csig.yml:4: compact.2: either edges or codes is expected"},
	{compact + "compact: {2: {edges: []}}\n", "csig.yml:4: compact.2.edges: a list of 1 to 32 is expected"},
	{compact + "compact: {2: {edges: [1us]}}\n", `csig.yml:4: compact.2.edges[0]: "1us": 0 is expected as the first edge, so that every value has a code`},
	{compact + "compact:\n  2:\n    edges:\n    - 0\n    - 2us\n    - 2us\n", `csig.yml:9: compact.2.edges[2]: "2us": more than the edge before it is expected`},
	{compact + "compact: {2: {edges: [0, 5]}}\n", `csig.yml:4: compact.2.edges[1]: "5": a duration of at most an hour is expected, such as 250ns`},
	{compact + "compact: {1: {edges: [0, 101]}}\n", `csig.yml:4: compact.1.edges[1]: "101": percent are expected, such as 12.5, with at most four decimals`},
	{compact + "compact: {1: {edges: [0, 0.00001]}}\n", `csig.yml:4: compact.1.edges[1]: "0.00001": percent are expected, such as 12.5, with at most four decimals`},
	{compact + "compact: {0: {edges: [0, 4Q]}}\n", `csig.yml:4: compact.0.edges[1]: "4Q": bits per second are expected, such as 4000000 or 400G, at most 1000T`},
	{compact + "compact: {0: {edges: [0, [1]]}}\n", `csig.yml:4: compact.0.edges[1]: "": bits per second are expected, such as 4000000 or 400G, at most 1000T`},
	{compact + "compact: {2: {codes: [{min: 0}]}}\n", "csig.yml:4: compact.2.codes[0].code: is missing"},
	{compact + "compact: {2: {codes: [{code: 32, min: 0}]}}\n", `csig.yml:4: compact.2.codes[0].code: "32": a whole number from 0 to 31 is expected`},
	{compact + "compact: {2: {codes: [{code: 1, min: 0, max: 1us}]}}\n", "csig.yml:4: compact.2.codes[0].max: is not expected: the last code has no upper end"},
	{compact + "compact: {2: {codes: [{code: 1, min: 0}, {code: 2, min: 1us}]}}\n", "csig.yml:4: compact.2.codes[0].max: is missing: only the last code has no upper end"},
	{compact + "compact: {2: {codes: [{code: 1, min: 0, max: 1us}, {code: 2, min: 2us}]}}\n", `csig.yml:4: compact.2.codes[1].min: "2us": the max of the code before it is expected, so that every value has one code`},
	{compact + "compact: {2: {codes: [{code: 1, min: 0, max: 1us}, {code: 1, min: 1us}]}}\n", "csig.yml:4: compact.2.codes[1].code: 1: more than the code before it is expected, since devices compare codes"},
	{wide + "wide: {2: {base: 1us}}\n", "csig.yml:3: wide.2.step: a positive step is expected"},
	{wide + "wide: {0: {step: 2T}}\n", "csig.yml:3: wide.0: step 2000000000000: 1 to 1099511627776 is expected"},
	{wide + "locators: {wide: {leaf1: 1}}\n", `csig.yml:3: locators.wide: "leaf1": a port is expected, such as leaf1:up1`},
	{wide + "locators: {wide: {h1/eth1: 1}}\n", `csig.yml:3: locators.wide: "h1/eth1": a port is expected, such as leaf1:up1`},
	{wide + "locators: {wide: {\"a:1\": 0}}\n", `csig.yml:3: locators.wide.a:1: "0": a whole number from 1 to 65535 is expected`},
	{wide + "locators: {wide: {\"a:1\": 7, \"a:2\": 7}}\n", "csig.yml:3: locators.wide.a:2: 7 is that of a:1 as well: a number for this port alone is expected"},
	{compact + "locators: {compact: {\"a:1\": 128}}\n", `csig.yml:4: locators.compact.a:1: "128": a whole number from 1 to 127 is expected`},
	{compact + "locators: {wide: {\"a:1\": 128}}\n", "csig.yml:4: locators.wide: wide tags have no EtherType: ethertypes.wide is expected"},
	{compact + "locators: {compact: {\"a:1\": 9}}\ndown: {compact: {9: \"a:2\"}}\n", "csig.yml:5: down.compact.9: 9 is the locator of a:1: another number is expected"},
	{compact + "down: {compact: {9: \"a:2\", 0x9: \"a:2\"}}\n", "csig.yml:4: down.compact.0x9: is given twice"},
	{compact + "down: {compact: {9: a}}\n", `csig.yml:4: down.compact.9: "a": a port is expected, such as leaf1:up1`},
	{compact + "down: {compact: {nine: \"a:1\"}}\n", `csig.yml:4: down.compact: "nine": a whole number from 1 to 127 is expected`},
	{compact + "locators: {compact: {[a]: 1}}\n", "csig.yml:4: locators.compact: a text is expected as the key"},
}

const (
	compact = "ethertypes: {compact: 0x88b5}\ninterval: 1ms\nfastest_gbps: 400\n"
	wide    = "ethertypes: {wide: 0x88b6}\ninterval: 1ms\n"
)

func TestBadProfiles(t *testing.T) {
	for _, c := range badProfiles {
		_, err := ParseProfile("csig.yml", []byte(c.text))
		var field *FieldError
		if err == nil || err.Error() != c.want || !errors.As(err, &field) {
			t.Errorf("%q:\n%v, want\n%s", c.text, err, c.want)
		}
	}
}

func TestIntervals(t *testing.T) {
	for text, ok := range map[string]bool{"100ns": true, "1us": true, "10us": true, "100us": true, "1ms": true, "10ms": true, "100ms": true, "128ns": true, "896us": true, "1024ms": true,
		"1s": false, "10ns": false, "1152ms": false, "130us": false, "0": false, "-1ms": false, "128.5us": false} {
		_, err := ParseProfile("csig.yml", []byte("ethertypes: {wide: 0x88b6}\ninterval: "+text+"\n"))
		if (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestParseValue(t *testing.T) {
	for _, c := range []struct {
		s    Signal
		text string
		want uint64
	}{
		{Bandwidth, "0", 0}, {Bandwidth, "8388608", 8388608}, {Bandwidth, "1.5k", 1500}, {Bandwidth, "0.25M", 250_000}, {Bandwidth, "400G", 400 * gigabit}, {Bandwidth, "1000T", maxRate},
		{Share, "100", Million}, {Share, "12.5", 125_000}, {Share, "0.0001", 1}, {Share, "5.0", 50_000}, {Delay, "0", 0}, {Delay, "1.5us", 1500}, {Queue, "1h", uint64(time.Hour)},
	} {
		if got, err := parseValue(c.s, c.text); err != nil || got != c.want {
			t.Errorf("%v %q: %d, %v; want %d", c.s, c.text, got, err, c.want)
		}
	}
	for s, texts := range map[Signal][]string{Bandwidth: {"", "G", "-1", "1e9", "1.5", "1001T", ".5G", "1.G", "+1"}, Share: {"", "-0", "1%", "100.0001"}, Delay: {"", "-1ns", "2h", "NaN"}} {
		for _, text := range texts {
			if got, err := parseValue(s, text); err == nil {
				t.Errorf("%v %q: %d", s, text, got)
			}
		}
	}
}

// The profile of docs/csig.md is one.
func TestProfileOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/csig.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```\nethertypes:")
	text, _, ok := strings.Cut("ethertypes:"+rest, "```")
	if p, err := ParseProfile("docs/csig.md", []byte(text)); err != nil || !ok || len(p.CompactLocators) != 2 || p.WAN != 10*time.Millisecond {
		t.Errorf("%+v, %v, of\n%s", p, err, text)
	}
}

func TestLoadProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "csig.yml")
	if err := os.WriteFile(file, []byte(fbossProfile), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := LoadProfile(file); err != nil || p.EtherTypes.Compact != 0x9900 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := LoadProfile(file + ".none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// Texts of bits and their meaning go together.
func TestBits(t *testing.T) {
	for _, s := range []string{"none", "r", "res0", "res1", "res7"} {
		if b, ok := parseBit(s); !ok || b.String() != s {
			t.Errorf("%s: %v, %v", s, b, ok)
		}
	}
	if b, _ := parseBit("res0"); b.Mask != 1 {
		t.Errorf("res0 is %#x", b.Mask)
	}
}

// The largest scales that a profile may have do not overflow.
func TestLargestSteps(t *testing.T) {
	s := Steps{Base: maxBase, Step: maxStep}
	if r, ok := s.RangeOf(Wide.MaxCode()); !ok || r.Lower <= maxBase || s.CodeOf(math.MaxUint64) != Wide.MaxCode() {
		t.Errorf("%+v, %v", r, ok)
	}
}
