package decode

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api/path"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/graylink/graylink/internal/gnmi/preset"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// lines is a sink that writes down what it receives.
type lines struct{ all []string }

func (s *lines) AddSample(l *preset.Leaf, _ []byte, c *preset.Captures, v float64, text string, at int64) {
	if l.Family.Kind != preset.Info && l.Family.Kind != preset.Relation {
		text = fmt.Sprintf("%g", v)
	}
	s.all = append(s.all, fmt.Sprintf("%s{%s} %s @%d", strings.TrimPrefix(l.Family.Name, "fabric_switch_"), strings.Join(l.LabelValues(c), ","), text, now.UnixNano()-at))
}

func (s *lines) DeleteBeneath(n *preset.Node, c *preset.Captures) {
	count := 0
	n.WalkLeaves(func(*preset.Leaf) { count++ })
	var list []string
	for _, x := range c {
		if x != "" {
			list = append(list, x)
		}
	}
	s.all = append(s.all, fmt.Sprintf("delete %d of %s", count, strings.Join(list, ",")))
}

func decoder(t testing.TB, vendor string) (*Decoder, *lines) {
	t.Helper()
	tree, err := preset.CompileRules(preset.ByName(vendor).Rules)
	if err != nil {
		t.Fatal(err)
	}
	s := &lines{}
	return New(tree, s), s
}

func parse(t testing.TB, s string) *gnmi.Path {
	t.Helper()
	p, err := path.ParsePath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func uval(v uint64) *gnmi.TypedValue {
	return &gnmi.TypedValue{Value: &gnmi.TypedValue_UintVal{UintVal: v}}
}

func sval(v string) *gnmi.TypedValue {
	return &gnmi.TypedValue{Value: &gnmi.TypedValue_StringVal{StringVal: v}}
}

func jval(v string) *gnmi.TypedValue {
	return &gnmi.TypedValue{Value: &gnmi.TypedValue_JsonIetfVal{JsonIetfVal: []byte(v)}}
}

const mtu = "/interfaces/interface[name=e1]/state/mtu"

// TestValues checks that every kind of a typed value becomes a number or is counted.
func TestValues(t *testing.T) {
	list := func(v ...*gnmi.TypedValue) *gnmi.TypedValue {
		return &gnmi.TypedValue{Value: &gnmi.TypedValue_LeaflistVal{LeaflistVal: &gnmi.ScalarArray{Element: v}}}
	}
	decimal := func(digits int64, precision uint32) *gnmi.TypedValue {
		return &gnmi.TypedValue{Value: &gnmi.TypedValue_DecimalVal{DecimalVal: &gnmi.Decimal64{Digits: digits, Precision: precision}}} //nolint:staticcheck // must be read
	}
	for name, c := range map[string]struct {
		v    *gnmi.TypedValue
		want string // empty means no sample
		but  Counts // the count of the reason
	}{
		"uint":           {uval(9000), "9000", Counts{}},
		"int":            {&gnmi.TypedValue{Value: &gnmi.TypedValue_IntVal{IntVal: -3}}, "-3", Counts{}},
		"double":         {&gnmi.TypedValue{Value: &gnmi.TypedValue_DoubleVal{DoubleVal: 1.5}}, "1.5", Counts{}},
		"nan":            {&gnmi.TypedValue{Value: &gnmi.TypedValue_DoubleVal{DoubleVal: math.NaN()}}, "", Counts{BadValues: 1}},
		"float":          {&gnmi.TypedValue{Value: &gnmi.TypedValue_FloatVal{FloatVal: 0.5}}, "0.5", Counts{}}, //nolint:staticcheck // must be read
		"decimal":        {decimal(-250, 2), "-2.5", Counts{}},
		"decimal deep":   {decimal(1, 200), "", Counts{BadValues: 1}},
		"decimal none":   {&gnmi.TypedValue{Value: &gnmi.TypedValue_DecimalVal{}}, "0", Counts{}}, //nolint:staticcheck // an empty Decimal64 on the wire is zero
		"text number":    {sval("9000"), "9000", Counts{}},
		"text":           {sval("many"), "", Counts{BadValues: 1}},
		"text empty":     {sval(""), "", Counts{Absent: 1}},
		"text n/a":       {sval("N/A"), "", Counts{Absent: 1}},
		"ascii":          {&gnmi.TypedValue{Value: &gnmi.TypedValue_AsciiVal{AsciiVal: "7"}}, "7", Counts{}},
		"bool":           {&gnmi.TypedValue{Value: &gnmi.TypedValue_BoolVal{BoolVal: true}}, "", Counts{BadValues: 1}},
		"bytes":          {&gnmi.TypedValue{Value: &gnmi.TypedValue_BytesVal{BytesVal: []byte{0x3f, 0, 0, 0}}}, "0.5", Counts{}},
		"bytes other":    {&gnmi.TypedValue{Value: &gnmi.TypedValue_BytesVal{BytesVal: []byte{1}}}, "", Counts{BadValues: 1}},
		"list of one":    {list(uval(4)), "4", Counts{}},
		"list":           {list(uval(4), uval(5)), "", Counts{BadValues: 1}},
		"list nested":    {list(list(uval(4))), "", Counts{BadValues: 1}},
		"any":            {&gnmi.TypedValue{Value: &gnmi.TypedValue_AnyVal{AnyVal: &anypb.Any{}}}, "", Counts{BadValues: 1}},
		"proto":          {&gnmi.TypedValue{Value: &gnmi.TypedValue_ProtoBytes{ProtoBytes: []byte{1}}}, "", Counts{BadValues: 1}},
		"none":           {&gnmi.TypedValue{}, "", Counts{BadValues: 1}},
		"json":           {&gnmi.TypedValue{Value: &gnmi.TypedValue_JsonVal{JsonVal: []byte("9000")}}, "9000", Counts{}},
		"json text":      {jval(`"9000"`), "9000", Counts{}},
		"json float":     {jval(`3E-10`), "3e-10", Counts{}},
		"json null":      {jval(`null`), "", Counts{Absent: 1}},
		"json list":      {jval(`["12"]`), "12", Counts{}},
		"json half":      {jval(`{"a":`), "", Counts{Unknown: 1, BadJSON: 1}},
		"json none":      {jval(``), "", Counts{BadJSON: 1}},
		"json half text": {jval(`"90`), "", Counts{BadJSON: 1}},
		"json object":    {jval(`{"a":1}`), "", Counts{Unknown: 1}},
	} {
		d, s := decoder(t, "openconfig")
		d.DecodeNotification(&gnmi.Notification{Timestamp: now.UnixNano() - 5, Update: []*gnmi.Update{{Path: parse(t, mtu), Val: c.v}}}, now)
		var want []string
		if c.but.Updates = 1; c.want != "" {
			want = []string{"port_mtu_bytes{e1} " + c.want + " @5"}
			c.but.Samples = 1
		}
		if !slices.Equal(s.all, want) || d.Counts != c.but {
			t.Errorf("%s: %v, want %v; %+v, want %+v", name, s.all, want, d.Counts, c.but)
		}
	}
}

// TestNotifications covers prefixes, origins, modules, deprecated paths, trees, deletes, atomic notifications
// and times.
func TestNotifications(t *testing.T) {
	up := func(p string, v *gnmi.TypedValue) *gnmi.Update { return &gnmi.Update{Path: parse(t, p), Val: v} }
	element := func(e ...string) *gnmi.Path { return &gnmi.Path{Element: e} } //nolint:staticcheck // must be read
	for name, c := range map[string]struct {
		vendor string
		n      *gnmi.Notification
		want   []string
	}{
		"prefix": {"cumulus", &gnmi.Notification{
			Prefix: &gnmi.Path{Origin: "openconfig", Target: "sw9", Elem: parse(t, "/qos/interfaces/interface[interface-id=swp1]").Elem},
			Update: []*gnmi.Update{
				up("switch-priority[priority=3]/state/counters/in-pause-pkts", uval(5)),
				up("switch-priority[priority=3]/state/in-pause-duration", uval(2500000)),
				up("output/queues/queue[name=4]/state/max-queue-len", uval(77)),
			}},
			[]string{"port_pfc_receive_frames_total{swp1,3} 5 @0", "port_pfc_receive_pause_seconds_total{swp1,3} 2.5 @0", "port_queue_watermark_bytes{swp1,4,since_clear} 77 @0"}},
		"modules": {"srlinux", &gnmi.Notification{Update: []*gnmi.Update{
			up("/srl_nokia-interfaces:interface[name=ethernet-1/1]/oper-state", sval("up")),
			up("/interface[name=ethernet-1/2]", jval(`{"srl_nokia-if:statistics":{"in-octets":"18446744073709551615","x":{"y":1}},"oper-state":"down"}`))}},
			[]string{"port_oper_up{ethernet-1/1} 1 @0", "port_receive_bytes_total{ethernet-1/2} 1.8446744073709552e+19 @0", "port_oper_up{ethernet-1/2} 0 @0"}},
		"lists": {"openconfig", &gnmi.Notification{Update: []*gnmi.Update{up("/openconfig-interfaces:interfaces", jval(
			`{"openconfig-interfaces:interface":[{"state":{"mtu":9216,"oper-status":"UNKNOWN"},"name":"e1"},{"name":"e2","state":{"mtu":1500}},{"state":{"mtu":1}}]}`))}},
			[]string{"port_mtu_bytes{e1} 9216 @0", "port_mtu_bytes{e2} 1500 @0"}},
		"number keys": {"openconfig", &gnmi.Notification{Update: []*gnmi.Update{up("/components/component[name=xcvr1]/transceiver/physical-channels",
			jval(`{"channel":[{"index":2,"state":{"input-power":{"instant":"-10.00"}}}]}`))}},
			[]string{"port_module_receive_power_watts{xcvr1,2} 0.0001 @0"}},
		"deprecated, keys as elements": {"openconfig", &gnmi.Notification{Prefix: element("interfaces"), Update: []*gnmi.Update{{Path: element("interface", "e1", "state", "mtu"), Val: uval(1)}}},
			[]string{"port_mtu_bytes{e1} 1 @0"}},
		"deprecated, keys in brackets": {"openconfig", &gnmi.Notification{Update: []*gnmi.Update{{Path: element("", "interfaces", "interface[name=e1]", "state", "mtu"), Val: uval(1)}}},
			[]string{"port_mtu_bytes{e1} 1 @0"}},
		"deprecated value": {"openconfig", &gnmi.Notification{Update: []*gnmi.Update{{Path: parse(t, mtu), Value: &gnmi.Value{Type: gnmi.Encoding_JSON, Value: []byte("7")}}}}, //nolint:staticcheck // must be read
			[]string{"port_mtu_bytes{e1} 7 @0"}},
		"sonic": {"sonic", &gnmi.Notification{Prefix: &gnmi.Path{Target: "COUNTERS_DB"}, Update: []*gnmi.Update{
			up("COUNTERS/Ethernet*", jval(`{"Ethernet0":{"SAI_PORT_STAT_PFC_3_RX_PKTS":"12","SAI_PORT_STAT_X":"1"}}`)),
			up("COUNTERS/Ethernet*/Queues", jval(`{"etp9:4":{"SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS":"9"},"etp9:4:periodic":{"SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES":"4096"}}`))}},
			[]string{"port_pfc_receive_frames_total{Ethernet0,3} 12 @0", "port_queue_ecn_marked_packets_total{etp9,4} 9 @0", "port_queue_watermark_bytes{etp9,4,periodic} 4096 @0"}},
		"deletes first": {"openconfig", &gnmi.Notification{
			Delete: []*gnmi.Path{parse(t, "/interfaces/interface[name=e1]/state/counters"), parse(t, "/interfaces/interface[name=*]/state/mtu"), parse(t, "/unknown")},
			Update: []*gnmi.Update{up(mtu, uval(1))}},
			[]string{"delete 9 of e1", "delete 1 of ", "port_mtu_bytes{e1} 1 @0"}},
		"atomic": {"openconfig", &gnmi.Notification{Atomic: true, Prefix: parse(t, "/lldp/interfaces/interface[name=e1]/neighbors/neighbor[id=7]"),
			Update: []*gnmi.Update{up("state/system-name", sval("leaf2"))}},
			[]string{"delete 3 of e1,7", "port_neighbor_info{e1,,,} leaf2 @0"}},
		"no key":     {"openconfig", &gnmi.Notification{Update: []*gnmi.Update{up("/interfaces/interface/state/mtu", uval(1))}}, nil},
		"no path":    {"openconfig", &gnmi.Notification{Update: []*gnmi.Update{{Val: uval(1)}, {}, nil}}, nil},
		"negative":   {"openconfig", &gnmi.Notification{Update: []*gnmi.Update{up("/interfaces/interface[name=e1]/state/counters/in-octets", sval("-1"))}}, nil},
		"other tree": {"openconfig", &gnmi.Notification{Prefix: parse(t, "/a"), Delete: []*gnmi.Path{parse(t, "b")}, Update: []*gnmi.Update{up("interfaces", uval(1))}}, nil},
	} {
		d, s := decoder(t, c.vendor)
		c.n.Timestamp = now.UnixNano()
		d.DecodeNotification(c.n, now)
		if !slices.Equal(s.all, c.want) {
			t.Errorf("%s: %q\nwant %q", name, s.all, c.want)
		}
	}
}

func TestTimes(t *testing.T) {
	for at, want := range map[int64]string{
		now.Add(-time.Hour).UnixNano():     fmt.Sprint(time.Hour.Nanoseconds()),
		0:                                  "0",
		-5:                                 "0",
		now.Add(48 * time.Hour).UnixNano(): "0",
		math.MinInt64:                      "0",
		math.MaxInt64:                      "0",
	} {
		d, s := decoder(t, "openconfig")
		d.DecodeNotification(&gnmi.Notification{Timestamp: at, Update: []*gnmi.Update{{Path: parse(t, mtu), Val: uval(1)}}}, now)
		if len(s.all) != 1 || s.all[0] != "port_mtu_bytes{e1} 1 @"+want || (d.Counts.BadTimes == 1) != (want == "0") {
			t.Errorf("%d: %q, %+v", at, s.all, d.Counts)
		}
	}
}

// FuzzNotification checks that no bytes of a switch end the receiver, whichever preset reads them, and that no
// sample lacks its labels.
func FuzzNotification(f *testing.F) {
	seed := func(n *gnmi.Notification) {
		b, err := proto.Marshal(n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	seed(&gnmi.Notification{Timestamp: now.UnixNano(), Update: []*gnmi.Update{{Path: parse(f, mtu), Val: uval(1)}}})
	seed(&gnmi.Notification{Update: []*gnmi.Update{{Path: parse(f, "/interfaces"), Val: jval(`{"interface":[{"name":"e1","state":{"mtu":1}}]}`)}}})
	seed(&gnmi.Notification{Atomic: true, Delete: []*gnmi.Path{{Element: []string{"interfaces", "interface", "e1"}}}, //nolint:staticcheck // must be read
		Update: []*gnmi.Update{{Path: parse(f, "COUNTERS/Ethernet*"), Val: jval(`{"Ethernet0":{"SAI_PORT_STAT_PFC_3_RX_PKTS":"12"}}`)}}})
	var trees []*preset.Tree
	for _, p := range preset.All {
		tree, err := preset.CompileRules(p.Rules)
		if err != nil {
			f.Fatal(err)
		}
		trees = append(trees, tree)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var n gnmi.Notification
		if proto.Unmarshal(b, &n) != nil {
			return
		}
		for _, tree := range trees {
			New(tree, checked{t}).DecodeNotification(&n, now)
		}
	})
}

// FuzzJSON checks the same for JSON values.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"interface":[{"name":"e1","state":{"mtu":1}}]}`, `[[[[]]]]`, `{"interface":[{"name":{"a":1}}]}`, `"\u00`, `-`, `1e999`, `{"Ethernet0":{"SAI_PORT_STAT_PFC_3_RX_PKTS":"12"}}`} {
		f.Add([]byte(s))
	}
	oc, err := preset.CompileRules(preset.ByName("openconfig").Rules)
	if err != nil {
		f.Fatal(err)
	}
	sonic, err := preset.CompileRules(preset.ByName("sonic").Rules)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v := &gnmi.TypedValue{Value: &gnmi.TypedValue_JsonIetfVal{JsonIetfVal: b}}
		New(oc, checked{t}).DecodeNotification(&gnmi.Notification{Update: []*gnmi.Update{{Path: parse(t, "/interfaces"), Val: v}}}, now)
		New(sonic, checked{t}).DecodeNotification(&gnmi.Notification{Update: []*gnmi.Update{{Path: parse(t, "COUNTERS/Ethernet*"), Val: v}}}, now)
	})
}

// checked is a sink that verifies what it receives.
type checked struct{ t *testing.T }

func (s checked) AddSample(l *preset.Leaf, _ []byte, c *preset.Captures, v float64, text string, at int64) {
	if math.IsNaN(v) || math.IsInf(v, 0) || at <= 0 || l.Family.Kind == preset.Counter && v < 0 {
		s.t.Errorf("%s: %v at %d", l.Rule.Path, v, at)
	}
	for i, x := range l.LabelValues(c) {
		if x == "" && l.Family.Kind != preset.Info {
			s.t.Errorf("%s: label %s is empty", l.Rule.Path, l.Family.Labels[i])
		}
	}
}

func (checked) DeleteBeneath(n *preset.Node, _ *preset.Captures) { n.WalkLeaves(func(*preset.Leaf) {}) }
