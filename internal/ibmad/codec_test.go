package ibmad

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
)

// exchange is a request of a diagnostic program and ibsim's answer.
type exchange struct {
	command          string
	question, answer [simDataSize]byte
}

func captured(tb testing.TB) []exchange {
	tb.Helper()
	f, err := os.Open("testdata/capture.txt")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	var list []exchange
	var lines []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		if lines = append(lines, s.Text()); len(lines) < 3 {
			continue
		}
		e := exchange{command: lines[0]}
		for i, into := range [][]byte{e.question[:], e.answer[:]} {
			if n, err := hex.Decode(into, []byte(lines[i+1])); err != nil || n != simDataSize {
				tb.Fatalf("%s: %d octets, %v", lines[0], n, err)
			}
		}
		list, lines = append(list, e), nil
	}
	if len(list) != 19 {
		tb.Fatalf("%d exchanges, want 19", len(list))
	}
	return list
}

// The requests are those of other programs, octet for octet.
func TestQuestionsEqualOtherPrograms(t *testing.T) {
	for _, e := range captured(t) {
		var theirs, ours MAD
		simDecode(&e.question, &theirs)
		lid := LID(binary.BigEndian.Uint16(e.question[:]))
		r, err := DecodeRequest(&theirs, lid)
		if err != nil {
			t.Errorf("%s: %v", e.command, err)
			continue
		}
		if err := r.Encode(&ours, theirs.TransactionID(), 0); err != nil {
			t.Errorf("%s: %v", e.command, err)
		}
		if theirs != ours {
			t.Errorf("%s: %v:\n% x\n% x", e.command, r, theirs, ours)
		}
		var frame [simDataSize]byte
		simEncode(&frame, &ours, r.To)
		clear(e.question[20:24]) // padding, never written there
		if frame != e.question {
			t.Errorf("%s: %v:\n% x\n% x", e.command, r, e.question, frame)
		}
	}
}

// The decoded values are those that the programs printed.
func TestAnswersMeanWhatOtherProgramsSay(t *testing.T) {
	pma := func(a Attribute, values map[string]uint64) func(*Data) string {
		return func(d *Data) string {
			for _, c := range CountersOf(a) {
				if got := c.DecodeValue(d); got != values[c.Name] {
					return fmt.Sprintf("%v is %d, want %d", &c, got, values[c.Name])
				}
			}
			return ""
		}
	}
	type decoder interface{ Decode(*Data) }
	is := func(got decoder, want any) func(*Data) string {
		return func(d *Data) string {
			got.Decode(d)
			if reflect.DeepEqual(reflect.ValueOf(got).Elem().Interface(), want) {
				return ""
			}
			return fmt.Sprintf("%+v, want %+v", got, want)
		}
	}
	var table ForwardingBlock
	for i := range table {
		table[i] = NoRoute
	}
	copy(table[1:], []uint8{1, 0, 3, 3, 2, 3, 3})
	checks := map[string]func(*Data) string{
		"smpquery -D nodeinfo 0,1 NodeInfo/0": is(new(NodeInfo), NodeInfo{
			BaseVersion: 1, ClassVersion: 1, Type: NodeSwitch, Ports: 4, SystemGUID: 0x200000, GUID: 0x200000, PortGUID: 0x200000, Partitions: 8, Revision: 0xa1, LocalPort: 1}),
		"smpquery -D nodedesc 0,1,3 NodeDescription/0": is(new(NodeDescription), NodeDescription("spine0")),
		"smpquery -D portinfo 0,1,3 1 PortInfo/1": is(new(PortInfo), PortInfo{
			LocalPort: 1, State: PortActive, PhysState: PhysLinkUp, WidthEnabled: 2, WidthSupported: 31, WidthActive: 2, SpeedEnabled: 1, SpeedSupported: 7,
			SpeedActive: 1, NeighborMTU: 4, MTUCap: 4, VLCap: 4, OperationalVLs: 4, LinkDownDefault: 2, VLStallCount: 7, HeadOfQueueLife: 18, VLArbitrationCap: [2]uint8{8, 8}}),
		"smpquery switchinfo 2 SwitchInfo/0":        is(new(SwitchInfo), SwitchInfo{LinearCap: 30720, MulticastCap: 1024, LinearTop: 7, LifeTime: 18, PartitionEnforce: 64, FilterFlags: 3}),
		"smpquery sl2vl 2 1 SLtoVLMappingTable/513": is(new(SLtoVL), SLtoVL{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 7}),
		"perfquery 2 3 ClassPortInfo":               is(new(ClassPortInfo), ClassPortInfo{BaseVersion: 1, ClassVersion: 1, Capabilities: 0x1300, ResponseTime: 18}),
		"perfquery 2 3 PortCounters": pma(AttrPortCounters, map[string]uint64{
			"SymbolErrorCounter": 123, "LinkDownedCounter": 7, "LocalLinkIntegrityErrors": 5, "ExcessiveBufferOverrunErrors": 9, "VL15Dropped": 4660,
			"PortXmitData": 5472, "PortRcvData": 5472, "PortXmitPkts": 76, "PortRcvPkts": 76, "PortXmitWait": 77}),
		"perfquery -x 2 3 PortCountersExtended": pma(AttrPortCountersExtended, map[string]uint64{
			"PortXmitData": 81985529216487255, "PortRcvData": 5472, "PortXmitPkts": 76, "PortRcvPkts": 76}),
		"perfquery -E 2 3 PortRcvErrorDetails":    pma(AttrPortRcvErrorDetails, map[string]uint64{"PortLoopingErrors": 13}),
		"perfquery -D 2 3 PortXmitDiscardDetails": pma(AttrPortXmitDiscardDetails, map[string]uint64{"PortInactiveDiscards": 11}),
		"ibroute 2 LinearForwardingTable/0":       is(new(ForwardingBlock), table),
	}
	for _, e := range captured(t) {
		var q, m MAD
		simDecode(&e.question, &q)
		if simDecode(&e.answer, &m) || !m.IsResponse() || m.Status() != 0 {
			t.Errorf("%s: not an answer", e.command)
		}
		r, _ := DecodeRequest(&q, LID(binary.BigEndian.Uint16(e.question[:])))
		what, _, _ := strings.Cut(r.String(), " of ")
		if check := checks[e.command+" "+what]; check != nil {
			if wrong := check(m.Data()); wrong != "" {
				t.Errorf("%s %s: %s", e.command, what, wrong)
			}
			delete(checks, e.command+" "+what)
		}
	}
	for missing := range checks {
		t.Errorf("no exchange %q", missing)
	}
}

type payload interface {
	Decode(*Data)
	Encode(*Data)
}

func attributes() []payload {
	return []payload{
		new(NodeInfo), new(NodeDescription), new(SwitchInfo), new(PortInfo), new(PortInfoExtended),
		new(ForwardingBlock), new(SLtoVL), new(ClassPortInfo),
	}
}

// Every field keeps its place: any octets give the same fields again after Encode, and no two fields share a
// bit.
func TestAttributesRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, a := range attributes() {
		for range 1000 {
			var d, again Data
			for i := range d {
				d[i] = byte(random.Uint32())
			}
			roundTrip(t, a, &d, &again)
		}
	}
}

func roundTrip(t *testing.T, a payload, d, again *Data) {
	t.Helper()
	a.Decode(d)
	a.Encode(again)
	b := reflect.New(reflect.TypeOf(a).Elem()).Interface().(payload)
	b.Decode(again)
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("%+v became %+v", a, b)
	}
}

// Each bit that is read is written back to its place, and to no other. Their number follows from the widths in
// the tables.
func TestAttributesKeepEveryBit(t *testing.T) {
	for _, test := range []struct {
		a    payload
		bits int
	}{
		{new(NodeInfo), 40 * 8}, {new(SwitchInfo), 16*8 + 5 + 16}, {new(ForwardingBlock), 512}, {new(SLtoVL), 64}, {new(PortInfoExtended), 48},
		{new(ClassPortInfo), 8*8 + 16}, {new(MellanoxPortInfo), 3 * 8},
		// without InitTypeReply, enforcement and filter bits, flags of octets 51 and 52, MaxCreditHint, what octet 56 has
		// beside LinkSpeedExtActive2, and reserved bits
		{new(PortInfo), 512 - 3 - 4 - 4 - 3 - 3 - 16 - 5 - 3},
	} {
		kept := 0
		for bit := range 512 {
			var d, again Data
			d[bit/8] = 0x80 >> (bit % 8)
			test.a.Decode(&d)
			test.a.Encode(&again)
			if again == d {
				kept++
			} else if again != (Data{}) {
				t.Errorf("%T: bit %d moved: % x", test.a, bit, again[:64])
			}
		}
		if kept != test.bits {
			t.Errorf("%T keeps %d bits, want %d", test.a, kept, test.bits)
		}
	}
	// a value that is wider than its field does not reach the next one
	var d Data
	n := NodeInfo{LocalPort: 1, VendorID: 0xffffffff}
	n.Encode(&d)
	if n.Decode(&d); n.LocalPort != 1 || n.VendorID != 0xffffff {
		t.Errorf("%+v", n)
	}
}

// Counters of an attribute do not overlap, lie within it, and saturate.
func TestCountersDoNotOverlap(t *testing.T) {
	lists := [][]Counter{ReedSolomonCounters()}
	for _, a := range CounterAttributes() {
		if CountersOf(a) == nil {
			t.Errorf("%v has no counters", a)
		}
		lists = append(lists, CountersOf(a))
	}
	for _, list := range lists {
		var d Data
		names := map[string]bool{}
		for i, c := range list {
			if names[c.String()] {
				t.Errorf("%v is there twice", &c)
			}
			names[c.String()] = true
			c.EncodeValue(&d, 1<<63|uint64(i+1))
		}
		for i, c := range list {
			want := c.MaxValue()
			if c.Bits == 64 {
				want = 1<<63 | uint64(i+1)
			}
			if got := c.DecodeValue(&d); got != want {
				t.Errorf("%v is %#x, want %#x", &c, got, want)
			}
			c.EncodeValue(&d, 1)
			if got := c.DecodeValue(&d); got != 1 {
				t.Errorf("%v is %d, want 1", &c, got)
			}
			c.EncodeValue(&d, 0)
		}
		if d != (Data{}) {
			t.Errorf("%v leaves % x", list[0].Attribute, d)
		}
	}
}

func TestCountersSupported(t *testing.T) {
	for _, test := range []struct {
		info ClassPortInfo
		want map[string]bool
	}{
		{ClassPortInfo{}, map[string]bool{"PortCounters.PortXmitData": true, "PortCounters.PortXmitWait": false, "PortCountersExtended.PortXmitData": false}},
		{ClassPortInfo{Capabilities: PMExtendedWidthNoIETF}, map[string]bool{
			"PortCountersExtended.PortXmitData": true, "PortCountersExtended.PortUnicastXmitPkts": false, "PortCountersExtended.SymbolErrorCounter": false}},
		{ClassPortInfo{Capabilities: PMExtendedWidth | PMPortCountersXmitWait, Capabilities2: PM2AdditionalExtendedEr}, map[string]bool{
			"PortCounters.PortXmitWait": true, "PortCountersExtended.PortUnicastXmitPkts": true, "PortCountersExtended.SymbolErrorCounter": true}},
	} {
		for _, a := range CounterAttributes() {
			for _, c := range CountersOf(a) {
				if want, ok := test.want[c.String()]; ok && c.SupportedBy(&test.info) != want {
					t.Errorf("%+v: %v is %v", test.info, &c, !want)
				}
			}
		}
	}
}

func TestNodeDescriptionFromStrangers(t *testing.T) {
	for octets, want := range map[string]NodeDescription{
		"leaf1 mlx5_0\x00garbage": "leaf1 mlx5_0", "a\x1b[31mb": "a?[31mb", "\xff\xfe\u200e": "???", "  x \x00": "x", "": "",
		strings.Repeat("n", 100): NodeDescription(strings.Repeat("n", 64)),
	} {
		var d Data
		copy(d[:64], octets)
		var got NodeDescription
		if got.Decode(&d); got != want {
			t.Errorf("%q is %q, want %q", octets, got, want)
		}
	}
}

func TestRate(t *testing.T) {
	for _, test := range []struct {
		width, speed, extended uint8
		want                   uint64
		ok                     bool
	}{
		{2, 1, 0, 8e9, true}, {2, 4, 0, 32e9, true}, {2, 4, 2, 100e9, true}, {2, 4, 4, 200e9, true}, {2, 4, 8, 400e9, true}, {16, 4, 8, 200e9, true},
		{2, 4, 1, 54_545_454_544, true}, {1, 2, 0, 4e9, true}, {0, 4, 0, 0, false}, {2, 0, 0, 0, false}, {2, 4, 15, 0, false},
	} {
		p := PortInfo{WidthActive: test.width, SpeedActive: test.speed, SpeedExtActive: test.extended}
		got, ok := p.BitsPerSecond()
		if ok != test.ok || ok && got != test.want {
			t.Errorf("%+v: %d, %v", test, got, ok)
		}
	}
}

// TestSpeedsBeyondIBA decodes octets as other programs do. A PortInfo of rdma-core's own has 2 in all three fields of octet 56 if this is 0x52; Linux
// takes a port for XDR if the octet's upper half, with 6, is 2; and for FDR10 if octet 15 of Mellanox's attribute is odd.
func TestSpeedsBeyondIBA(t *testing.T) {
	for octet := range 256 {
		d := Data{31: 2, 35: 0x40, 56: uint8(octet), 57: 0x12, 62: 0x88}
		var p PortInfo
		p.Decode(&d)
		rate, ok := p.BitsPerSecond()
		linux := octet>>4&6 == 2
		if octet>>7 == 0 && (ok && rate == 800e9) != linux {
			t.Errorf("octet 56 is %#x: %d, %v; by Linux, XDR is %v", octet, rate, ok, linux)
		}
		if octet>>7 == 1 && ok {
			t.Errorf("octet 56 is %#x: a rate of %d is known", octet, rate)
		}
		if octet == 0x52 && p.SpeedExt2Active != 2 || p.LinkRoundTrip != 0x120000 || p.SpeedExtActive != 8 {
			t.Errorf("octet 56 is %#x: %+v", octet, p)
		}
		var again Data
		if p.Encode(&again); again[56] != uint8(octet)&0xe0 || again[57] != 0x12 {
			t.Errorf("octet 56 is %#x, and written as %#x", octet, again[56])
		}
	}
	d := Data{3: 1, 7: 2, 11: 4, 15: 1}
	var m MellanoxPortInfo
	if m.Decode(&d); m != (MellanoxPortInfo{SpeedSupported: 2, SpeedEnabled: 4, SpeedActive: MellanoxFDR10}) {
		t.Errorf("%+v", m)
	}
	for _, x := range []struct {
		vendor uint32
		device uint16
		want   bool
	}{{0x2c9, 0xc738, true}, {0x2c9, 0xc73b, true}, {0x2c9, 0xc73c, false}, {0x2c9, 0xcb20, true}, {0x2c9, 0xcf08, true}, {0x2c9, 0xd2f0, false}, {0x2c9, 0x1002, false},
		{0x2c9, 0x1003, true}, {0x2c9, 0x1017, true}, {0x2c9, 0x1018, false}, {0x119f, 0x1b02, true}, {0x119f, 0x1003, false}, {0x2c9, 0x1b02, false}} {
		if got := HasMellanoxPortInfo(x.vendor, x.device); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}

func TestFECModes(t *testing.T) {
	want := map[FECMode]bool{FECNone: false, FECFire: false, FECReedSolomon: true, FECReedSolomonLowLatency: true, FECReedSolomon2: true, 5: false}
	for m, rs := range want {
		if m.ReedSolomon() != rs {
			t.Errorf("mode %d: Reed-Solomon is %v", m, !rs)
		}
	}
}

func TestPathsAreBounded(t *testing.T) {
	var p Path
	var err error
	for i := range MaxHops {
		if p, err = p.AppendHop(uint8(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.AppendHop(1); err != ErrTooLong {
		t.Errorf("hop %d: %v, want %v", MaxHops+1, err, ErrTooLong)
	}
	var m MAD
	r := GetNodeInfo(AlongRoute(p))
	if err := r.Encode(&m, 1, 2); err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeRequest(&m, 0); err != nil || got != r {
		t.Errorf("%v, %v", got, err)
	}
	m[7] = 64
	if _, err := DecodeRequest(&m, 0); err == nil || !strings.Contains(err.Error(), "64 hops") {
		t.Errorf("64 hops: %v", err)
	}
}

// The key is in no text, however it is printed.
func TestMKeyIsNeverPrinted(t *testing.T) {
	const key MKey = 0xfeedfacecafe
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", Config{MKey: key}, "key", key, "port", PortInfo{MKey: key})
	for _, text := range []string{
		fmt.Sprint(key), fmt.Sprintf("%v %+v %#v %x %d %s %q", key, key, key, key, key, key, key),
		fmt.Sprintf("%v %+v %#v", Config{MKey: key}, Config{MKey: key}, Config{MKey: key}), log.String(),
	} {
		for _, secret := range []string{"feedfacecafe", fmt.Sprint(uint64(key))} {
			if strings.Contains(strings.ToLower(text), secret) {
				t.Errorf("%q shows the key", text)
			}
		}
	}
	var m MAD
	r := GetNodeInfo(Address{})
	if err := r.Encode(&m, 1, key); err != nil || m.MKey() != key {
		t.Errorf("%v, %v", m.MKey(), err)
	}
	r = GetClassPortInfo(1)
	if err := r.Encode(&m, 1, key); err != nil || m.MKey() != 0 {
		t.Errorf("performance management carries the key: %v", err)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	for _, e := range captured(f) {
		f.Add(e.question[simDataMAD:], uint16(2))
	}
	f.Fuzz(func(t *testing.T, b []byte, lid uint16) {
		var m, again MAD
		copy(m[:], b)
		r, err := DecodeRequest(&m, LID(lid))
		if err != nil {
			return
		}
		if r.Attribute.isPerformance() && r.To.LID == 0 {
			return
		}
		if err := r.Encode(&again, m.TransactionID(), m.MKey()); err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeRequest(&again, r.To.LID); err != nil || got != r {
			t.Fatalf("%v became %v, %v", r, got, err)
		}
		_ = fmt.Sprint(r, m.Status(), m.IsResponse())
	})
}

func FuzzAttributes(f *testing.F) {
	for _, e := range captured(f) {
		f.Add(e.answer[simDataMAD+dataOffset:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var d, again Data
		copy(d[:], b)
		for _, a := range attributes() {
			again = Data{}
			roundTrip(t, a, &d, &again)
			_ = fmt.Sprintf("%+v", a)
		}
		var p PortInfo
		p.Decode(&d)
		p.BitsPerSecond()
		for _, a := range CounterAttributes() {
			for _, c := range append(CountersOf(a), ReedSolomonCounters()...) {
				if v := c.DecodeValue(&d); v > c.MaxValue() {
					t.Fatalf("%v is %d", &c, v)
				}
			}
		}
	})
}

// FuzzAnswers passes any octets to the client while a request is on its way.
func FuzzAnswers(f *testing.F) {
	for _, e := range captured(f) {
		f.Add(e.answer[simDataMAD:], false)
	}
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, b []byte, lost bool) {
		c := &Client{slots: make([]slot, 4), config: Config{MaxInFlight: 4, PerDestination: 1}, destinations: map[Address]*destination{}}
		d := &destination{inFlight: 1}
		bt := &batch{wake: make(chan struct{}, 1)}
		c.slots[0] = slot{call: &call{Result: Result{Attempts: 1}, batch: bt}, destination: d}
		var m MAD
		copy(m[:], b)
		c.handleDatagram(&m, lost)
		if done := c.slots[0].call == nil; done != (len(bt.done) == 1) || done != (len(c.free) == 1) {
			t.Fatalf("done %v, %d results, %d free", done, len(bt.done), len(c.free))
		}
	})
}
