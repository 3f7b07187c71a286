package module

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// memory is an image that is written by offsets as the standards count them.
type memory struct{ Image }

func (m memory) put(b Block, offset int, x ...byte) {
	if m.Image[b] == nil {
		m.Image[b] = make([]byte, Half)
	}
	copy(m.Image[b][offset-b.Offset():], x)
}

func (m memory) text(b Block, offset, n int, s string) {
	m.put(b, offset, []byte(fmt.Sprintf("%-*s", n, s))...)
}

func (m memory) words(b Block, offset int, v ...uint16) {
	for i, x := range v {
		m.put(b, offset+2*i, binary.BigEndian.AppendUint16(nil, x)...)
	}
}

func (m memory) sum(b Block, from, to int) {
	var s byte
	for i := from; i <= to; i++ {
		s += m.Image[b][i-b.Offset()]
	}
	m.put(b, to+1, s)
}

// osfp returns the memory of a CMIS 5.0 module of eight lanes.
func osfp() memory {
	m := memory{Image{}}
	m.put(Lower, 0, 0x19, 0x50) // OSFP, CMIS 5.0
	m.put(Lower, 3, 3<<1)       // ModuleReady
	m.put(Lower, 9, 1<<2)       // temperature: high warning
	m.words(Lower, 14, 0x3780)  // 55.5 C
	m.words(Lower, 16, 32950)   // 3.295 V
	m.put(Page0, 128, 0x19)
	m.text(Page0, 129, 16, "ACME OPTICS")
	m.put(Page0, 145, 0x00, 0x02, 0xc9)
	m.text(Page0, 148, 16, "MMA4Z00-NS")
	m.text(Page0, 164, 2, "A3")
	m.text(Page0, 166, 16, "MT2345FT00001")
	m.text(Page0, 182, 8, "230912")
	m.sum(Page0, 128, 221)
	m.put(page1, 142, 0)                                                // bank 0 only
	m.put(page1, 157, 0x0f, 0x06)                                       // all flags of lanes
	m.put(page1, 159, 0x03, 0x07|1<<3)                                  // temperature, supply; bias (times 2), both powers
	m.words(page2, 128, 0x5000, 0xfb00, 0x4b00, 0)                      // 80, -5, 75, 0 C
	m.words(page2, 136, 35000, 31000, 34650, 31350)                     // 3.5, 3.1, 3.465, 3.135 V
	m.words(page2, 176, 31623, 1000, 25119, 1259)                       // transmit
	m.words(page2, 184, 6000, 750, 5500, 1000)                          // bias: 24, 3, 22, 4 mA
	m.words(page2, 192, 31623, 500, 25119, 631)                         // receive
	p := lanePage(0)                                                    //
	m.words(p, 154, 10000, 10000, 10000, 10000, 10000, 10000, 10000, 0) // 1 mW; lane 8 is off
	m.words(p, 170, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 0)        // 8 mA
	m.words(p, 186, 8000, 8001, 8002, 8003, 8004, 8005, 8006, 0)        // 0.8 mW; lane 8 is dark
	m.put(p, 135, 1<<7)                                                 // transmit fault of lane 8
	m.put(p, 147, 1<<7, 1<<7)                                           // loss of signal and lock
	m.put(p, 150, 1<<7)                                                 // receive power: low alarm
	m.put(p, 152, 1<<7)                                                 // low warning
	return m
}

// qsfp28 returns the memory of an SFF-8636 module.
func qsfp28() memory {
	m := memory{Image{}}
	m.put(Lower, 0, 0x11, 8)                       // QSFP28, rev 2.8
	m.put(Lower, 3, 1<<7|1<<1)                     // loss of signal: transmit 4, receive 2
	m.put(Lower, 4, 1<<0)                          // fault of laser 1
	m.put(Lower, 5, 1<<6|1<<1)                     // loss of lock: transmit 3, receive 2
	m.put(Lower, 6, 1<<4)                          // temperature: low warning
	m.put(Lower, 9, 0x04)                          // receive power of lane 2: low alarm
	m.put(Lower, 10, 0x80)                         // of lane 3: high alarm
	m.words(Lower, 22, 0xfe80)                     // -1.5 C
	m.words(Lower, 26, 33000)                      // 3.3 V
	m.words(Lower, 34, 5000, 0, 20000, 5000)       // receive: 0.5 mW, dark, 2 mW
	m.words(Lower, 42, 3500, 3500, 3500, 3500)     // bias: 7 mA
	m.words(Lower, 50, 9000, 9000, 9000, 9000)     // transmit: 0.9 mW
	m.put(Page0, 128, 0x11)                        //
	m.put(Page0, 147, 0)                           // 850 nm VCSEL
	m.text(Page0, 148, 16, "Vendor")               //
	m.put(Page0, 165, 0, 0x90, 0x65)               //
	m.text(Page0, 168, 16, "PART-100G")            //
	m.text(Page0, 184, 2, "1")                     //
	m.put(Page0, 194, 0x30, 0x0a)                  // loss of lock both ways; fault, transmit loss
	m.text(Page0, 196, 16, "SN0001")               //
	m.text(Page0, 212, 8, "190101")                //
	m.put(Page0, 220, 1<<5|1<<4|1<<3|1<<2)         // temperature, supply, average power, transmit power
	m.sum(Page0, 128, 190)                         //
	m.sum(Page0, 192, 222)                         //
	m.words(page3, 128, 0x4b00, 0xfb00, 0x4600, 0) //
	m.words(page3, 144, 36300, 29700, 34650, 31350)
	m.words(page3, 176, 34674, 462, 17378, 912)
	m.words(page3, 184, 5000, 1000, 4500, 1500)
	m.words(page3, 192, 34674, 462, 17378, 912)
	return m
}

// sfp28 returns the memory of an SFF-8472 module, with calibration by the host if external.
func sfp28(external bool) memory {
	m := memory{Image{}}
	m.put(Lower, 0, 3, 4)
	m.text(Lower, 20, 16, "FINISAR CORP.")
	m.put(Lower, 37, 0, 0x90, 0x65)
	m.text(Lower, 40, 16, "FTLF8536P4BCL")
	m.text(Lower, 56, 4, "A")
	m.text(Lower, 68, 16, "N1AB2CD")
	m.text(Lower, 84, 8, "160721")
	m.put(Lower, 92, 1<<6|1<<5|1<<3, 0xb0, 8) // diagnostics; flags, fault and loss are reported
	if external {
		m.put(Lower, 92, 1<<6|1<<4)
	}
	m.sum(Lower, 0, 62)
	m.sum(Lower, 64, 94)
	m.words(diagnostic, 0, 0x4e00, 0xf300, 0x4900, 0xf800)
	m.words(diagnostic, 8, 36000, 30000, 35000, 31000)
	m.words(diagnostic, 16, 5000, 500, 4500, 1000)
	m.words(diagnostic, 24, 17783, 1000, 12589, 1259)
	m.words(diagnostic, 32, 15849, 100, 10000, 200)
	single := func(offset int, v float32) {
		m.put(diagnostic, offset, binary.BigEndian.AppendUint32(nil, math.Float32bits(v))...)
	}
	for i := range 5 {
		single(56+4*i, [5]float32{0, 0, 0, 1, 0}[i]) // the identity
	}
	for _, at := range []int{76, 80, 84, 88} {
		m.words(diagnostic, at, 0x0100, 0) // slope 1, offset 0
	}
	m.words(diagnostic, 96, 0x1a80, 32000, 3000, 6000, 4000) // 26.5 C, 3.2 V, 6 mA, 0.6 mW, 0.4 mW
	m.put(diagnostic, 110, 1<<2|1<<1)                        // fault, loss of signal
	m.put(diagnostic, 112, 1<<6|1<<3, 1<<6)                  // temperature low, bias high; receive power low
	m.put(diagnostic, 116, 1<<4, 1<<7)                       // supply low; receive power high
	return m
}

func show(m *Module, err error) string {
	var b strings.Builder
	if m != nil {
		number := func(v *float64) string {
			if v == nil {
				return "absent"
			}
			return fmt.Sprintf("%.6g", *v)
		}
		limits := func(l *Limits) string {
			if l == nil {
				return "none"
			}
			return fmt.Sprintf("%.6g / %.6g / %.6g / %.6g", l.HighAlarm, l.LowAlarm, l.HighWarning, l.LowWarning)
		}
		fmt.Fprintf(&b, "%s %s, %s (%#02x)\nvendor %q %q part %q revision %q serial %q date %q\nstate %q cause %q\n", m.Standard, m.Compliance, m.Type, m.Identifier, m.Vendor, m.OUI, m.Part, m.Revision, m.Serial, m.Date, m.State, m.FaultCause)
		t := m.Thresholds
		fmt.Fprintf(&b, "temperature %s C, %s\nvoltage %s V, %s\n", number(m.Temperature), limits(t.Temperature), number(m.Voltage), limits(t.Voltage))
		fmt.Fprintf(&b, "receive W %s\ntransmit W %s\nbias A %s\n", limits(t.ReceivePower), limits(t.TransmitPower), limits(t.Bias))
		for _, l := range m.Lanes {
			fmt.Fprintf(&b, "lane %d: receive %s W, transmit %s W, bias %s A\n", l.Number, number(l.ReceivePower), number(l.TransmitPower), number(l.Bias))
		}
		for _, f := range m.Flags {
			fmt.Fprintf(&b, "flag %d %s\n", f.Lane, f.Name)
		}
	}
	if err != nil {
		fmt.Fprintf(&b, "error %v\n", err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for name, m := range map[string]memory{"osfp": osfp(), "qsfp28": qsfp28(), "sfp28": sfp28(false), "sfp28-external": sfp28(true)} {
		got := show(Decode(m.Image))
		file := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// TestDecode changes one thing of a module, and says what line of show changes.
func TestDecode(t *testing.T) {
	for _, tt := range []struct {
		name string
		of   func() memory
		edit func(memory)
		want []string // lines that must be there; "!": must not
	}{
		{"rule 1: an unimplemented monitor is absent", osfp, func(m memory) { m.put(page1, 159, 0) }, []string{"temperature absent C, none", "!flag 0 temperature_high_warning"}},
		{"rule 1: no bias, no transmit power", osfp, func(m memory) { m.put(page1, 160, 1<<2) }, []string{"lane 1: receive 0.0008 W, transmit absent W, bias absent A", "bias A none"}},
		{"rule 1: a page that was not read", osfp, func(m memory) { delete(m.Image, page2) }, []string{"temperature 55.5 C, none", "!error"}},
		{"rule 1: lanes that were not read", osfp, func(m memory) { delete(m.Image, lanePage(0)) }, []string{"lane 1: receive absent W, transmit absent W, bias absent A"}},
		{"rule 1: unimplemented flags", osfp, func(m memory) { m.put(page1, 157, 0, 0) }, []string{"!flag 8 transmit_fault", "!flag 8 receive_loss_of_signal", "flag 8 receive_power_low_alarm"}},
		{"rule 1: a lane that is not implemented", osfp, func(m memory) { m.put(Page0, 210, 1<<7); m.sum(Page0, 128, 221) }, []string{"!lane 8", "lane 7:"}},
		{"rule 2: a dark lane is 0", osfp, func(memory) {}, []string{"lane 8: receive 0 W, transmit 0 W, bias 0 A"}},
		{"bias times 4", osfp, func(m memory) { m.put(page1, 160, 0x07|2<<3) }, []string{"bias 0.016 A"}},
		{"bias times a reserved factor", osfp, func(m memory) { m.put(page1, 160, 0x07|3<<3) }, []string{"bias absent A", "error page 01h, offset 160:"}},
		{"passive copper of CMIS", osfp, func(m memory) { m.put(Lower, 2, 1<<7) }, []string{"temperature absent C, none", "!lane", "vendor \"ACME OPTICS\""}},
		{"a module in fault", osfp, func(m memory) { m.put(Lower, 3, 5<<1); m.put(Lower, 41, 1) }, []string{`state "ModuleFault" cause "TEC runaway"`}},
		{"a state that does not exist", osfp, func(m memory) { m.put(Lower, 3, 7<<1) }, []string{"error lower memory, offset 3:"}},
		{"rule 3: a short page", osfp, func(m memory) { m.Image[lanePage(0)] = m.Image[lanePage(0)][:30] }, []string{"error page 11h, offset 154: a block of 128 octets is expected, not of 30", "temperature 55.5 C"}},
		{"rule 3: a checksum", osfp, func(m memory) { m.put(Page0, 150, 'x') }, []string{"error page 00h, offset 222:"}},
		{"rule 3: text that is none", osfp, func(m memory) { m.put(Page0, 166, 0x01, 'x'); m.sum(Page0, 128, 221) }, []string{"error page 00h, offset 166: printable ASCII", `part "MMA4Z00-NS"`}},
		{"rule 3: an identifier that is not ours", osfp, func(m memory) { m.put(Lower, 0, 0x7f) }, []string{"error lower memory, offset 0:", "!vendor"}},
		{"a QSFP with CMIS has four lanes", osfp, func(m memory) { m.put(Lower, 0, 0x1e) }, []string{"lane 4:", "!lane 5"}},
		{"16 lanes", osfp, func(m memory) { m.put(page1, 142, 1); m.words(lanePage(1), 186, 7000) }, []string{"lane 9: receive 0.0007 W", "lane 16:"}},
		{"copper of SFF-8636", qsfp28, func(m memory) { m.put(Page0, 147, 0xa0); m.sum(Page0, 128, 190) }, []string{"temperature absent C, none", "!lane"}},
		{"active copper of SFF-8636", qsfp28, func(m memory) { m.put(Page0, 147, 0xc0); m.sum(Page0, 128, 190) }, []string{"temperature -1.5 C", "lane 1: receive absent W, transmit absent W, bias absent A"}},
		{"no monitor of transmit power", qsfp28, func(m memory) { m.put(Page0, 220, 0x38); m.sum(Page0, 192, 222) }, []string{"lane 1: receive 0.0005 W, transmit absent W", "transmit W none"}},
		{"no monitor of temperature", qsfp28, func(m memory) { m.put(Page0, 220, 0x1c); m.sum(Page0, 192, 222) }, []string{"temperature absent C"}},
		{"an older one does not report it", qsfp28, func(m memory) { m.put(Lower, 1, 7); m.put(Page0, 220, 0x0c); m.sum(Page0, 192, 222) }, []string{"temperature -1.5 C"}},
		{"a channel that is not there", qsfp28, func(m memory) { m.put(Lower, 113, 1<<2) }, []string{"!lane 3", "!flag 3", "lane 4:"}},
		{"data are not ready", qsfp28, func(m memory) { m.put(Lower, 2, 1) }, []string{"temperature absent C, 75", "lane 1: receive absent W"}},
		{"flags that are not implemented", qsfp28, func(m memory) { m.put(Page0, 194, 0, 0); m.sum(Page0, 192, 222) }, []string{"!transmit_fault", "!loss_of_lock", "!transmit_loss", "flag 2 receive_loss_of_signal"}},
		{"an SFP without diagnostics", func() memory { return sfp28(false) }, func(m memory) { m.put(Lower, 92, 0); m.sum(Lower, 64, 94) }, []string{"temperature absent C, none", "!lane"}},
		{"an SFP that is not ready", func() memory { return sfp28(false) }, func(m memory) { m.put(diagnostic, 110, 1) }, []string{"temperature absent C, 78", "lane 1: receive absent"}},
		{"an SFP without flags", func() memory { return sfp28(false) }, func(m memory) { m.put(Lower, 93, 0); m.sum(Lower, 64, 94) }, []string{"!flag"}},
		{"internally calibrated: constants are nothing", func() memory { return sfp28(false) }, func(m memory) { m.words(diagnostic, 84, 0x0200, 0x0100) }, []string{"temperature 26.5 C"}},
		// 26.5 * 1.5 - 2 = 37.75; thresholds go the same way: 78 * 1.5 - 2 = 115.
		{"external: temperature", func() memory { return sfp28(true) }, func(m memory) { m.words(diagnostic, 84, 0x0180, 0xfe00) }, []string{"temperature 37.75 C, 115 / -21.5"}},
		{"external: a temperature below zero", func() memory { return sfp28(true) }, func(m memory) { m.words(diagnostic, 84, 0x0200, 0); m.words(diagnostic, 96, 0xff00) }, []string{"temperature -2 C"}},
		// 32000 * 1.03125 + 100 = 33100.
		{"external: voltage", func() memory { return sfp28(true) }, func(m memory) { m.words(diagnostic, 88, 0x0108, 100) }, []string{"voltage 3.31 V"}},
		// 3000 * 0.5 - 100 = 1400, of 2 uA.
		{"external: bias", func() memory { return sfp28(true) }, func(m memory) { m.words(diagnostic, 76, 0x0080, 0xff9c) }, []string{"bias 0.0028 A"}},
		// 6000 * 2 - 500 = 11500.
		{"external: transmit power", func() memory { return sfp28(true) }, func(m memory) { m.words(diagnostic, 80, 0x0200, 0xfe0c) }, []string{"transmit 0.00115 W"}},
		// 4000 squared / 4096 - 100 = 3806.25: the third and the last coefficient.
		{"external: receive power", func() memory { return sfp28(true) }, func(m memory) {
			for i, v := range [5]float32{0, 0, 1.0 / 4096, 0, -100} {
				m.put(diagnostic, 56+4*i, binary.BigEndian.AppendUint32(nil, math.Float32bits(v))...)
			}
		}, []string{"receive 0.000380625 W"}},
		{"external: the noise of darkness", func() memory { return sfp28(true) }, func(m memory) {
			m.put(diagnostic, 72, binary.BigEndian.AppendUint32(nil, math.Float32bits(-5))...)
			m.words(diagnostic, 104, 2)
		}, []string{"receive 0 W"}},
		{"external: a coefficient that is no number", func() memory { return sfp28(true) }, func(m memory) { m.put(diagnostic, 60, 0x7f, 0xc0, 0, 0) }, []string{"error address A2h, offset 60:", "receive absent W", "temperature 26.5 C"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := tt.of()
			tt.edit(m)
			got := show(Decode(m.Image))
			for _, w := range tt.want {
				if not, ok := strings.CutPrefix(w, "!"); ok == strings.Contains(got, strings.TrimPrefix(w, "!")) {
					t.Errorf("%q (%q): in\n%s", w, not, got)
				}
			}
		})
	}
}

func TestMissing(t *testing.T) {
	for _, tt := range []struct {
		of   memory
		want string
	}{{osfp(), "lower memory; page 00h page 01h page 02h page 11h"}, {qsfp28(), "lower memory; page 00h page 03h"}, {sfp28(false), "lower memory; address A2h"}} {
		img := Image{}
		var got []string
		for {
			var round []string
			for _, b := range MissingBlocks(img) {
				round = append(round, b.String())
				img[b] = tt.of.Image[b]
			}
			if round == nil {
				break
			}
			got = append(got, strings.Join(round, " "))
		}
		if g := strings.Join(got, "; "); g != tt.want {
			t.Errorf("%s, want %s", g, tt.want)
		}
	}
	m := osfp()
	m.put(page1, 142, 2) // four banks
	var got []string
	for _, b := range MissingBlocks(m.Image) {
		got = append(got, b.String())
	}
	if want := []string{"page 11h of bank 1", "page 11h of bank 2", "page 11h of bank 3"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if b, offset, n, ok := SerialLocation(m.Image); !ok || string(m.Image[b][offset-b.Offset():][:n]) != "MT2345FT00001   " {
		t.Errorf("serial number at %s %d", b, offset)
	}
}

// FuzzDecode: no memory crashes the decoder, and what it reads is finite and within the pages.
func FuzzDecode(f *testing.F) {
	order := []Block{Lower, Page0, page1, page2, page3, lanePage(0), lanePage(1), diagnostic}
	for _, m := range []memory{osfp(), qsfp28(), sfp28(false), sfp28(true)} {
		var all []byte
		for _, b := range order {
			x := m.Image[b]
			if x == nil {
				x = make([]byte, Half)
			}
			all = append(all, x...)
		}
		f.Add(all)
		f.Add(all[:300])
	}
	f.Fuzz(func(t *testing.T, all []byte) {
		img := Image{}
		for i, b := range order {
			// Exactly as long, so that reading beyond is seen.
			if at := i * Half; at < len(all) {
				img[b] = slices.Clip(slices.Clone(all[at:min(at+Half, len(all))]))
			}
		}
		before := maps.Clone(img)
		MissingBlocks(img)
		m, err := Decode(img)
		if m == nil && err == nil {
			t.Error("no module, and no error")
		}
		if len(before) != len(img) {
			t.Error("the image was changed")
		}
		if m == nil {
			return
		}
		for _, v := range []*float64{m.Temperature, m.Voltage} {
			if v != nil && (math.IsNaN(*v) || math.IsInf(*v, 0)) {
				t.Errorf("%v", *v)
			}
		}
		for _, l := range m.Lanes {
			for _, v := range []*float64{l.ReceivePower, l.TransmitPower, l.Bias} {
				if v != nil && !(*v >= 0 && !math.IsInf(*v, 0)) {
					t.Errorf("lane %d: %v", l.Number, *v)
				}
			}
		}
	})
}
