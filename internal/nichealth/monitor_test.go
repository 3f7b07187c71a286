package nichealth

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/nichw"
)

var t0 = time.Unix(1_800_000_000, 0).UTC()

// bench is a node whose polls a test changes. Events are kept as "code of entity", with "!"
// before fatal ones and "-" before those that say that something is over.
type bench struct {
	t      *testing.T
	m      *Monitor
	p      nichw.Poll
	events []string
	raw    []Event
}

func rate(gigabits int64) *int64 { v := gigabits * 1e9 / 8; return &v }

func addresses(n int) (out []nichw.GID) {
	for i := range n {
		g := nichw.GID{Index: i, Type: "RoCE v2"}
		if i%2 == 1 {
			g.Address = parse("::ffff:10.0.0.1")
		} else {
			g.Address = parse("fe80::1")
		}
		out = append(out, g)
	}
	return out
}

// h100 has eight ports of 400 Gb/s of InfiniBand, two of 200 of Ethernet, and an interface.
func h100(t *testing.T, edit func(*Config)) *bench {
	t.Helper()
	c := DefaultConfig()
	c.Node = "h1"
	if edit != nil {
		edit(&c)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, m: New(c, "boot1", nil)}
	b.p = nichw.Poll{At: t0, Boot: "boot1", Parts: nichw.ReadAll, DevicesKnown: true, InterfacesKnown: true}
	for i := range 8 {
		b.p.Devices = append(b.p.Devices, nichw.Device{Name: fmt.Sprintf("mlx5_%d", i), Kind: nichw.MLX5, Function: nichw.Physical, Board: "MT_IB", Ports: []nichw.Port{{Number: 1, State: nichw.Active,
			Phys: nichw.LinkUp, Rate: rate(400), LinkLayer: "InfiniBand", Counters: []nichw.Counter{{Name: "link_downed"}, {Name: "symbol_error"}}}}})
	}
	for i := 8; i < 10; i++ {
		b.p.Devices = append(b.p.Devices, nichw.Device{Name: fmt.Sprintf("mlx5_%d", i), Kind: nichw.MLX5, Function: nichw.Physical, Board: "MT_BF", Ports: []nichw.Port{{Number: 1, State: nichw.Active,
			Phys: nichw.LinkUp, Rate: rate(200), LinkLayer: "Ethernet", GIDs: addresses(4), GIDsKnown: true}}})
	}
	b.p.Interfaces = []nichw.Interface{{Name: "eno1", Kind: nichw.Ethernet, OperState: "up", Changes: new(uint64)}}
	return b
}

func (b *bench) port(device string) *nichw.Port {
	b.t.Helper()
	for i := range b.p.Devices {
		if b.p.Devices[i].Name == device {
			return &b.p.Devices[i].Ports[0]
		}
	}
	b.t.Fatalf("no %s", device)
	return nil
}

func (b *bench) count(device, counter string, by uint64) {
	cs := &b.port(device).Counters
	for i := range *cs {
		if (*cs)[i].Name == counter {
			(*cs)[i].Value += by
			return
		}
	}
	*cs = append(*cs, nichw.Counter{Name: counter, Value: by})
}

// poll polls once, some time after the last.
func (b *bench) poll(after time.Duration) {
	b.p.At = b.p.At.Add(after)
	b.take(b.m.ObservePoll(&b.p))
}

func (b *bench) take(events []Event) {
	for _, e := range events {
		sign := ""
		if e.IsFatal {
			sign = "!"
		}
		if e.IsHealthy {
			sign = "-"
		}
		b.events = append(b.events, fmt.Sprintf("%s%s of %s", sign, e.ErrorCode[0], e.EntitiesImpacted[0].Value))
	}
	b.raw = append(b.raw, events...)
}

// run polls at the monitor's own pace.
func (b *bench) run(d time.Duration) {
	for end := b.p.At.Add(d); b.p.At.Before(end); {
		b.poll(b.m.NextPoll())
	}
}

func (b *bench) want(what string, events ...string) {
	b.t.Helper()
	if !slices.Equal(b.events, events) {
		b.t.Errorf("%s: events %q, want %q", what, b.events, events)
	}
	b.events = nil
}

func TestRule1FirstSightIsTakenAsItIs(t *testing.T) {
	b := h100(t, nil)
	b.port("mlx5_3").State, b.port("mlx5_3").Phys = nichw.Down, nichw.Disabled
	b.port("mlx5_4").Rate = rate(200)
	b.run(time.Minute)
	b.want("seeded")
	if f := b.m.OpenFindings(); len(f) != 3 {
		t.Errorf("findings %+v", f)
	}
	b.port("mlx5_3").State, b.port("mlx5_3").Phys = nichw.Active, nichw.LinkUp
	b.run(2 * time.Second)
	b.want("it is over", "-phys_state_disabled of mlx5_3_port1", "-state_down of mlx5_3_port1")
	b.port("mlx5_3").State = nichw.Down
	b.run(2 * time.Second)
	b.want("and begins again", "!state_down of mlx5_3_port1")
}

func TestRule2DownIsConfirmed(t *testing.T) {
	b := h100(t, nil)
	b.run(3 * time.Second)
	b.port("mlx5_0").State = nichw.Down
	b.poll(time.Second)
	if n := b.m.NextPoll(); n != 100*time.Millisecond {
		t.Errorf("next after %s", n)
	}
	for range 4 {
		b.poll(100 * time.Millisecond)
	}
	b.want("400 ms")
	b.poll(100 * time.Millisecond)
	b.want("500 ms", "!state_down of mlx5_0_port1")
	if n := b.m.NextPoll(); n != time.Second {
		t.Errorf("next after %s", n)
	}
	e := b.raw[0]
	if e.Agent != "graylink-node" || e.ComponentClass != "NIC" || e.CheckName != "InfiniBandErrorCheck" || e.RecommendedAction != ActionReplaceVM || e.NodeName != "h1" || !e.GeneratedTimestamp.Equal(b.p.At) ||
		e.EntitiesImpacted[0] != (Entity{EntityPort, "mlx5_0_port1"}) || e.Message != "Port mlx5_0 port 1: state DOWN - no connectivity" {
		t.Errorf("%+v", e)
	}
	b.port("mlx5_1").State = nichw.Down
	b.poll(time.Second)
	b.poll(100 * time.Millisecond)
	b.port("mlx5_1").State = nichw.Active
	b.run(3 * time.Second)
	b.want("it was up again within 500 ms")
}

func TestRule3GoneIsThreeMisses(t *testing.T) {
	b := h100(t, nil)
	b.run(2 * time.Second)
	all := b.p.Devices
	b.p.Devices = slices.Clone(all[1:])
	b.poll(time.Second)
	b.poll(time.Second)
	b.want("two misses")
	b.p.Devices = all
	b.poll(time.Second)
	b.want("back after two")
	b.p.Devices = slices.Clone(all[1:])
	b.poll(time.Second)
	b.poll(time.Second)
	b.poll(100 * time.Millisecond)
	b.want("a poll of the faster pace")
	b.p.DevicesKnown = false // one poll could not list anything
	b.p.Devices = nil
	b.poll(900 * time.Millisecond)
	b.want("a poll that could not list devices")
	b.p.DevicesKnown, b.p.Devices = true, slices.Clone(all[1:])
	b.poll(time.Second)
	b.want("the third", "!device_disappeared of mlx5_0")
	b.run(5 * time.Second)
	b.want("once")
	b.p.Devices = all
	b.poll(time.Second)
	b.want("back", "-device_disappeared of mlx5_0")
}

// TestRule3AMassDisappearance: one poll that lists nothing is nothing.
func TestRule3AMassDisappearance(t *testing.T) {
	b := h100(t, nil)
	b.run(2 * time.Second)
	all := b.p.Devices
	b.p.Devices = nil
	b.poll(time.Second)
	b.p.Devices = all
	b.run(5 * time.Second)
	b.want("one empty poll")
}

// TestRule4Functions checks the seed's matrix.
func TestRule4Functions(t *testing.T) {
	for _, tt := range []struct {
		function nichw.Function
		name     string
		want     []string
	}{
		{nichw.Physical, "mlx5_1", []string{"!state_down of mlx5_1_port1"}},
		{nichw.Plain, "mlx5_1", []string{"!state_down of mlx5_1_port1"}},
		{nichw.Virtual, "mlx5_1", nil},
		{nichw.Physical, "mlx5_7", nil}, // expected to be down
	} {
		b := h100(t, func(c *Config) { c.ExpectedDown = []*regexp.Regexp{regexp.MustCompile(`^mlx5_7$`)} })
		for i := range b.p.Devices {
			if b.p.Devices[i].Name == tt.name {
				b.p.Devices[i].Function = tt.function
			}
		}
		b.run(2 * time.Second)
		b.port(tt.name).State, b.port(tt.name).Phys = nichw.Down, nichw.Disabled
		b.run(2 * time.Second)
		var got []string
		for _, e := range b.events {
			if strings.Contains(e, "state_down") {
				got = append(got, e)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s, %s: %q, want %q", tt.name, tt.function, b.events, tt.want)
		}
		if tt.want == nil && len(b.events) > 0 {
			t.Errorf("%s, %s: %q", tt.name, tt.function, b.events)
		}
	}
}

// TestRules5And6States checks the seed's table of states.
func TestRules5And6States(t *testing.T) {
	for _, tt := range []struct {
		state nichw.State
		phys  nichw.Phys
		want  []string
	}{
		{nichw.Active, nichw.LinkUp, nil},
		{nichw.Down, nichw.LinkUp, []string{"!state_down"}},
		{nichw.Down, nichw.Disabled, []string{"!phys_state_disabled", "!state_down"}},
		{nichw.Down, nichw.Polling, []string{"phys_state_polling", "!state_down"}},
		{nichw.Init, nichw.LinkUp, []string{"state_init"}},
		{nichw.Armed, nichw.LinkUp, []string{"state_armed"}},
		{nichw.Active, nichw.LinkErrorRecovery, []string{"!phys_state_link_error_recovery"}},
		{nichw.Down, nichw.Training, []string{"phys_state_training", "!state_down"}},
		{nichw.Active, nichw.PhyTest, nil},
		{nichw.Active, nichw.Sleep, nil},
		{nichw.StateUnknown, nichw.PhysUnknown, nil},
	} {
		b := h100(t, nil)
		b.run(2 * time.Second)
		b.port("mlx5_2").State, b.port("mlx5_2").Phys = tt.state, tt.phys
		b.run(3 * time.Second)
		var want []string
		for _, w := range tt.want {
			want = append(want, w+" of mlx5_2_port1")
		}
		b.want(fmt.Sprintf("%s, %s", tt.state, tt.phys), want...)
	}
}

func TestRule5InitForTooLongIsStuck(t *testing.T) {
	b := h100(t, nil)
	b.port("mlx5_2").State = nichw.Init
	b.run(29 * time.Second)
	b.want("at first sight, and 29 s of it")
	b.run(3 * time.Second)
	b.want("32 s of it", "state_init_stuck of mlx5_2_port1")
	b.port("mlx5_2").State = nichw.Active
	b.run(2 * time.Second)
	b.want("over", "-state_init of mlx5_2_port1", "-state_init_stuck of mlx5_2_port1")
}

func TestRule7Rates(t *testing.T) {
	table := func(gpu string) func(*Config) {
		return func(c *Config) {
			c.GPU = gpu
			c.Products = []Product{{"a100", 1, 200e9}, {"H100", 8, 400e9}, {"GB200", 8, 400e9}, {"B200", 8, 800e9}}
		}
	}
	for _, tt := range []struct {
		name   string
		config func(*Config)
		edit   func(*bench)
		want   []string
	}{
		{"the mode of its role", nil, func(b *bench) { b.port("mlx5_5").Rate = rate(200) }, []string{"!rate_below_expected of mlx5_5_port1"}},
		{"another role has another rate", nil, func(*bench) {}, nil},
		{"two NICs have no mode", nil, func(b *bench) { b.port("mlx5_9").Rate = rate(100) }, nil},
		{"all slow alike, and no table", nil, func(b *bench) {
			for i := range 8 {
				b.port(fmt.Sprintf("mlx5_%d", i)).Rate = rate(200)
			}
		}, nil},
		{"one slow of the table's", table("NVIDIA H100 80GB HBM3"), func(b *bench) { b.port("mlx5_0").Rate = rate(100) }, []string{"!rate_below_expected of mlx5_0_port1"}},
		{"a longer match counts", table("NVIDIA GB200"), func(*bench) {}, nil},
		{"all slow, and a table", table("nvidia b200"), func(*bench) {}, nil}, // seeded below
		{"no line for it", table("X100"), func(b *bench) { b.port("mlx5_5").Rate = rate(200) }, []string{"!rate_below_expected of mlx5_5_port1"}},
		{"faster is fine", nil, func(b *bench) { b.port("mlx5_5").Rate = rate(800) }, nil},
		{"not known is not slow", nil, func(b *bench) { b.port("mlx5_5").Rate = nil }, nil},
		{"of a link that is being set up", nil, func(b *bench) { b.port("mlx5_5").Rate, b.port("mlx5_5").State = rate(10), nichw.Armed }, []string{"state_armed of mlx5_5_port1"}},
	} {
		b := h100(t, tt.config)
		b.run(3 * time.Second)
		b.want(tt.name + ", before")
		tt.edit(b)
		b.poll(time.Second)
		if tt.name == "the mode of its role" {
			b.want("one poll")
		}
		b.poll(time.Second)
		b.want(tt.name, tt.want...)
	}
	b := h100(t, table("NVIDIA B200"))
	b.run(3 * time.Second)
	if f := b.m.OpenFindings(); len(f) != 8 {
		t.Errorf("eight ports at half of what the table has: %+v", f)
	}
	if want, have, ok := b.m.PortCounts(); want != 8 || have != 8 || !ok {
		t.Errorf("%d of %d ports, %v", have, want, ok)
	}
	// A ninth port of the same board is a spare one, and one of the nine is slow.
	b = h100(t, table("NVIDIA H100"))
	spare := b.p.Devices[0]
	spare.Name, spare.Ports = "mlx5_20", slices.Clone(spare.Ports)
	b.p.Devices = append(b.p.Devices, spare)
	b.run(3 * time.Second)
	b.port("mlx5_6").Rate = rate(200)
	b.run(3 * time.Second)
	b.want("a spare port", "!rate_below_expected of mlx5_6_port1")
}

func TestRule8WhatIsNotKnownBeginsAndEndsNothing(t *testing.T) {
	b := h100(t, nil)
	b.run(2 * time.Second)
	b.port("mlx5_0").State = nichw.Down
	b.run(2 * time.Second)
	b.want("down", "!state_down of mlx5_0_port1")
	b.port("mlx5_0").State, b.port("mlx5_0").Phys = nichw.StateUnknown, nichw.PhysUnknown
	b.run(10 * time.Second)
	b.want("not known")
	if len(b.m.OpenFindings()) != 1 {
		t.Errorf("%+v", b.m.OpenFindings())
	}
	b.port("mlx5_0").State, b.port("mlx5_0").Phys = nichw.Active, nichw.LinkUp
	b.run(2 * time.Second)
	b.want("up", "-state_down of mlx5_0_port1")
}

// TestRule9Thresholds checks the table of counters: each rule just below and just above.
func TestRule9Thresholds(t *testing.T) {
	for _, tt := range []struct {
		counter string
		each    uint64 // growth a poll of a second
		polls   int
		want    []string
	}{
		{"link_downed", 1, 1, []string{"!link_downed"}},
		{"excessive_buffer_overrun_errors", 1, 1, []string{"!excessive_buffer_overrun_errors"}},
		{"local_link_integrity_errors", 1, 1, []string{"!local_link_integrity_errors"}},
		{"req_rnr_retries_exceeded", 1, 1, []string{"!req_rnr_retries_exceeded"}},
		{"req_transport_retries_exceeded", 1, 1, []string{"!req_transport_retries_exceeded"}},
		{"rnr_nak_retry_err", 50, 20, nil}, // retries within the limit
		{"symbol_error", 1, 1, nil},        // the hourly formula of a short poll
		{"symbol_error", 120, 1, []string{"symbol_error"}},
		{"symbol_error", 4, 30, nil},
		{"symbol_error", 4, 31, []string{"!symbol_error_hourly"}},
		{"link_error_recovery", 5, 1, nil},
		{"link_error_recovery", 6, 1, []string{"link_error_recovery"}},
		{"port_rcv_errors", 10, 15, nil},
		{"port_rcv_errors", 11, 15, []string{"port_rcv_errors"}},
		{"local_ack_timeout_err", 1, 15, nil},
		{"local_ack_timeout_err", 2, 15, []string{"local_ack_timeout_err"}},
		{"port_xmit_discards", 100, 15, nil},
		{"port_xmit_discards", 101, 15, []string{"port_xmit_discards"}},
		{"roce_slow_restart", 10, 15, nil},
		{"roce_slow_restart", 11, 15, []string{"roce_slow_restart"}},
		{"out_of_sequence", 100, 15, nil},
		{"out_of_sequence", 101, 15, []string{"out_of_sequence"}},
		{"port_xmit_wait", 10000, 15, nil},
		{"port_xmit_wait", 10001, 15, []string{"port_xmit_wait"}},
		{"port_rcv_data", 1 << 40, 15, nil},
	} {
		b := h100(t, nil)
		b.count("mlx5_0", tt.counter, 0)
		b.run(2 * time.Second)
		for range tt.polls {
			b.count("mlx5_0", tt.counter, tt.each)
			b.poll(time.Second)
		}
		b.run(15 * time.Second)
		var want []string
		for _, w := range tt.want {
			want = append(want, w+" of mlx5_0_port1")
		}
		b.want(fmt.Sprintf("%s by %d, %d times", tt.counter, tt.each, tt.polls), want...)
	}
}

func TestRule9AShareOfTime(t *testing.T) {
	for _, tt := range []struct {
		each uint64
		want []string
	}{{9_000_000, []string{"port_xmit_wait of mlx5_0_port1"}}, {11_000_000, []string{"port_xmit_wait of mlx5_0_port1", "port_xmit_wait_share of mlx5_0_port1"}}} {
		b := h100(t, func(c *Config) { c.XmitWaitTick = 10 * time.Nanosecond })
		b.count("mlx5_0", "port_xmit_wait", 0)
		b.run(2 * time.Second)
		for range 15 {
			b.count("mlx5_0", "port_xmit_wait", tt.each)
			b.poll(time.Second)
		}
		b.want(fmt.Sprint(tt.each), tt.want...)
	}
}

func TestRule9Carrier(t *testing.T) {
	b := h100(t, nil)
	b.run(2 * time.Second)
	*b.p.Interfaces[0].Changes += 2
	b.run(5 * time.Second)
	b.want("down and up")
	*b.p.Interfaces[0].Changes++
	b.run(2 * time.Second)
	b.want("and down", "carrier_changes of eno1")
}

func TestRule10ResetsReleaseBreaches(t *testing.T) {
	b := h100(t, nil)
	b.run(2 * time.Second)
	b.count("mlx5_0", "link_downed", 3)
	b.run(2 * time.Second)
	b.want("breach", "!link_downed of mlx5_0_port1")
	b.run(10 * time.Minute)
	b.want("latched")
	b.port("mlx5_0").Counters[0].Value = 1 // smaller: reset, and one since, or before
	b.run(time.Minute)
	b.want("reset", "-link_downed of mlx5_0_port1")
	b.count("mlx5_0", "link_downed", 1)
	b.run(2 * time.Second)
	b.want("and again", "!link_downed of mlx5_0_port1")
	b.take(b.m.Reset(PortEntity("mlx5_0", 1), b.p.At))
	b.want("somebody reset it", "-link_downed of mlx5_0_port1")
	b.run(2 * time.Minute)
	b.want("it stays so")
}

func TestRule11Saturation(t *testing.T) {
	b := h100(t, nil)
	for counter, v := range map[string]uint64{"symbol_error": 65535, "link_downed": 254} {
		for i := range b.port("mlx5_0").Counters {
			if c := &b.port("mlx5_0").Counters[i]; c.Name == counter {
				c.Value = v
			}
		}
	}
	b.run(2 * time.Second)
	if e := PortEntity("mlx5_0", 1); !b.m.IsSaturated(e, "symbol_error") || b.m.IsSaturated(e, "link_downed") || b.m.IsSaturated(PortEntity("mlx5_1", 1), "symbol_error") {
		t.Error("symbol_error of mlx5_0 alone is at its end")
	}
	b.count("mlx5_0", "link_downed", 1)
	b.run(2 * time.Second)
	if !b.m.IsSaturated(PortEntity("mlx5_0", 1), "link_downed") {
		t.Error("link_downed is at its end")
	}
}

func TestRule12ARestartForgetsNothingOfThisBoot(t *testing.T) {
	b := h100(t, nil)
	b.run(2 * time.Second)
	b.port("mlx5_0").State = nichw.Down
	b.count("mlx5_1", "link_downed", 1)
	b.run(2 * time.Second)
	b.want("before", "!link_downed of mlx5_1_port1", "!state_down of mlx5_0_port1")
	text, err := json.Marshal(b.m.SaveMemory())
	if err != nil {
		t.Fatal(err)
	}
	again := func(boot string) *bench {
		var remembered *Memory
		if err := json.Unmarshal(text, &remembered); err != nil {
			t.Fatal(err)
		}
		n := h100(t, nil)
		n.p.At, n.p.Boot = b.p.At, boot
		n.port("mlx5_0").State = nichw.Down
		n.count("mlx5_1", "link_downed", 1)
		n.m = New(n.m.c, boot, remembered)
		return n
	}
	n := again("boot1")
	n.run(3 * time.Second)
	n.want("nothing is news")
	n.port("mlx5_0").State = nichw.Active
	n.port("mlx5_2").State = nichw.Down // also between polls
	n.count("mlx5_3", "link_downed", 1)
	n.run(2 * time.Second)
	n.want("what changed is", "-state_down of mlx5_0_port1", "!link_downed of mlx5_3_port1", "!state_down of mlx5_2_port1")

	n = again("boot1")
	n.port("mlx5_4").State = nichw.Down
	n.count("mlx5_5", "link_downed", 2)
	n.run(2 * time.Second)
	n.want("what changed between two runs", "!link_downed of mlx5_5_port1", "!state_down of mlx5_4_port1")

	n = again("boot2")
	n.port("mlx5_6").State = nichw.Down
	n.run(3 * time.Second)
	n.want("another boot: first sight")

	b.p.Boot = "boot3" // seen by the monitor itself
	b.port("mlx5_7").State = nichw.Down
	b.run(3 * time.Second)
	b.want("another boot under the same run")
	if New(DefaultConfig(), "", nil).SaveMemory() != nil {
		t.Error("without a boot identifier nothing may be remembered")
	}
}

func TestRule13QuietOnes(t *testing.T) {
	b := h100(t, func(c *Config) {
		c.Management = []*regexp.Regexp{regexp.MustCompile(`^mlx5_9$`)}
		c.Excluded = append(c.Excluded, regexp.MustCompile(`^eno1$`))
	})
	b.run(2 * time.Second)
	b.port("mlx5_9").State = nichw.Down
	b.p.Interfaces[0].OperState = "down"
	b.run(2 * time.Second)
	b.want("management and excluded")
}

func TestRule14WhatRecursIsCounted(t *testing.T) {
	b := h100(t, nil)
	port := PortEntity("mlx5_0", 1)
	if _, ok := b.m.CrossingCount(port); ok {
		t.Error("counted before anything was read")
	}
	b.run(time.Second)
	for i, want := range []uint64{1, 2, 3} {
		b.count("mlx5_0", "symbol_error", 101) // 10.1 a second over ten seconds
		b.run(time.Minute)                     // and no more: it is below again
		if n, ok := b.m.CrossingCount(port); !ok || n != want {
			t.Errorf("burst %d: %d crossings (%v), want %d", i, n, ok, want)
		}
	}
	b.want("reported once, since it is latched; the hour's sum is fatal", "symbol_error of mlx5_0_port1", "!symbol_error_hourly of mlx5_0_port1")
	for range 30 { // what lasts is one
		b.count("mlx5_0", "symbol_error", 11)
		b.run(time.Second)
	}
	if n, _ := b.m.CrossingCount(port); n != 4 {
		t.Errorf("%d crossings of what lasts, want 4", n)
	}
	b.count("mlx5_0", "link_downed", 1) // fatal: reported each time anyway
	b.run(time.Second)
	if n, _ := b.m.CrossingCount(port); n != 4 {
		t.Errorf("%d crossings, want 4: a fatal rule is none", n)
	}
	if n, ok := b.m.CrossingCount(PortEntity("mlx5_1", 1)); n != 0 || !ok {
		t.Errorf("another port: %d %v", n, ok)
	}
}

func TestGIDTables(t *testing.T) {
	b := h100(t, nil)
	for i := range 8 {
		p := b.port(fmt.Sprintf("mlx5_%d", i))
		p.LinkLayer, p.GIDs, p.GIDsKnown = "Ethernet", addresses(4), true
	}
	b.run(2 * time.Second)
	b.port("mlx5_1").GIDs = nil
	b.port("mlx5_2").GIDs = addresses(1)
	b.port("mlx5_3").GIDs, b.port("mlx5_3").GIDsKnown = nil, false
	v1 := addresses(2)
	v1[1].Type = "IB/RoCE v1"
	b.port("mlx5_4").GIDs = v1
	b.run(2 * time.Second)
	b.want("tables", "gid_table_empty of mlx5_1_port1", "gid_ipv4_missing of mlx5_2_port1", "gid_ipv4_missing of mlx5_4_port1")
	b.p.Parts = nichw.ReadStates // tables are read less often than states
	b.run(5 * time.Second)
	b.want("states only")
	b.port("mlx5_1").GIDs = addresses(2)
	b.run(2 * time.Second)
	b.want("filled", "-gid_table_empty of mlx5_1_port1")
}

// TestMissingIPv4NeedsTwoAndMostOfTheOthers: one port without an IPv4 GID stands out only if at least two others, and
// more than not, have one.
func TestMissingIPv4NeedsTwoAndMostOfTheOthers(t *testing.T) {
	for _, tt := range []struct {
		with, without int // other ports
		want          bool
	}{{1, 0, false}, {2, 0, true}, {2, 1, true}, {2, 2, false}, {3, 2, true}} {
		b := h100(t, nil)
		for i := range 8 {
			p := b.port(fmt.Sprintf("mlx5_%d", i))
			p.LinkLayer, p.GIDs, p.GIDsKnown = "Ethernet", addresses(4), true
		}
		b.run(2 * time.Second)
		for i := range 8 {
			p := b.port(fmt.Sprintf("mlx5_%d", i))
			p.GIDsKnown = i <= tt.with+tt.without
			if i == 0 || i > tt.with {
				p.GIDs = addresses(1)
			}
		}
		b.run(2 * time.Second)
		said := slices.Contains(b.events, "gid_ipv4_missing of mlx5_0_port1")
		if said != tt.want {
			t.Errorf("%d other ports have one and %d have none: reported: %v, want %v (%q)", tt.with, tt.without, said, tt.want, b.events)
		}
	}
}

func TestInterfaces(t *testing.T) {
	b := h100(t, nil)
	b.p.Interfaces = append(b.p.Interfaces, nichw.Interface{Name: "ib0", Device: "mlx5_0", OperState: "down"}, nichw.Interface{Name: "p0", Device: "mlx5_8", Master: "bond0", OperState: "up"})
	b.run(2 * time.Second)
	b.want("of an RDMA device, and not up")
	b.p.Interfaces[0].OperState, b.p.Interfaces[2].OperState = "down", "lowerlayerdown"
	b.run(2 * time.Second)
	b.want("an interface and a member of a bond", "!state_down of eno1", "!state_down of p0")
	b.p.Interfaces[0].OperState = "up"
	b.run(2 * time.Second)
	b.want("up again", "-state_down of eno1")
}

func TestConfigsThatAreRefused(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"every: a duration above 0": func(c *Config) { c.Every = 0 },
		"misses: 1 or more":         func(c *Config) { c.Misses = 0 },
		"products[0]: match":        func(c *Config) { c.Products = []Product{{}} },
		"thresholds[0].counter":     func(c *Config) { c.Thresholds = []Threshold{{}} },
		"thresholds[0].sort":        func(c *Config) { c.Thresholds = []Threshold{{Counter: "x", Sort: "y"}} },
		"thresholds[0].window":      func(c *Config) { c.Thresholds = []Threshold{{Counter: "x", Sort: Rate}} },
		"thresholds[1].code: \"x\" is": func(c *Config) {
			c.Thresholds = []Threshold{{Counter: "x", Sort: Rate, Window: time.Minute}, {Counter: "x", Sort: Growth, Window: time.Minute}}
		},
	} {
		c := DefaultConfig()
		edit(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestEveryReportedFindingEnds checks a property: whatever the polls contain, events of one finding alternate, and
// once all is well for a while only latched breaches are left.
func TestEveryReportedFindingEnds(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := h100(t, nil)
		b.run(2 * time.Second)
		good := b.p
		holds := map[string]bool{}
		check := func() {
			for _, e := range b.raw {
				id := e.EntitiesImpacted[0].Value + " " + e.ErrorCode[0]
				if e.IsHealthy == !holds[id] {
					t.Fatalf("seed %d: %+v, and it held: %v", seed, e, holds[id])
				}
				holds[id] = !e.IsHealthy
			}
			b.raw = nil
		}
		for range 200 {
			b.p = nichw.Poll{At: b.p.At, Boot: good.Boot, Parts: nichw.ReadStates, DevicesKnown: r.IntN(10) > 0, InterfacesKnown: true, Interfaces: slices.Clone(good.Interfaces)}
			for _, d := range good.Devices {
				if r.IntN(20) == 0 {
					continue
				}
				d.Ports = slices.Clone(d.Ports)
				if r.IntN(3) == 0 {
					d.Ports[0].State, d.Ports[0].Phys = nichw.State(r.IntN(6)), nichw.Phys(r.IntN(8))
				}
				b.p.Devices = append(b.p.Devices, d)
			}
			b.poll(b.m.NextPoll())
			check()
		}
		at := b.p.At
		b.p = good
		b.p.At = at
		b.run(10 * time.Second)
		check()
		maps.DeleteFunc(holds, func(_ string, v bool) bool { return !v })
		if len(holds) > 0 || len(b.m.OpenFindings()) > 0 {
			t.Fatalf("seed %d: all is well, and %v hold, %+v", seed, holds, b.m.OpenFindings())
		}
	}
}

func parse(s string) netip.Addr { return netip.MustParseAddr(s) }
