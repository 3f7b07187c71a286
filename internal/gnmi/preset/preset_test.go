package preset

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// TestFamilies checks that every family has a type and a help text, and a name that states its unit and kind.
func TestFamilies(t *testing.T) {
	for i, f := range Families {
		if i > 0 && Families[i-1].Name >= f.Name {
			t.Errorf("%s is there twice, or out of order", f.Name)
		}
		if f.Kind.String() == "untyped" || f.Help == "" {
			t.Errorf("%s: kind %v, help %q", f.Name, f.Kind, f.Help)
		}
		if f.Kind == Relation {
			continue
		}
		if (f.Kind == Counter) != strings.HasSuffix(f.Name, "_total") || (f.Kind == Info) != strings.HasSuffix(f.Name, "_info") {
			t.Errorf("%s is a %v", f.Name, f.Kind)
		}
		if port := strings.HasPrefix(f.Name, "fabric_switch_port_") || strings.Contains(f.Name, "_session"); port != slices.Contains(f.Labels, "port") || !metricName.MatchString(f.Name) {
			t.Errorf("%s has labels %v", f.Name, f.Labels)
		}
	}
}

// TestPresets checks that every path of a preset has a type and a source, compiles, and is subscribed to.
func TestPresets(t *testing.T) {
	for _, p := range All {
		if ByName(p.Name) != p || len(p.Encodings) == 0 || p.Help == "" {
			t.Errorf("%s: encodings %v, help %q", p.Name, p.Encodings, p.Help)
		}
		if _, err := CompileRules(p.Rules); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		for _, r := range p.Rules {
			f := r.metricFamily()
			if f == nil || f.Kind < Counter || f.Kind > Relation || r.Source == "" {
				t.Errorf("%s: %s is %q, by %q", p.Name, r.Path, r.Metric, r.Source)
				continue
			}
			if _, err := r.RequestPath(); err != nil {
				t.Errorf("%s: %s: %v", p.Name, r.Path, err)
			}
			if strings.HasSuffix(f.Name, "_watts") != strings.HasSuffix(r.Convert, "dbm") || strings.HasSuffix(f.Name, "_up") != (r.Convert == "up") {
				t.Errorf("%s: %s is converted by %q to %s", p.Name, r.Path, r.Convert, f.Name)
			}
		}
		for _, a := range p.Subscriptions {
			if !slices.ContainsFunc(p.Rules, func(r Rule) bool {
				return r.Target == a.Target && strings.HasPrefix(r.Path, a.Path+"/") && r.OnChange == a.OnChange
			}) {
				t.Errorf("%s: nothing is beneath %s", p.Name, a.Path)
			}
		}
		for _, u := range p.Unconfirmed {
			if LookupFamily(u.Metric) == nil || u.Why == "" {
				t.Errorf("%s: unconfirmed %s: %s, %q", p.Name, u.Path, u.Metric, u.Why)
			}
			if slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Path == u.Path }) {
				t.Errorf("%s: %s is unconfirmed and asked for", p.Name, u.Path)
			}
		}
	}
}

// TestRoutes checks that the rules of forwarding tables compile beside those of their presets, have a source,
// and do not include prefixes.
func TestRoutes(t *testing.T) {
	for _, name := range WithRoutes {
		if _, err := CompileRules(append(slices.Clone(ByName(name).Rules), RouteRules()...)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, r := range RouteRules() {
		if r.metricFamily() == nil || r.Source == "" || strings.Contains(r.Path, "entry[") || r.OnChange != r.metricFamily().Kind.IsText() {
			t.Errorf("%+v", r)
		}
	}
}

// TestSessions checks that the rules of sessions compile beside those of their presets and of forwarding tables, have a
// source, and leave room for names of users.
func TestSessions(t *testing.T) {
	for _, name := range WithSessions {
		rules := append(slices.Clone(ByName(name).Rules), SessionRules(name)...)
		if slices.Contains(WithRoutes, name) {
			rules = append(rules, RouteRules()...)
		}
		tree, err := CompileRules(rules)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(tree.names) > MaxCaptures-1 {
			t.Errorf("%s: %d names in braces", name, len(tree.names))
		}
		for _, r := range SessionRules(name) {
			if SessionPartOf(r.ownFamily) == NoSessionPart || r.Source == "" {
				t.Errorf("%+v", r)
			}
		}
		for _, a := range SessionSubscriptions(name) {
			if !slices.ContainsFunc(SessionRules(name), func(r Rule) bool {
				return r.Target == a.Target && strings.HasPrefix(r.Path, a.Path+"/") && r.OnChange == a.OnChange
			}) {
				t.Errorf("%s: nothing is beneath %s", name, a.Path)
			}
		}
	}
	for _, f := range Families {
		if SessionPartOf(f) != NoSessionPart {
			t.Errorf("%s is a part of sessions", f.Name)
		}
	}
}

func TestConversions(t *testing.T) {
	for _, c := range []struct {
		name string
		text string
		num  float64
		want float64
		ok   bool
	}{
		{"", "", 7, 7, true},
		{"", "12", 0, 12, true},
		{"", " 12 ", 0, 12, true},
		{"", "N/A", 0, 0, false},
		{"", "", math.NaN(), 0, false},
		{"", "", math.Inf(1), 0, false},
		{"", "inf", 0, 0, false},
		{"dbm", "", 0, 1e-3, true},
		{"dbm", "", -10, 1e-4, true},
		{"dbm", "-2.5", 0, 1e-3 * math.Pow(10, -0.25), true},
		{"dbm", "-inf", 0, 0, true},
		{"dbm", "", 1000, 0, false},
		{"centidbm", "", -250, 1e-3 * math.Pow(10, -0.25), true},
		{"centidbm", "-1000", 0, 1e-4, true},
		{"microseconds", "", 2500000, 2.5, true},
		{"milliamperes", "", 6.75, 6.75e-3, true},
		{"percent", "", 25, 0.25, true},
		{"megabits", "400000", 0, 5e10, true},
		{"speed", "SPEED_400GB", 0, 5e10, true},
		{"speed", "openconfig-if-ethernet:SPEED_2500MB", 0, 2.5e9 / 8, true},
		{"speed", "400G", 0, 5e10, true},
		{"speed", "1T", 0, 1.25e11, true},
		{"speed", "SPEED_UNKNOWN", 0, 0, false},
		{"speed", "G", 0, 0, false},
		{"speed", "", 400, 0, false},
		{"up", "UP", 0, 1, true},
		{"up", "up", 0, 1, true},
		{"up", "openconfig-interfaces:DOWN", 0, 0, true},
		{"up", "enable", 0, 1, true},
		{"up", "LOWER_LAYER_DOWN", 0, 0, true},
		{"up", "UNKNOWN", 0, 0, false},
		{"up", "", 1, 0, false},
		{"established", "ESTABLISHED", 0, 1, true},
		{"established", "Established", 0, 1, true},
		{"established", "OpenSent", 0, 0, true},
		{"established", "Clearing", 0, 0, false},
		{"established", "", 6, 0, false},
		{"bfd", "UP", 0, 1, true},
		{"bfd", "Up", 0, 1, true},
		{"bfd", "INIT", 0, 0, true},
		{"bfd", "ADMIN_DOWN", 0, 0, true},
		{"bfd", "UNKNOWN", 0, 0, false},
		{"ber", "3E-10", 0, 3e-10, true},
		{"ber", "", 1.5, 0, false},
		{"ber", "", -1e-9, 0, false},
	} {
		got, ok := Conversions[c.name].ConvertValue(c.num, c.text, c.text != "")
		if ok != c.ok || ok && math.Abs(got-c.want) > 1e-12*math.Abs(c.want) {
			t.Errorf("%q of %q or %v is %v, %v; want %v, %v", c.name, c.text, c.num, got, ok, c.want, c.ok)
		}
	}
}

func TestUserPaths(t *testing.T) {
	good := UserPath{Path: "/interfaces/interface[name={port}]/state/foo", Metric: "fabric_switch_port_foo_bytes_total", Type: "counter", Unit: "By"}
	r, err := good.ToRule()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := CompileRules(append(ByName("cumulus").Rules, r))
	if err != nil {
		t.Fatal(err)
	}
	if f := tree.Leaves[len(tree.Leaves)-1].Family; f.Kind != Counter || f.Unit() != "By" || !slices.Equal(f.Labels, []string{"port"}) {
		t.Errorf("%+v", f)
	}
	for want, change := range map[string]func(*UserPath){
		`path "": path: a gNMI path is expected`:                            func(u *UserPath) { u.Path = "" },
		`no gNMI path`:                                                      func(u *UserPath) { u.Path = "/a[b" },
		`{port} is there twice`:                                             func(u *UserPath) { u.Path = "/a[b={port}]/c[d={port}]" },
		`{-} is not the name of a label`:                                    func(u *UserPath) { u.Path = "/a[b={-}]" },
		`metric: a Prometheus name is expected, not "a-b"`:                  func(u *UserPath) { u.Metric = "a-b" },
		`metric: a Prometheus name is expected, not ""`:                     func(u *UserPath) { u.Metric = "" },
		`type: counter or gauge is expected, not ""`:                        func(u *UserPath) { u.Type = "" },
		`the name of a counter ends in _total`:                              func(u *UserPath) { u.Metric = "foo_bytes" },
		`only the name of a counter ends in _total`:                         func(u *UserPath) { u.Type = "gauge" },
		`unit: one of By/s, s, By, 1, W, A, V, Cel is expected`:             func(u *UserPath) { u.Unit = "" },
		`has "By", the unit is "s"`:                                         func(u *UserPath) { u.Unit = "s" },
		`has none, the unit is "s"; names end in _seconds`:                  func(u *UserPath) { u.Metric, u.Unit = "foo_total", "s" },
		`convert: "x" is not one of ber, bfd, centidbm`:                     func(u *UserPath) { u.Convert = "x" },
		`has the labels [port priority]; the path's keys in braces are [po`: func(u *UserPath) { u.Metric, u.Unit = "fabric_switch_port_pfc_receive_frames_total", "none" },
		`label switch is the target's name`:                                 func(u *UserPath) { u.Path = "/a[b={switch}]" },
	} {
		u := good
		change(&u)
		if _, err := u.ToRule(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `path "`+u.Path+`"`) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// TestCompileErrors checks that each error names the path.
func TestCompileErrors(t *testing.T) {
	mtu := Rule{Path: "/i[name={port}]/mtu", Metric: "fabric_switch_port_mtu_bytes"}
	for want, rules := range map[string][]Rule{
		`path "/x": "y" is not a metric`:                               {{Path: "/x", Metric: "y"}},
		`path "/mtu": the label port of`:                               {{Path: "/mtu", Metric: "fabric_switch_port_mtu_bytes"}},
		`path "/i[name={port}]/mtu": it is there twice`:                {mtu, mtu},
		`{lane} is not a label of fabric_switch_port_mtu_bytes`:        {{Path: "/i[name={port}]/l[x={lane}]", Metric: "fabric_switch_port_mtu_bytes"}},
		`a leaf of an info is expected to set one of its labels`:       {{Path: "/i[name={port}]", Metric: "fabric_switch_port_neighbor_info"}},
		`conversion "z" is not one of`:                                 {{Path: "/i[name={port}]", Metric: "fabric_switch_port_mtu_bytes", Convert: "z"}},
		`"{port}{tc}": two names in braces touch`:                      {{Path: "/{port}{tc}", Metric: "fabric_switch_port_queue_bytes"}},
		`key name: one text or one name in braces is expected, not "a`: {{Path: "/i[name=a{port}]", Metric: "fabric_switch_port_mtu_bytes"}},
	} {
		if _, err := CompileRules(rules); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func TestPatterns(t *testing.T) {
	tree, err := CompileRules(append(slices.Clone(ByName("sonic").Rules), SessionRules("sonic")...))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"COUNTERS/Ethernet*/Ethernet0/SAI_PORT_STAT_PFC_3_RX_PKTS":                        "fabric_switch_port_pfc_receive_frames_total|Ethernet0,3",
		"COUNTERS/Ethernet*/Queues/etp9:4/SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES":          "fabric_switch_port_queue_watermark_bytes|etp9,4,since_clear",
		"COUNTERS/Ethernet*/Queues/etp9:4:periodic/SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES": "fabric_switch_port_queue_watermark_bytes|etp9,4,periodic",
		"COUNTERS/Ethernet*/Queues/etp9:4:user/SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES":     "",
		"COUNTERS/Ethernet*/Queues/:4/SAI_QUEUE_STAT_SHARED_WATERMARK_BYTES":              "",
		"TRANSCEIVER_DOM_SENSOR/Ethernet8/rx2power":                                       "fabric_switch_port_module_receive_power_watts|Ethernet8,2",
		"TRANSCEIVER_DOM_SENSOR/Ethernet8/rx2powerhighalarm":                              "",
		"COUNTERS/Ethernet*/Ethernet0/SAI_PORT_STAT_PFC_9_RX_PKTS":                        "",
		"PORT_QOS_MAP/Ethernet8/dscp_to_tc_map":                                           "fabric_switch_port_qos_info|Ethernet8,,,",
		"QUEUE/Ethernet8|3-4/wred_profile":                                                "fabric_switch_port_queue_qos_info|Ethernet8,3-4,",
		"NEIGH_STATE_TABLE/10.0.0.57/state":                                               "bgp_session_state|default,bgp,10.0.0.57",
		"NEIGH_STATE_TABLE/fc00::72/state":                                                "bgp_session_state|default,bgp,fc00::72",
		"BFD_SESSION_TABLE/default|Ethernet0|fc00::72/state":                              "bfd_session_state|Ethernet0,fc00::72",
		"BFD_SESSION_TABLE/default|default|10.0.0.57/local_addr":                          "bfd_local_address|default,10.0.0.57",
		"INTF_TABLE/Ethernet0/mac_addr":                                                   "",
		"WRED_PROFILE/AZURE_LOSSLESS/green_min_threshold":                                 "fabric_switch_ecn_profile_info|AZURE_LOSSLESS,,,,",
	} {
		var c Captures
		node := tree.Root
		for _, e := range strings.Split(path, "/") {
			if node = node.FindChild(e, &c); node == nil {
				break
			}
		}
		got := ""
		if node != nil && len(node.Leaves) == 1 {
			l := node.Leaves[0]
			if b, ok := l.AppendIdentity(nil, &c); ok && len(b) > 0 {
				got = l.Family.Name + "|" + strings.Join(l.LabelValues(&c), ",")
			}
		}
		if got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}
