package nicethtool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/genetlink/genltest"
	"github.com/mdlayher/netlink"
	"github.com/safchain/ethtool"

	"github.com/graylink/graylink/internal/nicethtool/ethtooltest"
	"github.com/graylink/graylink/internal/nicethtool/module"
	"github.com/graylink/graylink/internal/nichw"
)

var at = time.Unix(1_800_000_000, 0)

type encoder = *netlink.AttributeEncoder

func attributes(add func(encoder)) []byte { return ethtooltest.EncodeAttributes(add) }

func numbers(v ...uint64) (b []byte) {
	for _, x := range v {
		b = binary.NativeEndian.AppendUint64(b, x)
	}
	return b
}

// header adds the header of every reply.
func header(e encoder) {
	e.Nested(headerAttribute, func(h encoder) error { h.Uint32(1, 7); h.String(headerName, "eth0"); return nil })
}

func fecReply() []byte {
	return attributes(func(e encoder) {
		header(e)
		e.Nested(2, func(e encoder) error { // RS and BASE-R of 92 bits
			e.Bytes(1, nil)
			e.Uint32(2, 92)
			e.Bytes(4, []byte{0, 0, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 0}) // bits 50 and 51
			return nil
		})
		e.Uint8(3, 1)
		e.Uint32(4, 50)
		e.Nested(5, func(e encoder) error {
			e.Bytes(2, numbers(30, 10, 20)) // a total and two lanes
			e.Bytes(3, numbers(2))          // a total only
			e.Bytes(4, nil)                 // not counted
			return nil
		})
	})
}

func pauseReply() []byte {
	return attributes(func(e encoder) {
		header(e)
		e.Uint8(2, 0)
		e.Uint8(3, 1)
		e.Nested(5, func(e encoder) error { e.Uint64(3, 12345678901); return nil })
	})
}

func linkStateReply() []byte {
	return attributes(func(e encoder) {
		header(e)
		e.Uint8(2, 0)
		e.Uint8(5, 0)
		e.Uint8(6, 1)
		e.Uint32(7, 9)
	})
}

func linkModesReply() []byte {
	return attributes(func(e encoder) { header(e); e.Uint8(2, 1); e.Uint32(5, 400000); e.Uint8(6, 1); e.Uint32(9, 4) })
}

func show(v any) string {
	s := fmt.Sprintf("%+v", v)
	switch v := v.(type) {
	case *FEC:
		lanes := func(l *Lanes) string {
			if l == nil {
				return "absent"
			}
			return fmt.Sprint(l.Total, l.Lanes)
		}
		s = fmt.Sprintf("configured %v auto %s active %q corrected %s uncorrectable %s bits %s", v.Configured, optional(v.Auto), v.Active, lanes(v.Corrected), lanes(v.Uncorrectable), lanes(v.CorrectedBits))
	case *Pause:
		s = fmt.Sprintf("autoneg %s receive %s %s transmit %s %s", optional(v.Autoneg), optional(v.Receive), optional(v.ReceiveFrames), optional(v.Transmit), optional(v.TransmitFrames))
	case *LinkModes:
		s = fmt.Sprintf("autoneg %s speed %s duplex %q lanes %s", optional(v.Autoneg), optional(v.Speed), v.Duplex, optional(v.Lanes))
	case *LinkState:
		s = fmt.Sprintf("up %s SQI %s/%s %q %q downs %s", optional(v.Up), optional(v.SQI), optional(v.SQIMax), v.State, v.Substate, optional(v.Downs))
	}
	return s
}

func optional[T any](p *T) string {
	if p == nil {
		return "absent"
	}
	return fmt.Sprint(*p)
}

// shown makes a parser's result text.
func shown[T any](parse func([]byte) (*T, error)) func([]byte) (string, error) {
	return func(b []byte) (string, error) {
		v, err := parse(b)
		if err != nil {
			return "", err
		}
		return show(v), nil
	}
}

// parsers are those of replies, by the names that the tables have for them.
var parsers = map[string]func([]byte) (string, error){
	"fec":   shown(parseFEC),
	"pause": shown(parsePause),
	"modes": shown(parseLinkModes),
	"state": shown(parseLinkState),
	"eeprom": func(b []byte) (string, error) {
		v, err := parseEEPROM(b)
		return fmt.Sprintf("%x", v), err
	},
}

func TestReplies(t *testing.T) {
	one := func(add func(encoder)) []byte { return attributes(add) }
	for _, tt := range []struct {
		name, parser string
		reply        []byte
		want         string // "" means malformed
	}{
		{"all of FEC", "fec", fecReply(), `configured [baser rs] auto true active "rs" corrected 30 [10 20] uncorrectable 2 [] bits absent`},
		{"nothing of FEC", "fec", nil, `configured [] auto absent active "" corrected absent uncorrectable absent bits absent`},
		{"a mode of FEC to come", "fec", one(func(e encoder) { e.Uint32(4, 120) }), `configured [] auto absent active "link mode 120" corrected absent uncorrectable absent bits absent`},
		{"an attribute to come", "fec", one(func(e encoder) { e.Uint32(99, 1) }), `configured [] auto absent active "" corrected absent uncorrectable absent bits absent`},
		{"seven octets of FEC", "fec", one(func(e encoder) {
			e.Nested(5, func(e encoder) error { e.Bytes(2, make([]byte, 7)); return nil })
		}), ""},
		{"a mode of one octet", "fec", one(func(e encoder) { e.Uint8(4, 1) }), ""},
		{"a bitset that is too short", "fec", one(func(e encoder) {
			e.Nested(2, func(e encoder) error { e.Uint32(2, 92); e.Bytes(4, make([]byte, 8)); return nil })
		}), ""},
		{"a bitset that is too long", "fec", one(func(e encoder) { e.Nested(2, func(e encoder) error { e.Uint32(2, 1<<31); return nil }) }), ""},
		{"pause", "pause", pauseReply(), "autoneg false receive true 12345678901 transmit absent absent"},
		{"frames of four octets", "pause", one(func(e encoder) { e.Nested(5, func(e encoder) error { e.Uint32(3, 1); return nil }) }), ""},
		{"link modes", "modes", linkModesReply(), `autoneg true speed 50000000000 duplex "full" lanes 4`},
		{"unknown speed and duplex", "modes", one(func(e encoder) { e.Uint32(5, 1<<32-1); e.Uint8(6, 255) }), `autoneg absent speed absent duplex "" lanes absent`},
		{"link state", "state", linkStateReply(), `up false SQI absent/absent "autoneg" "no partner detected" downs 9`},
		{"a state to come", "state", one(func(e encoder) { e.Uint8(5, 200); e.Uint8(6, 3) }), `up absent SQI absent/absent "state 200" "substate 3" downs absent`},
		{"a state without more", "state", one(func(e encoder) { e.Uint8(5, 4); e.Uint8(6, 1) }), `up absent SQI absent/absent "no cable" "substate 1" downs absent`},
		{"signal quality", "state", one(func(e encoder) { e.Uint8(2, 1); e.Uint32(3, 5); e.Uint32(4, 7) }), `up true SQI 5/7 "" "" downs absent`},
		{"a cut header of an attribute", "state", []byte{8, 0, 5}, ""},
		{"an attribute longer than the message", "state", []byte{200, 0, 5, 0, 1, 0, 0, 0}, ""},
		{"an attribute shorter than its header", "pause", []byte{2, 0, 5, 0}, ""},
		{"octets of a module", "eeprom", one(func(e encoder) { e.Bytes(7, []byte{0x11, 0x22}) }), "1122"},
	} {
		got, err := parsers[tt.parser](tt.reply)
		switch {
		case tt.want == "" && !errors.Is(err, nichw.ErrMalformed):
			t.Errorf("%s: %s, %v, want an error", tt.name, got, err)
		case tt.want != "" && (err != nil || got != tt.want):
			t.Errorf("%s: %s, %v, want %s", tt.name, got, err, tt.want)
		}
	}
}

// FuzzReplies: no bytes crash a parser, and an error is malformed.
func FuzzReplies(f *testing.F) {
	for _, b := range [][]byte{fecReply(), pauseReply(), linkModesReply(), linkStateReply(), {8, 0, 5}, nil} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, parse := range parsers {
			if _, err := parse(slices.Clip(slices.Clone(b))); err != nil && !errors.Is(err, nichw.ErrMalformed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// sfp returns the memory of a module without diagnostics.
func sfp(serial string) []byte {
	b := make([]byte, 256)
	b[0] = 3
	copy(b[68:84], fmt.Sprintf("%-16s", serial))
	sum := func(from, to int) {
		b[to+1] = 0
		for _, v := range b[from : to+1] {
			b[to+1] += v
		}
	}
	sum(0, 62)
	sum(64, 94)
	return b
}

// cmis returns a module of which only identity and temperature matter.
func cmis(serial string, temperature byte) module.Image {
	img := module.Image{}
	block := func(b module.Block) []byte { img[b] = make([]byte, module.Half); return img[b] }
	low, p0 := block(module.Lower), block(module.Page0)
	low[0], low[1], low[3], low[14] = 0x18, 0x50, 3<<1, temperature
	copy(p0[166-128:], fmt.Sprintf("%-16s", serial))
	for _, v := range p0[:94] {
		p0[94] += v
	}
	block(module.Block{Address: module.A0, Page: 1, Upper: true})[159-128] = 1
	block(module.Block{Address: module.A0, Page: 2, Upper: true})
	block(module.Block{Address: module.A0, Page: 0x11, Upper: true})
	return img
}

// whole returns an interface that answers all requests.
func whole() *ethtooltest.Interface {
	return &ethtooltest.Interface{Driver: "mlx5_core", Bus: "0000:3b:00.0", Names: []string{"rx_packets", "rx0_packets", "link_down_events_phy", "rx_packets"}, Values: []uint64{5, 4, 3, 2},
		Replies: map[uint8][][]byte{getFEC: {fecReply()}, getPause: {pauseReply()}, getLinkModes: {linkModesReply()}, getLinkState: {linkStateReply()}}, Module: cmis("S1", 40),
		Errors: map[int]error{}, Hang: map[int]func(){}}
}

// partsOf returns the parts of an interface that were read.
func partsOf(f *Interface) string {
	var s []string
	for _, x := range []struct {
		name string
		is   bool
	}{{"statistics", f.Statistics != nil}, {"fec", f.FEC != nil}, {"pause", f.Pause != nil}, {"modes", f.LinkModes != nil}, {"state", f.LinkState != nil}, {"module", f.Module != nil}} {
		if x.is {
			s = append(s, x.name)
		}
	}
	return strings.Join(s, " ")
}

func failures(p *Poll) (out []string) {
	for i := range p.Errors {
		out = append(out, p.Errors[i].Path+" "+string(p.Errors[i].Sort))
	}
	return out
}

const everything = ReadCounters | ReadModules

// patience of tests in which nothing hangs: whatever the machine does, no answer is late.
const patience = time.Minute

func reader(k Kernel) *Reader {
	return New(Options{Kernel: k, Patience: patience, ModulePatience: patience})
}

// TestRule2APartFailsByItself: and rule 1, what is not supported is no error.
func TestRule2APartFailsByItself(t *testing.T) {
	all := "statistics fec pause modes state module"
	without := func(part string) string {
		return strings.Join(slices.DeleteFunc(strings.Fields(all), func(s string) bool { return s == part }), " ")
	}
	for _, tt := range []struct {
		name          string
		edit          func(*ethtooltest.Interface)
		parts, errors string
		denied        string
	}{
		{"all", func(*ethtooltest.Interface) {}, all, "[]", "[]"},
		{"FEC fails", func(f *ethtooltest.Interface) { f.Errors[getFEC] = syscall.EIO }, without("fec"), "[ethtool eth0 fec unreadable]", "[]"},
		{"FEC is not supported", func(f *ethtooltest.Interface) { delete(f.Replies, getFEC) }, without("fec"), "[]", "[]"},
		{"pause is malformed", func(f *ethtooltest.Interface) { f.Replies[getPause] = [][]byte{{2, 0, 5, 0}} }, without("pause"), "[ethtool eth0 pause malformed]", "[]"},
		{"two replies", func(f *ethtooltest.Interface) { f.Replies[getPause] = [][]byte{pauseReply(), pauseReply()} }, without("pause"), "[ethtool eth0 pause malformed]", "[]"},
		{"no reply", func(f *ethtooltest.Interface) { f.Replies[getLinkState] = nil }, without("state"), "[ethtool eth0 link state malformed]", "[]"},
		{"no statistics", func(f *ethtooltest.Interface) { f.Names = nil }, without("statistics"), "[]", "[]"},
		{"statistics fail", func(f *ethtooltest.Interface) { f.Errors[ethtool.ETHTOOL_GSTATS+256] = syscall.EIO }, without("statistics"), "[ethtool eth0 statistics unreadable]", "[]"},
		{"fewer values than names, always", func(f *ethtooltest.Interface) { f.Values = f.Values[:2] }, without("statistics"), "[ethtool eth0 statistics malformed]", "[]"},
		{"no privileges", func(f *ethtooltest.Interface) { f.Errors[getEEPROM] = syscall.EPERM }, without("module"), "[]", "[module]"},
		{"no module", func(f *ethtooltest.Interface) { f.Module = nil }, without("module"), "[]", "[]"},
		{"a page fails", func(f *ethtooltest.Interface) {
			delete(f.Module, module.Block{Address: module.A0, Page: 2, Upper: true})
		}, all, "[ethtool eth0 module page 02h unreadable]", "[]"},
		{"a module that is not ours", func(f *ethtooltest.Interface) { f.Module[module.Lower][0] = 0x7f }, without("module"), "[ethtool eth0 module malformed]", "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := &ethtooltest.Kernel{}
			bad := whole()
			tt.edit(bad)
			k.SetInterface("eth0", bad)
			k.SetInterface("eth1", whole())
			p := reader(k).Poll(at, []string{"eth0", "eth1", "gone"}, everything)
			if got := partsOf(&p.Interfaces[0]); got != tt.parts {
				t.Errorf("parts %q, want %q", got, tt.parts)
			}
			if got := fmt.Sprint(failures(p)); got != tt.errors {
				t.Errorf("errors %s, want %s", got, tt.errors)
			}
			if got := fmt.Sprint(p.Denied); got != tt.denied {
				t.Errorf("denied %s, want %s", got, tt.denied)
			}
			if got := partsOf(&p.Interfaces[1]); got != all {
				t.Errorf("the other interface gave %q", got)
			}
			if got := partsOf(&p.Interfaces[2]); got != "" || p.At != at {
				t.Errorf("a removed interface gave %q", got)
			}
		})
	}
}

// TestRule3WhatHangsIsGivenUp: and hides nothing else.
func TestRule3WhatHangsIsGivenUp(t *testing.T) {
	k := &ethtooltest.Kernel{}
	stuck := whole()
	release, entered := make(chan struct{}), make(chan struct{}, 8)
	stuck.Hang[getFEC] = func() { entered <- struct{}{}; <-release }
	k.SetInterface("eth0", stuck)
	k.SetInterface("eth1", whole())
	r := New(Options{Kernel: k, Patience: time.Second, ModulePatience: patience})
	for range 2 {
		p := r.Poll(at, []string{"eth0", "eth1"}, ReadCounters)
		if got := fmt.Sprint(failures(p)); got != "[ethtool eth0 fec hanging]" || p.Hanging != 1 {
			t.Fatalf("errors %s, %d hang", got, p.Hanging)
		}
		if a, b := partsOf(&p.Interfaces[0]), partsOf(&p.Interfaces[1]); a != "statistics pause modes state" || b != "statistics fec pause modes state" {
			t.Errorf("parts %q and %q", a, b)
		}
	}
	if n := len(entered); n != 1 {
		t.Errorf("what hangs was asked %d times", n)
	}
	close(release)
	for r.Poll(at, nil, 0).Hanging != 0 {
		runtime.Gosched() // until the goroutine that hung has returned
	}
	if p := r.Poll(at, []string{"eth0"}, ReadCounters); len(p.Errors) != 0 || p.Interfaces[0].FEC == nil {
		t.Errorf("it answers again: %v", failures(p))
	}
}

func ioctls(k *ethtooltest.Kernel) string {
	var out []string
	for _, s := range k.DrainRequests() {
		if s, ok := strings.CutPrefix(s, "eth0 ioctl "); ok {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

// TestRule4NamesAreReadOnce: 3 is the driver, 27 names, 29 values.
func TestRule4NamesAreReadOnce(t *testing.T) {
	k := &ethtooltest.Kernel{}
	f := whole()
	k.SetInterface("eth0", f)
	r := reader(k)
	look := func(want string, counters string) {
		t.Helper()
		p := r.Poll(at, []string{"eth0"}, ReadCounters)
		if got := ioctls(k); got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
		if got := fmt.Sprint(p.Interfaces[0].Statistics, failures(p)); got != counters+" []" {
			t.Errorf("%s, want %s", got, counters)
		}
	}
	look("3 27 29", "[{rx_packets 5} {link_down_events_phy 3}]") // queues and what occurs twice are left out
	look("3 29", "[{rx_packets 5} {link_down_events_phy 3}]")
	g := whole()
	g.Names, g.Values = append(g.Names, "tx_packets"), append(g.Values, 8)
	k.SetInterface("eth0", g)
	look("3 27 29", "[{rx_packets 5} {link_down_events_phy 3} {tx_packets 8}]")
	g = whole()
	g.Bus, g.Names[0] = "0000:5e:00.0", "other"
	k.SetInterface("eth0", g)
	look("3 27 29", "[{other 5} {link_down_events_phy 3} {rx_packets 2}]")
}

// TestRule5IdentityIsReadOnce.
func TestRule5IdentityIsReadOnce(t *testing.T) {
	k := &ethtooltest.Kernel{}
	plug := func(serial string, temperature byte) {
		f := whole()
		f.Module = cmis(serial, temperature)
		k.SetInterface("eth0", f)
	}
	r := reader(k)
	look := func(serial string, celsius float64, want string) {
		t.Helper()
		p := r.Poll(at, []string{"eth0"}, ReadModules)
		m := p.Interfaces[0].Module
		if len(p.Errors) != 0 || m == nil || m.Serial != serial || m.Temperature == nil || *m.Temperature != celsius {
			t.Fatalf("%+v, %v", m, failures(p))
		}
		if got := strings.ReplaceAll(strings.Join(k.DrainRequests(), "; "), "eth0 ", ""); got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
	}
	const (
		first  = "lower memory offset 0 length 128"
		serial = "; page 00h offset 166 length 16"
		rest   = "; page 00h offset 128 length 128; page 01h offset 128 length 128; page 02h offset 128 length 128; page 11h offset 128 length 128"
		lanes  = "; page 11h offset 128 length 128"
	)
	plug("S1", 40)
	look("S1", 40, first+rest)
	plug("S1", 41)
	look("S1", 41, first+serial+lanes)
	plug("S2", 30)
	look("S2", 30, first+serial+rest)
	k.SetInterface("eth0", nil)
	r.Poll(at, []string{"eth0"}, ReadModules)
	k.DrainRequests()
	plug("S2", 31)
	look("S2", 31, first+rest)
}

// TestTheOlderWay: a kernel that reads no module by page.
func TestTheOlderWay(t *testing.T) {
	diagnostics := append(sfp("OLD"), make([]byte, 256)...)
	diagnostics[92] = 1<<6 | 1<<5
	diagnostics[95] = 0
	for _, v := range diagnostics[64:95] {
		diagnostics[95] += v
	}
	diagnostics[256+96] = 33 // degrees
	qsfp := make([]byte, 640)
	qsfp[0], qsfp[1], qsfp[22] = 0x11, 7, 44
	copy(qsfp[196:], "QSFP-OLD        ")
	for _, v := range qsfp[192:223] {
		qsfp[223] += v
	}
	qsfp[128+3*128] = 70 // page 03h, offset 128: high alarm of 70 degrees
	for _, tt := range []struct {
		name   string
		memory []byte
		want   string
		errors string
	}{
		{"SFF-8079", sfp("PLAIN"), "PLAIN absent", "[]"},
		{"SFF-8472", diagnostics, "OLD 33", "[]"},
		{"SFF-8636", qsfp, "QSFP-OLD 44", "[]"},
		{"too short", make([]byte, 100), "none", "[ethtool eth0 module lower memory malformed]"},
		{"too long", make([]byte, 1<<20), "none", "[ethtool eth0 module lower memory malformed]"},
	} {
		k := &ethtooltest.Kernel{}
		k.SetInterface("eth0", &ethtooltest.Interface{Ioctl: tt.memory})
		r := reader(k)
		for range 2 {
			p := r.Poll(at, []string{"eth0"}, ReadModules)
			got := "none"
			if m := p.Interfaces[0].Module; m != nil {
				got = m.Serial + " " + optional(m.Temperature)
				if tt.name == "SFF-8636" && (m.Thresholds.Temperature == nil || m.Thresholds.Temperature.HighAlarm != 70) {
					t.Errorf("page 03h is elsewhere: %+v", m.Thresholds)
				}
			}
			if got != tt.want || fmt.Sprint(failures(p)) != tt.errors {
				t.Errorf("%s: %s %v, want %s %s", tt.name, got, failures(p), tt.want, tt.errors)
			}
		}
	}
}

func TestDefaultExclude(t *testing.T) {
	re := regexp.MustCompile(DefaultExclude)
	for name, want := range map[string]bool{"rx0_packets": true, "tx3_xdp_xmit": true, "ch12_events": true, "tx-3.tx_bytes": true, "rx_queue_2_drops": true, "queue_0_tx_cnt": true, "[7]: rx_ucast_packets": true,
		"ptp_ch_events": false, "rx_64_bytes_phy": false, "rx_prio0_bytes": false, "rx_err_lane_0_phy": false, "rx_packets": false, "rx_1024_to_1518_bytes_phy": false, "peer_ifindex": false, "rx_queue_0_xdp_packets": true,
		"vf_3_rx": true, "tx_queue_stopped": false, "rx_queue_drops": false} {
		if got := re.MatchString(name); got != want {
			t.Errorf("%s: left out %v, want %v", name, got, want)
		}
	}
}

// dialed returns a machine whose netlink the test answers.
func dialed(family bool, answer genltest.Func) *Machine {
	return &Machine{Dial: func() (*genetlink.Conn, error) {
		if !family {
			return genltest.Dial(func(genetlink.Message, netlink.Message) ([]genetlink.Message, error) {
				return nil, genltest.Error(int(syscall.ENOENT))
			}), nil
		}
		return genltest.Dial(genltest.ServeFamily(genetlink.Family{ID: 20, Version: 1, Name: familyName}, answer)), nil
	}}
}

// TestMachine: what the kernel's netlink says, message by message.
func TestMachine(t *testing.T) {
	for _, tt := range []struct {
		name   string
		family bool
		answer genltest.Func
		want   string
		is     error
	}{
		{"a reply", true, func(g genetlink.Message, n netlink.Message) ([]genetlink.Message, error) {
			if g.Header.Command != getPause || g.Header.Version != 1 || n.Header.Type != 20 || n.Header.Flags != netlink.Request || !bytes.Contains(g.Data, []byte("eth0\x00")) {
				return nil, fmt.Errorf("unexpected %+v", n)
			}
			return []genetlink.Message{{Header: g.Header, Data: []byte{1, 2}}}, nil
		}, "[[1 2]]", nil},
		{"no reply", true, func(genetlink.Message, netlink.Message) ([]genetlink.Message, error) { return nil, io.EOF }, "[]", nil},
		{"two parts", true, func(g genetlink.Message, _ netlink.Message) ([]genetlink.Message, error) {
			return []genetlink.Message{{Data: []byte{1}}, {Data: []byte{2}}}, nil
		}, "[[1] [2]]", nil},
		{"not supported", true, func(genetlink.Message, netlink.Message) ([]genetlink.Message, error) {
			return nil, genltest.Error(int(syscall.EOPNOTSUPP))
		}, "[]", syscall.EOPNOTSUPP},
		{"not allowed", true, func(genetlink.Message, netlink.Message) ([]genetlink.Message, error) {
			return nil, genltest.Error(int(syscall.EPERM))
		}, "[]", os.ErrPermission},
		{"a kernel without ethtool's family", false, nil, "[]", syscall.EOPNOTSUPP},
	} {
		m := dialed(tt.family, tt.answer)
		b, err := encodeRequest("eth0", 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time on the same connection
			got, err := m.SendRequest(getPause, b)
			if fmt.Sprint(got) != tt.want || !errors.Is(err, tt.is) {
				t.Errorf("%s: %v, %v, want %s, %v", tt.name, got, err, tt.want, tt.is)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzStatistics: whatever the driver says, nothing beyond the buffer is read.
func FuzzStatistics(f *testing.F) {
	f.Add(uint32(2), uint32(2), uint32(2), []byte("name"))
	f.Add(uint32(1<<31), uint32(2), uint32(2), []byte("name"))
	f.Add(uint32(2), uint32(1<<31), uint32(2), []byte("name"))
	f.Add(uint32(2), uint32(2), uint32(1<<31), []byte("name"))
	f.Fuzz(func(t *testing.T, drivers, strings, values uint32, text []byte) {
		k := rawKernel{drivers, func(data []byte) error {
			put := binary.NativeEndian.PutUint32
			switch binary.NativeEndian.Uint32(data) {
			case ethtool.ETHTOOL_GSTRINGS:
				put(data[8:], strings)
				copy(data[12:], text)
			case ethtool.ETHTOOL_GSTATS:
				put(data[4:], values)
			}
			return nil
		}}
		s, err := readStatistics(k, "eth0", nil)
		if err == nil && len(s.values) != len(s.names.all) || err != nil && !errors.Is(err, nichw.ErrMalformed) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

type rawKernel struct {
	statistics uint32
	ioctl      func(data []byte) error
}

func (rawKernel) SendRequest(uint8, []byte) ([][]byte, error) { return nil, syscall.EOPNOTSUPP }
func (rawKernel) ModuleEEPROM(string) ([]byte, error)         { return nil, syscall.EOPNOTSUPP }
func (k rawKernel) Ioctl(_ string, data []byte) error         { return k.ioctl(data) }
func (k rawKernel) DriverInfo(string) (ethtool.DrvInfo, error) {
	return ethtool.DrvInfo{NStats: k.statistics}, nil
}

// BenchmarkPoll polls 8 interfaces of 3000 statistics, of which 100 are not of queues, and a module each.
func BenchmarkPoll(b *testing.B) {
	k := &ethtooltest.Kernel{}
	var names []string
	for i := range 8 {
		f := whole()
		f.Names, f.Values = nil, make([]uint64, 3000)
		for j := range 3000 {
			n := fmt.Sprintf("rx%d_counter_%d", j/50, j%50)
			if j < 100 {
				n = fmt.Sprintf("port_counter_%d_phy", j)
			}
			f.Names = append(f.Names, n)
		}
		names = append(names, fmt.Sprintf("eth%d", i))
		k.SetInterface(names[i], f)
	}
	for _, parts := range []struct {
		name string
		Parts
	}{{"counters", ReadCounters}, {"modules", ReadModules}} {
		b.Run(parts.name, func(b *testing.B) {
			r := reader(k)
			b.ReportAllocs()
			for b.Loop() {
				r.Poll(at, names, parts.Parts)
				k.DrainRequests()
			}
		})
	}
}

// BenchmarkMachine measures the cost of requests to this machine's loopback.
func BenchmarkMachine(b *testing.B) {
	m := &Machine{}
	defer m.Close()
	r := reader(m)
	b.ReportAllocs()
	for b.Loop() {
		r.Poll(at, []string{"lo"}, ReadCounters)
	}
}
