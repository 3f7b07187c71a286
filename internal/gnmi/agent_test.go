package gnmi

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
	"github.com/graylink/graylink/internal/gnmi/preset"
	"github.com/graylink/graylink/internal/pki"
)

var update = flag.Bool("update", false, "write docs/gnmi.md anew")

func TestMain(m *testing.M) {
	if what := os.Getenv(peerVariable); what != "" {
		fmt.Fprintln(os.Stderr, peerProcess(what))
		os.Exit(1)
	}
	// The log of the fakes has a goroutine of its own from the start.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// logged is a log that tests can read.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// started returns a switch, and an agent that is subscribed to it.
func started(t *testing.T, vendor string, state gnmitest.State, faults gnmitest.Faults, server *tls.Config, change func(*Config)) (*gnmitest.Switch, *Agent, *logged) {
	t.Helper()
	sw, err := gnmitest.Start(vendor, state, faults, server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sw.Stop)
	c := DefaultConfig()
	c.Preset, c.Targets = vendor, []Target{{Address: sw.Address, Name: "leaf1"}}
	c.Interval, c.BackoffMin, c.BackoffMax, c.Timeout = time.Second, 10*time.Millisecond, 50*time.Millisecond, 5*time.Second
	if c.TLS.Insecure = server == nil; change != nil {
		change(&c)
	}
	log := &logged{}
	a, err := Start(c, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return sw, a, log
}

// seriesOf returns an agent's points by series, as Prometheus writes them.
func seriesOf(a *Agent) map[string]float64 {
	out := map[string]float64{}
	for _, p := range a.CollectPoints(time.Now()) {
		var b strings.Builder
		fmt.Fprintf(&b, "%s{switch=%q", p.Family.Name, p.Switch)
		for i, l := range p.Family.Labels {
			fmt.Fprintf(&b, ",%s=%q", l, p.Values[i])
		}
		b.WriteString("}")
		if _, twice := out[b.String()]; twice {
			panic(b.String() + " is there twice")
		}
		out[b.String()] = p.Value
	}
	return out
}

// hangLimit is after how long a test gives up. A busy machine may run no test at idle priority for half a minute.
const hangLimit = 5 * time.Minute

// until waits for a condition that is certain to occur.
func until(t *testing.T, a *Agent, log *logged, what string, ok func(map[string]float64) bool) map[string]float64 {
	t.Helper()
	for end := time.Now().Add(hangLimit); ; time.Sleep(2 * time.Millisecond) {
		got := seriesOf(a)
		if ok(got) {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("%s did not come: %v\n%s", what, got, log)
		}
	}
}

const leaf1 = `{switch="leaf1"`

func errorsOf(kind string) string {
	return fmt.Sprintf(`graylink_gnmi_errors_total{switch="leaf1",kind=%q}`, kind)
}

func synced(got map[string]float64) bool { return got["graylink_gnmi_series"+leaf1+"}"] > 0 }

// parity is an expectation for every vendor's switch: a series, and the value that was set.
type parity struct {
	what, series string
	value        func(gnmitest.State) float64
}

var parities = []parity{
	{"octets", `fabric_switch_port_receive_bytes_total{switch="leaf1",port="Ethernet8"}`, func(s gnmitest.State) float64 { return float64(s.Octets) }},
	{"link state", `fabric_switch_port_oper_up{switch="leaf1",port="Ethernet8"}`, func(gnmitest.State) float64 { return 1 }},
	{"PFC received", `fabric_switch_port_pfc_receive_frames_total{switch="leaf1",port="Ethernet8",priority="3"}`, func(s gnmitest.State) float64 { return float64(s.PFCReceived) }},
	{"PFC sent", `fabric_switch_port_pfc_transmit_frames_total{switch="leaf1",port="Ethernet8",priority="3"}`, func(s gnmitest.State) float64 { return float64(s.PFCSent) }},
	{"PFC pause", `fabric_switch_port_pfc_receive_pause_seconds_total{switch="leaf1",port="Ethernet8",priority="3"}`, func(s gnmitest.State) float64 { return s.PauseReceived.Seconds() }},
	{"ECN marks", `fabric_switch_port_queue_ecn_marked_packets_total{switch="leaf1",port="Ethernet8",tc="4"}`, func(s gnmitest.State) float64 { return float64(s.ECNMarked) }},
	{"queue watermark", `fabric_switch_port_queue_watermark_bytes{switch="leaf1",port="Ethernet8",tc="4",window=*}`, func(s gnmitest.State) float64 { return float64(s.Watermark) }},
	{"queue drops", `fabric_switch_port_queue_discards_total{switch="leaf1",port="Ethernet8",tc="4",reason=*}`, func(s gnmitest.State) float64 { return float64(s.Dropped) }},
	{"DOM power", `fabric_switch_port_module_receive_power_watts{switch="leaf1",port="Ethernet8",lane="1"}`, func(s gnmitest.State) float64 { return s.Power }},
	{"FEC", `fabric_switch_port_fec_uncorrectable_blocks_total{switch="leaf1",port="Ethernet8"}`, func(s gnmitest.State) float64 { return float64(s.Uncorrectable) }},
	{"BER before FEC", `fabric_switch_port_pre_fec_ber_ratio{switch="leaf1",port="Ethernet8"}`, func(s gnmitest.State) float64 { return s.PreBER }},
	{"BER before FEC, lane", `fabric_switch_port_lane_pre_fec_ber_ratio{switch="leaf1",port="Ethernet8",lane="1"}`, func(s gnmitest.State) float64 { return s.PreBER }},
	{"BER after FEC", `fabric_switch_port_post_fec_ber_ratio{switch="leaf1",port="Ethernet8"}`, func(s gnmitest.State) float64 { return s.PostBER }},
	{"LLDP", `fabric_switch_port_neighbor_info{switch="leaf1",port="Ethernet8",remote="spine1",remote_port="Ethernet1/7",remote_chassis=""}`, func(gnmitest.State) float64 { return 1 }},
}

// has lists the parities that each vendor must have. It must not have the others, because its tree has no
// confirmed leaf for them.
var has = map[string]string{
	"openconfig": "octets|link state|ECN marks|queue watermark|queue drops|DOM power|BER before FEC|BER after FEC|LLDP",
	"arista":     "octets|link state|PFC received|PFC sent|ECN marks|queue watermark|queue drops|DOM power|BER before FEC|BER after FEC|LLDP",
	"cumulus":    "octets|link state|PFC received|PFC sent|PFC pause|ECN marks|queue watermark|queue drops|DOM power|FEC|BER before FEC, lane|BER after FEC|LLDP",
	"sonic":      "octets|link state|PFC received|PFC sent|ECN marks|queue watermark|queue drops|DOM power|FEC|LLDP",
	"srlinux":    "octets|link state|PFC received|PFC sent|queue watermark|DOM power|LLDP",
	"nvos":       "octets|link state|BER before FEC|BER after FEC",
}

// TestParity checks that the measurements of the vendors' switches arrive under one name, in one unit, with one
// set of labels and with the value that was set. It writes and checks docs/gnmi.md.
func TestParity(t *testing.T) {
	at := time.Now().Add(-time.Second).Truncate(time.Second)
	state := gnmitest.ExampleState(at)
	cells := map[string]map[string]string{}
	for _, vendor := range preset.Names() {
		want := strings.Split(has[vendor], "|")
		_, a, log := started(t, vendor, state, gnmitest.Faults{}, nil, nil)
		find := func(got map[string]float64, pattern string) (string, float64, bool) {
			before, after, wild := strings.Cut(pattern, "*")
			for _, s := range slices.Sorted(maps.Keys(got)) {
				if s == pattern || wild && strings.HasPrefix(s, before) && strings.HasSuffix(s, after) && !strings.Contains(s, "periodic") {
					return s, got[s], true
				}
			}
			return "", 0, false
		}
		got := until(t, a, log, vendor+"'s series", func(got map[string]float64) bool {
			for _, p := range parities {
				if _, _, ok := find(got, p.series); slices.Contains(want, p.what) && !ok {
					return false
				}
			}
			return true
		})
		cells[vendor] = map[string]string{}
		for _, p := range parities {
			series, v, ok := find(got, p.series)
			if ok != slices.Contains(want, p.what) {
				t.Errorf("%s: %s is there: %v", vendor, p.what, ok)
			}
			// Two digits of dBm are 0.12 percent of a power.
			if tolerance := 1e-9; ok && math.Abs(v-p.value(state)) > p.value(state)*max(tolerance, map[string]float64{"DOM power": 1.2e-3}[p.what]) {
				t.Errorf("%s: %s is %v, want %v", vendor, series, v, p.value(state))
			}
			if cells[vendor][p.what] = "-"; ok {
				cells[vendor][p.what] = fmt.Sprintf("%.4g", v)
			}
		}
		for _, p := range a.CollectPoints(time.Now()) {
			if strings.HasPrefix(p.Family.Name, "fabric_") && !p.At.Equal(at) {
				t.Errorf("%s: %s is of %v, the switch said %v", vendor, p.Family.Name, p.At, at)
			}
		}
		if vendor == "sonic" {
			if v := got[`fabric_switch_port_queue_watermark_bytes{switch="leaf1",port="Ethernet8",tc="4",window="periodic"}`]; v != float64(state.Watermark/2) {
				t.Errorf("the periodic watermark is %v", v)
			}
			if got[`graylink_gnmi_unknown_total`+leaf1+"}"] != 1 || got[`graylink_gnmi_absent_total`+leaf1+"}"] != 1 {
				t.Errorf("unknown %v, absent %v", got[`graylink_gnmi_unknown_total`+leaf1+"}"], got[`graylink_gnmi_absent_total`+leaf1+"}"])
			}
		}
	}
	document(t, cells)
}

// document writes the tables of docs/gnmi.md, and checks that they are those of the presets.
func document(t *testing.T, cells map[string]map[string]string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("# gNMI: which paths are requested from which switch\n\nThis page lists the paths that each preset of the gNMI receiver subscribes to, and the series that they become.\n" +
		"It is written by `go test ./internal/gnmi -run TestParity -update`. The receiver's\n[README](../receivers/gnmireceiver/README.md) describes its configuration.\n\n" +
		"## How do the vendors' series compare?\n\nThe test switches of all vendors measure the same values, and send them in their own trees, names, types and units.\n" +
		"Each row is one series, and each column has its value for one vendor. `-` means that the vendor's preset has no\nconfirmed path for the series, which is absent.\n\n| | series |")
	for _, v := range preset.Names() {
		b.WriteString(" " + v + " |")
	}
	b.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(preset.Names())) + "\n")
	for _, p := range parities {
		name, labels, _ := strings.Cut(p.series, "{")
		var names []string
		for _, l := range strings.Split(strings.TrimSuffix(labels, "}"), ",") {
			n, _, _ := strings.Cut(l, "=")
			names = append(names, n)
		}
		fmt.Fprintf(&b, "| %s | `%s` (%s) |", p.what, name, strings.Join(names, ", "))
		for _, v := range preset.Names() {
			b.WriteString(" " + cells[v][p.what] + " |")
		}
		b.WriteString("\n")
	}
	for _, p := range preset.All {
		fmt.Fprintf(&b, "\n## Preset `%s`\n\n%s\n\nEncodings, preferred first: %s.\n\n| path | series | type, unit | conversion | source |\n| --- | --- | --- | --- | --- |\n",
			p.Name, p.Help, strings.Join(p.Encodings, ", "))
		for _, r := range p.Rules {
			f := preset.LookupFamily(r.Metric)
			series := "`" + f.Name + "`"
			for _, l := range slices.Sorted(maps.Keys(r.Labels)) {
				series += fmt.Sprintf(" %s=%s", l, r.Labels[l])
			}
			if r.TextLabel != "" {
				series += ", label " + r.TextLabel
			}
			kind := f.Kind.String()
			if u := f.Unit(); u != "" {
				kind += ", " + u
			}
			path := r.Path
			if r.Target != "" {
				path = r.Target + " " + path
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", path, series, kind, preset.Conversions[r.Convert].Help, r.Source)
		}
		if len(p.Unconfirmed) > 0 {
			b.WriteString("\nThese paths are not requested, because they are not confirmed:\n\n| path | series | reason |\n| --- | --- | --- |\n")
			for _, u := range p.Unconfirmed {
				fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", u.Path, u.Metric, u.Why)
			}
		}
	}
	fmt.Fprintf(&b, "\n## Forwarding tables\n\nWith `routes: true`, the presets %s request these paths.\nPrefixes are not requested, and groups have no series.\n\n| path | series | source |\n| --- | --- | --- |\n",
		strings.Join(preset.WithRoutes, ", "))
	for _, r := range preset.RouteRules() {
		series := "`" + preset.FamilyMembers + "`, which counts by port"
		if r.Metric != "" {
			series = "`" + r.Metric + "` address_family=" + r.Labels["address_family"]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.Path, series, r.Source)
	}
	b.WriteString("\nFor Cumulus, NVOS, SONiC and SR Linux they are not requested, because they are not confirmed: their lists of paths\n" +
		"do not have them, or have them elsewhere. A switch that does not know a path may refuse the whole subscription\n" +
		"(`graylink_gnmi_errors_total{kind=\"request\"}`).\n")
	documentSessions(&b)
	const file = "../../docs/gnmi.md"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != b.String() {
		t.Errorf("%s is not what the presets are (%v); write it with -update", file, err)
	}
}

// documentSessions writes the tables of sessions.
func documentSessions(b *strings.Builder) {
	b.WriteString("\n## Sessions\n\nWith `sessions: true` these paths are requested as well. The series are those of graylink-switch, by `port`. Leaves\n" +
		"without a series relate a session to its port ([how](../receivers/gnmireceiver/README.md#which-port-has-a-session)).\n")
	for _, names := range [][]string{{"arista", "openconfig"}, {"sonic"}} {
		fmt.Fprintf(b, "\nPreset %s:\n\n| path | series | conversion | source |\n| --- | --- | --- | --- |\n", strings.Join(names, ", "))
		for _, r := range preset.SessionRules(names[0]) {
			series := "-"
			if s := preset.SessionSeries(&r); s != "" {
				series = "`" + s + "`"
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", strings.TrimPrefix(r.Target+" "+r.Path, " "), series, preset.Conversions[r.Convert].Help, r.Source)
		}
	}
	b.WriteString("\nNo switch of any vendor was available. SONiC counts no transitions, and states a session of BGP up to 15 s late. For\n" +
		"Cumulus, NVOS and SR Linux nothing is requested, because it is not confirmed.\n")
}

// TestModes checks that stream, once and poll give the same, repeatedly.
func TestModes(t *testing.T) {
	for mode, want := range map[string]gpb.SubscriptionList_Mode{"stream": gpb.SubscriptionList_STREAM, "once": gpb.SubscriptionList_ONCE, "poll": gpb.SubscriptionList_POLL} {
		state := gnmitest.ExampleState(time.Now())
		sw, a, log := started(t, "cumulus", state, gnmitest.Faults{}, nil, func(c *Config) { c.Mode = mode })
		const name = `fabric_switch_port_receive_bytes_total{switch="leaf1",port="Ethernet8"}`
		until(t, a, log, mode, func(got map[string]float64) bool { return got[name] == float64(state.Octets) })
		state.Octets++
		sw.UpdateState(state)
		got := until(t, a, log, mode+" again", func(got map[string]float64) bool { return got[name] == float64(state.Octets) })
		if got["graylink_gnmi_target_up"+leaf1+"}"] != 1 || got["graylink_gnmi_sync_seconds"+leaf1+"}"] <= 0 || got["graylink_gnmi_connects_total"+leaf1+"}"] != 1 {
			t.Errorf("%s: %v\n%s", mode, got, log)
		}
		list := sw.ReceivedSubscriptions()[0]
		if list.Mode != want || list.Encoding != gpb.Encoding_PROTO {
			t.Errorf("%s: %v, %v", mode, list.Mode, list.Encoding)
		}
		changes := 0
		for _, s := range list.Subscription {
			if s.Mode == gpb.SubscriptionMode_ON_CHANGE {
				changes++
			} else if mode == "stream" && (s.Mode != gpb.SubscriptionMode_SAMPLE || s.SampleInterval != uint64(time.Second)) {
				t.Errorf("%v", s)
			}
		}
		if (changes > 0) != (mode == "stream") {
			t.Errorf("%s: %d subscriptions to changes", mode, changes)
		}
	}
}

// TestAccess covers mutual TLS, names with passwords in both forms, and tokens. No log may contain a secret,
// and refusals are counted.
func TestAccess(t *testing.T) {
	now := time.Now()
	ca, err := pki.NewAuthority("test", time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		f := filepath.Join(dir, name)
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	pair := func(name string) (cert, key string, both tls.Certificate) {
		p, err := pki.Issue(ca, []string{name}, time.Hour, now)
		if err != nil {
			t.Fatal(err)
		}
		if both, err = tls.X509KeyPair(p.Cert, p.Key); err != nil {
			t.Fatal(err)
		}
		return write(name+".pem", p.Cert), write(name+".key", p.Key), both
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	caFile := write("ca.pem", ca.Cert)
	_, _, server := pair("leaf1")
	cert, key, _ := pair("collector")
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{server}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert}
	const password = "s3cr3t-that-is-not-logged"
	user, pass, token := write("user", []byte("cumulus\n")), write("pass", []byte(password+"\n")), write("token", []byte(password))
	for name, c := range map[string]struct {
		vendor string
		login  []string
		change func(*Config)
		kind   string // of the error; empty means that it is accepted
	}{
		"certificate":    {"openconfig", nil, nil, ""},
		"no certificate": {"openconfig", nil, func(c *Config) { c.TLS.Cert, c.TLS.Key = "", "" }, "connect"},
		"other name":     {"openconfig", nil, func(c *Config) { c.TLS.Server = "leaf2" }, "connect"},
		"no authority":   {"openconfig", nil, func(c *Config) { c.TLS.CA = cert }, "connect"},
		"gone":           {"openconfig", nil, func(c *Config) { c.TLS.CA = caFile + ".gone" }, "connect"},
		"basic":          {"cumulus", []string{"authorization", "Basic Y3VtdWx1czpzM2NyM3QtdGhhdC1pcy1ub3QtbG9nZ2Vk"}, func(c *Config) { c.UsernameFile, c.PasswordFile = user, pass }, ""},
		"metadata":       {"arista", []string{"username", "cumulus", "password", password}, func(c *Config) { c.UsernameFile, c.PasswordFile = user, pass }, ""},
		"token":          {"openconfig", []string{"authorization", "Bearer " + password}, func(c *Config) { c.TokenFile = token }, ""},
		"wrong":          {"arista", []string{"password", "x"}, func(c *Config) { c.UsernameFile, c.PasswordFile = user, pass }, "auth"},
		"two lines":      {"arista", nil, func(c *Config) { c.TokenFile = caFile }, "auth"},
	} {
		_, a, log := started(t, c.vendor, gnmitest.ExampleState(now), gnmitest.Faults{Login: c.login}, config, func(x *Config) {
			x.TLS = TLS{CA: caFile, Cert: cert, Key: key, Server: "leaf1"}
			if c.change != nil {
				c.change(x)
			}
		})
		got := until(t, a, log, name, func(got map[string]float64) bool {
			if c.kind != "" {
				return got[errorsOf(c.kind)] > 0
			}
			return synced(got)
		})
		if c.kind != "" && (synced(got) || got["graylink_gnmi_target_up"+leaf1+"}"] != 0) {
			t.Errorf("%s: is let in", name)
		}
		if strings.Contains(log.String(), password) || strings.Contains(log.String(), "czM0") {
			t.Errorf("%s: the log contains the secret: %s", name, log)
		}
	}
}

// TestFaults checks that each fault is counted by its kind, and that everything is present again when it is
// over.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		f    gnmitest.Faults
		kind string
	}{
		"reset":       {gnmitest.Faults{EndAfter: 1, End: status.Error(codes.Unavailable, "restart")}, "stream"},
		"refused":     {gnmitest.Faults{Refuse: status.Error(codes.InvalidArgument, "no such path")}, "request"},
		"encodings":   {gnmitest.Faults{Encodings: []gpb.Encoding{gpb.Encoding_ASCII}}, "encoding"},
		"silent":      {gnmitest.Faults{Silent: true}, "stalled"},
		"wrong types": {gnmitest.Faults{Mutate: func(n *gpb.Notification) { wrongTypes(n) }}, "value"},
		"half JSON":   {gnmitest.Faults{Mutate: func(n *gpb.Notification) { halfJSON(n) }}, "json"},
		"no time":     {gnmitest.Faults{Mutate: func(n *gpb.Notification) { n.Timestamp = 0 }}, "time"},
		"no keys":     {gnmitest.Faults{Mutate: func(n *gpb.Notification) { noKeys(n) }}, "key"},
	} {
		sw, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), c.f, nil, func(c *Config) { c.Timeout = time.Second })
		got := until(t, a, log, name, func(got map[string]float64) bool { return got[errorsOf(c.kind)] > 0 })
		for s := range got {
			if strings.HasPrefix(s, "fabric_") && (name == "wrong types" || name == "half JSON" || name == "no keys") && !strings.Contains(s, "neighbor") {
				t.Errorf("%s: %s is there", name, s)
			}
		}
		sw.SetFaults(gnmitest.Faults{})
		sw.UpdateState(gnmitest.ExampleState(time.Now()))
		until(t, a, log, name+" healed", synced)
	}
}

func wrongTypes(n *gpb.Notification) {
	for _, u := range n.Update {
		u.Val = &gpb.TypedValue{Value: &gpb.TypedValue_ProtoBytes{ProtoBytes: []byte{1}}}
	}
}

func halfJSON(n *gpb.Notification) {
	for _, u := range n.Update {
		u.Val = &gpb.TypedValue{Value: &gpb.TypedValue_JsonVal{JsonVal: []byte(`"90`)}}
	}
}

func noKeys(n *gpb.Notification) {
	for _, u := range n.Update {
		for _, e := range u.Path.Elem {
			e.Key = nil
		}
	}
}

// TestDeprecatedPaths checks that paths in Path.element are understood.
func TestDeprecatedPaths(t *testing.T) {
	_, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), gnmitest.Faults{NoModels: true, Mutate: func(n *gpb.Notification) {
		for _, u := range n.Update {
			p := &gpb.Path{}
			for _, e := range u.Path.Elem {
				p.Element = append(p.Element, e.Name) //nolint:staticcheck // the deprecated field is the purpose of the test
				for _, k := range slices.Sorted(maps.Keys(e.Key)) {
					p.Element = append(p.Element, e.Key[k]) //nolint:staticcheck // as above
				}
			}
			u.Path = p
		}
	}}, nil, nil)
	got := until(t, a, log, "series", synced)
	if v := got[`fabric_switch_port_receive_bytes_total{switch="leaf1",port="Ethernet8"}`]; v != 123456789 {
		t.Errorf("%v: %v", v, got)
	}
}

// TestFlapping checks that a switch that restarts again and again is subscribed to each time, that what was
// sent on change is absent meanwhile, and that no goroutine remains (TestMain).
func TestFlapping(t *testing.T) {
	_, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), gnmitest.Faults{EndAfter: 1, End: status.Error(codes.Unavailable, "flap")}, nil,
		func(c *Config) { c.BackoffMax = 10 * time.Millisecond })
	until(t, a, log, "twenty sessions", func(got map[string]float64) bool { return got[errorsOf("stream")] >= 20 })
	a.stop()
	a.readers.Wait()
	got := until(t, a, log, "the end of states", func(got map[string]float64) bool {
		_, there := got[`fabric_switch_port_oper_up{switch="leaf1",port="Ethernet8"}`]
		return !there
	})
	if got["graylink_gnmi_target_up"+leaf1+"}"] != 0 {
		t.Error("the target is up without a session")
	}
}

// TestOverload checks that while the decoder stands still the queue fills, messages are dropped and counted,
// and a new subscription follows.
func TestOverload(t *testing.T) {
	state := gnmitest.ExampleState(time.Now())
	sw, a, log := started(t, "openconfig", state, gnmitest.Faults{}, nil, func(c *Config) { c.Queue, c.QueueWait = 1, time.Millisecond })
	until(t, a, log, "series", synced)
	s := a.sessions[0]
	s.store.mu.Lock()
	for end := time.Now().Add(hangLimit); s.drops.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.store.mu.Unlock()
			t.Fatal("nothing is dropped")
		}
		state.Octets++
		sw.UpdateState(state)
	}
	s.store.mu.Unlock()
	until(t, a, log, "all anew", func(got map[string]float64) bool {
		return got[errorsOf("dropped")] > 0 && got["graylink_gnmi_dropped_updates_total"+leaf1+"}"] > 0 &&
			got[`fabric_switch_port_receive_bytes_total{switch="leaf1",port="Ethernet8"}`] == float64(state.Octets) &&
			got[`fabric_switch_port_oper_up{switch="leaf1",port="Ethernet8"}`] == 1
	})
}

// TestStorm checks that twenty switches that restart at once all return.
func TestStorm(t *testing.T) {
	broken := gnmitest.Faults{EndAfter: 1, End: status.Error(codes.Unavailable, "restart")}
	var all []*gnmitest.Switch
	var more []Target
	for i := range 19 {
		sw, err := gnmitest.Start("openconfig", gnmitest.ExampleState(time.Now()), broken, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sw.Stop)
		all, more = append(all, sw), append(more, Target{Address: sw.Address, Name: fmt.Sprint("leaf", i+2)})
	}
	sw, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), broken, nil, func(c *Config) { c.Targets = append(c.Targets, more...) })
	count := func(family string, least float64) func(map[string]float64) bool {
		return func(got map[string]float64) bool {
			n := 0
			for s, v := range got {
				if strings.HasPrefix(s, family+"{") && v >= least && (!strings.Contains(s, "kind=") || strings.Contains(s, `"stream"`)) {
					n++
				}
			}
			return n == 20
		}
	}
	until(t, a, log, "errors of all", count("graylink_gnmi_errors_total", 3))
	for _, s := range append(all, sw) {
		s.SetFaults(gnmitest.Faults{})
	}
	until(t, a, log, "all up", count("graylink_gnmi_target_up", 1))
	until(t, a, log, "states of all", count("fabric_switch_port_oper_up", 1))
}
