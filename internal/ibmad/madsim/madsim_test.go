package madsim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
)

var ctx = context.Background()

func attach(t *testing.T, f *Fabric, node string, c ibmad.Config) *ibmad.Client {
	client := ibmad.NewClient(f.AttachTransport(node), c)
	t.Cleanup(func() { client.Close() })
	return client
}

func path(t *testing.T, ports ...uint8) ibmad.Address {
	t.Helper()
	var p ibmad.Path
	for _, port := range ports {
		var err error
		if p, err = p.AppendHop(port); err != nil {
			t.Fatal(err)
		}
	}
	return ibmad.AlongRoute(p)
}

func mustDo(t *testing.T, c *ibmad.Client, r ibmad.Request) *ibmad.Data {
	t.Helper()
	result, err := c.Do(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return result.Data()
}

// Every LID can be reached from everywhere by the tables, and the tables can be read.
func TestRoutesReachEveryLID(t *testing.T) {
	f := FatTree(4, 2, 3, Options{LMC: 1})
	for _, from := range []string{"h0", "h11", "leaf2", "spine1"} {
		c := attach(t, f, from, ibmad.Config{Timeout: time.Minute})
		for _, n := range f.ListNodes() {
			for i := range 1 << n.LMC {
				var got ibmad.NodeInfo
				got.Decode(mustDo(t, c, ibmad.GetNodeInfo(ibmad.ToLID(n.LID+ibmad.LID(i)))))
				if got.GUID != n.GUID || got.Type != n.Type || got.Ports != n.Ports {
					t.Errorf("from %s to lid %d: %+v, want %+v", from, n.LID, got, n)
				}
			}
		}
	}
	c := attach(t, f, "h0", ibmad.Config{})
	var info ibmad.SwitchInfo
	leaf := f.NodeByName("leaf1")
	info.Decode(mustDo(t, c, ibmad.GetSwitchInfo(ibmad.ToLID(leaf.LID))))
	for lid := ibmad.LID(1); lid <= info.LinearTop; lid++ {
		var block ibmad.ForwardingBlock
		block.Decode(mustDo(t, c, ibmad.GetForwardingBlock(ibmad.ToLID(leaf.LID), uint16(lid/64))))
		if got, want := block[lid%64], f.ForwardingPort("leaf1", lid); got != want {
			t.Errorf("lid %d leaves by %d, want %d", lid, got, want)
		}
	}
}

// Equal paths are shared.
func TestRoutesAreSpread(t *testing.T) {
	f := FatTree(2, 4, 8, Options{})
	uses := map[uint8]int{}
	for h := 8; h < 16; h++ {
		uses[f.ForwardingPort("leaf0", f.NodeByName(fmt.Sprintf("h%d", h)).LID)]++
	}
	for port := uint8(9); port <= 12; port++ {
		if uses[port] != 2 {
			t.Errorf("uplinks carry %v, want 2 each", uses)
		}
	}
}

func TestDirectedRoutes(t *testing.T) { synctest.Test(t, directedRoutes) }

func directedRoutes(t *testing.T) {
	f := FatTree(3, 2, 2, Options{})
	f.SetForwarding("leaf0", f.NodeByName("h0").LID, ibmad.NoRoute) // tables do not matter here
	c := attach(t, f, "h0", ibmad.Config{Retries: -1})
	for _, test := range []struct {
		to   ibmad.Address
		name string
		in   uint8
	}{
		{path(t), "h0", 1}, {path(t, 1), "leaf0", 1}, {path(t, 1, 2), "h1", 1}, {path(t, 1, 4), "spine1", 1}, {path(t, 1, 4, 3), "leaf2", 4},
	} {
		var name ibmad.NodeDescription
		name.Decode(mustDo(t, c, ibmad.GetNodeDescription(test.to)))
		var info ibmad.NodeInfo
		info.Decode(mustDo(t, c, ibmad.GetNodeInfo(test.to)))
		if string(name) != test.name || info.LocalPort != test.in {
			t.Errorf("%v: %s by port %d, want %s by %d", test.to, name, info.LocalPort, test.name, test.in)
		}
	}
	for _, nowhere := range []ibmad.Address{path(t, 2), path(t, 1, 9), path(t, 1, 2, 1)} {
		if _, err := c.Do(ctx, ibmad.GetNodeInfo(nowhere)); !errors.Is(err, ibmad.ErrTimeout) {
			t.Errorf("%v: %v, want %v", nowhere, err, ibmad.ErrTimeout)
		}
	}
}

// A link that is down carries nothing and is down at both ends; one that is up again carries LIDs only after
// RunSubnetManager.
func TestUnlinkRelinkReroute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := FatTree(2, 2, 1, Options{})
		c := attach(t, f, "h0", ibmad.Config{})
		h1 := f.NodeByName("h1")
		up := f.ForwardingPort("leaf0", h1.LID)
		spine, spinePort, _ := f.PeerOf("leaf0", up)
		state := func() (s ibmad.PortInfo) {
			s.Decode(mustDo(t, c, ibmad.GetPortInfo(path(t, 1), up)))
			return s
		}
		changed := func() bool {
			var s ibmad.SwitchInfo
			s.Decode(mustDo(t, c, ibmad.GetSwitchInfo(path(t, 1))))
			return s.StateChange
		}
		reachable := func() bool {
			_, err := c.Do(ctx, ibmad.GetNodeInfo(ibmad.ToLID(h1.LID)))
			if err != nil && !errors.Is(err, ibmad.ErrTimeout) {
				t.Fatal(err)
			}
			return err == nil
		}
		if !reachable() || state().State != ibmad.PortActive || changed() {
			t.Error("the fabric does not begin whole")
		}
		f.SetLinkDown("leaf0", up)
		if s := state(); reachable() || s.State != ibmad.PortDown || s.PhysState != ibmad.PhysPolling || !changed() {
			t.Errorf("after Unlink: %v, %v", s.State, s.PhysState)
		}
		for _, end := range []struct {
			name string
			port uint8
		}{{"leaf0", up}, {spine, spinePort}} {
			if n := f.CounterValue(end.name, end.port, ibmad.AttrPortCounters, "LinkDownedCounter", 0); n != 1 {
				t.Errorf("%s counts %d LinkDowned, want 1", end.name, n)
			}
		}
		if _, err := c.Do(ctx, ibmad.GetNodeInfo(path(t, 1, up))); !errors.Is(err, ibmad.ErrTimeout) {
			t.Errorf("a directed route over the link: %v, want %v", err, ibmad.ErrTimeout)
		}
		f.RunSubnetManager()
		if now := f.ForwardingPort("leaf0", h1.LID); now == up || !reachable() || changed() {
			t.Errorf("Reroute left %d by %d", h1.LID, now)
		}
		f.SetLinkUp("leaf0", up)
		f.SetForwarding("leaf0", h1.LID, up)
		if s := state().State; reachable() || s != ibmad.PortInit {
			t.Errorf("the link carries LIDs in state %v", s)
		}
		f.RunSubnetManager()
		f.SetForwarding("leaf1", f.NodeByName("h0").LID, ibmad.NoRoute)
		if reachable() {
			t.Error("an answer came back without a way")
		}
		f.RunSubnetManager()
		if s := state().State; !reachable() || s != ibmad.PortActive {
			t.Errorf("after Reroute: %v", s)
		}
	})
}

func read(t *testing.T, c *ibmad.Client, lid ibmad.LID, port uint8, a ibmad.Attribute, name string, n uint8) uint64 {
	t.Helper()
	d := mustDo(t, c, ibmad.GetCounters(a, lid, port))
	i := slices.IndexFunc(ibmad.CountersOf(a), func(c ibmad.Counter) bool { return c.Name == name && c.Number == n })
	return ibmad.CountersOf(a)[i].DecodeValue(d)
}

func TestCountersHaveTheirWidths(t *testing.T) {
	f := FatTree(2, 1, 1, Options{})
	c := attach(t, f, "h0", ibmad.Config{})
	lid := f.NodeByName("spine0").LID
	for _, test := range []struct {
		name         string
		narrow, wide uint64
	}{
		{"LocalLinkIntegrityErrors", 15, 300},
		{"LinkDownedCounter", 255, 300},
		{"SymbolErrorCounter", 65535, 70000},
		{"PortXmitData", 1<<32 - 1, 1 << 33},
	} {
		f.AddEvents("spine0", 2, test.name, 0, test.wide-1)
		f.AddEvents("spine0", 2, test.name, 0, 1)
		if got := read(t, c, lid, 2, ibmad.AttrPortCounters, test.name, 0); got != test.narrow {
			t.Errorf("%s is %d, want %d", test.name, got, test.narrow)
		}
		if got := read(t, c, lid, 2, ibmad.AttrPortCountersExtended, test.name, 0); got != test.wide {
			t.Errorf("wide %s is %d, want %d", test.name, got, test.wide)
		}
	}
	f.SetCounter("spine0", 2, ibmad.AttrPortCountersExtended, "PortRcvData", 0, 1<<64-2)
	f.AddEvents("spine0", 2, "PortRcvData", 0, 5)
	if got := read(t, c, lid, 2, ibmad.AttrPortCountersExtended, "PortRcvData", 0); got != 1<<64-1 {
		t.Errorf("64 bits turned over to %d", got)
	}
	if got := read(t, c, lid, 1, ibmad.AttrPortCountersExtended, "PortRcvData", 0); got != 0 {
		t.Errorf("port 1 counts what port 2 did: %d", got)
	}
	f.ResetCounters("spine0", 2)
	if got := read(t, c, lid, 2, ibmad.AttrPortCountersExtended, "PortRcvData", 0); got != 0 {
		t.Errorf("%d after Reset", got)
	}
	f.AddEvents("spine0", 2, "PortVLXmitWait", 7, 1)
	f.RebootNode("spine0")
	if got := read(t, c, lid, 2, ibmad.AttrPortVLXmitWait, "PortVLXmitWait", 7); got != 0 {
		t.Errorf("%d after Reboot", got)
	}
	if got := f.CounterValue("leaf1", 2, ibmad.AttrPortCounters, "LinkDownedCounter", 0); got != 1 {
		t.Errorf("the other end counts %d, want 1", got)
	}
}

func TestVendors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := FatTree(2, 1, 1, Options{})
		c := attach(t, f, "h0", ibmad.Config{})
		spine := f.NodeByName("spine0").LID
		f.AddEvents("spine0", 1, "PortUnicastXmitPkts", 0, 7)
		f.AddEvents("spine0", 1, "PortXmitPkts", 0, 9)
		f.AddEvents("spine0", 1, "PortXmitWait", 0, 11)
		f.AddEvents("spine0", 1, "FECCorrectableSymbolCtr", 3, 13)
		symbols := ibmad.ReedSolomonCounters()[2+3]
		if got := symbols.DecodeValue(mustDo(t, c, ibmad.GetCounters(ibmad.AttrPortExtendedSpeeds, spine, 1))); got != 13 {
			t.Errorf("%v is %d, want 13", &symbols, got)
		}
		if got := read(t, c, spine, 1, ibmad.AttrPortCountersExtended, "PortXmitWait", 0); got != 11 {
			t.Errorf("wide PortXmitWait is %d, want 11", got)
		}

		var extended ibmad.PortInfoExtended
		extended.Decode(mustDo(t, c, ibmad.GetPortInfoExtended(ibmad.ToLID(spine), 1)))
		if extended.FECMode != ibmad.FECReedSolomon2 || extended.Capabilities != ibmad.CapExtendedFECMode {
			t.Errorf("%+v", extended)
		}

		f.SetVendor("spine0", QDR)
		if _, err := c.Do(ctx, ibmad.GetPortInfoExtended(ibmad.ToLID(spine), 1)); !errors.Is(err, ibmad.ErrUnsupported) {
			t.Errorf("PortInfoExtended: %v, want %v", err, ibmad.ErrUnsupported)
		}
		for name, want := range map[string]uint64{"PortUnicastXmitPkts": 0, "PortXmitPkts": 9, "PortXmitWait": 0} {
			if got := read(t, c, spine, 1, ibmad.AttrPortCountersExtended, name, 0); got != want {
				t.Errorf("%s is %d, want %d", name, got, want)
			}
		}
		if _, err := c.Do(ctx, ibmad.GetCounters(ibmad.AttrPortXmitDiscardDetails, spine, 1)); !errors.Is(err, ibmad.ErrUnsupported) {
			t.Errorf("%v, want %v", err, ibmad.ErrUnsupported)
		}

		f.SetVendor("spine0", DDR)
		if _, err := c.Do(ctx, ibmad.GetCounters(ibmad.AttrPortCountersExtended, spine, 1)); !errors.Is(err, ibmad.ErrTimeout) {
			t.Errorf("%v, want %v", err, ibmad.ErrTimeout)
		}
		var info ibmad.ClassPortInfo
		info.Decode(mustDo(t, c, ibmad.GetClassPortInfo(spine)))
		if info.HasExtendedCounters() {
			t.Errorf("%+v has wide counters", info)
		}
		if _, err := c.Do(ctx, ibmad.GetCounters(ibmad.AttrPortCounters, spine, 9)); err == nil || errors.Is(err, ibmad.ErrUnsupported) {
			t.Errorf("port 9: %v, want a refusal of the value", err)
		}
	})
}

func TestMKeyProtects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := FatTree(2, 1, 1, Options{})
		knows := attach(t, f, "h0", ibmad.Config{MKey: 0x77})
		not := attach(t, f, "h1", ibmad.Config{})
		key := func(c *ibmad.Client) (ibmad.MKey, error) {
			r, err := c.Do(ctx, ibmad.GetPortInfo(ibmad.Address{}, 1))
			var info ibmad.PortInfo
			info.Decode(r.Data())
			return info.MKey, err
		}
		for protection, want := range []struct {
			key ibmad.MKey
			err error
		}{{0x77, nil}, {0, nil}, {0, ibmad.ErrTimeout}} {
			f.SetMKey(0x77, uint8(protection))
			if got, err := key(not); got != want.key || !errors.Is(err, want.err) {
				t.Errorf("protection %d: key %x, %v; want %x, %v", protection, uint64(got), err, uint64(want.key), want.err)
			}
			if got, err := key(knows); got != 0x77 || err != nil {
				t.Errorf("protection %d, with the key: %x, %v", protection, uint64(got), err)
			}
		}
		// Performance management has no M_Key.
		mustDo(t, not, ibmad.GetClassPortInfo(f.NodeByName("leaf0").LID))
	})
}

func TestSilenceAndLatencyAndLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := FatTree(2, 1, 1, Options{Latency: time.Millisecond})
		c := attach(t, f, "h0", ibmad.Config{Timeout: time.Second, Retries: -1})
		r, err := c.Do(ctx, ibmad.GetNodeInfo(ibmad.ToLID(f.NodeByName("h1").LID)))
		if took := r.Received.Sub(r.Sent); err != nil || took != 10*time.Millisecond {
			t.Errorf("%v, %v: want four links and an agent both ways, 10ms", took, err)
		}
		f.SetSilent("leaf0", true)
		r, err = c.Do(ctx, ibmad.GetNodeInfo(path(t, 1)))
		if took := r.Received.Sub(r.Sent); !errors.Is(err, ibmad.ErrTimeout) || took != time.Second {
			t.Errorf("silent: %v, %v", took, err)
		}
		mustDo(t, c, ibmad.GetNodeInfo(ibmad.ToLID(f.NodeByName("h1").LID)))
		f.SetSilent("leaf0", false)
		f.SetLoss("leaf0", 1)
		if _, err := c.Do(ctx, ibmad.GetNodeInfo(path(t, 1))); !errors.Is(err, ibmad.ErrTimeout) {
			t.Errorf("lost: %v", err)
		}
		if n := f.CounterValue("leaf0", 1, ibmad.AttrPortCounters, "VL15Dropped", 0); n != 1 {
			t.Errorf("%d VL15Dropped, want 1", n)
		}
	})
}

// There can be forty clients at once, more than ibsim supports.
func TestManyClients(t *testing.T) {
	f := FatTree(4, 2, 10, Options{})
	done := make(chan error)
	for h := range 40 {
		go func() {
			c := ibmad.NewClient(f.AttachTransport(fmt.Sprintf("h%d", h)), ibmad.Config{Timeout: time.Minute})
			defer c.Close()
			var requests []ibmad.Request
			for _, n := range f.ListNodes() {
				requests = append(requests, ibmad.GetNodeInfo(ibmad.ToLID(n.LID)))
			}
			answered := 0
			err := c.DoAll(ctx, requests, func(r *ibmad.Result) []ibmad.Request {
				if r.Err == nil {
					answered++
				}
				return nil
			})
			if err == nil && answered != len(requests) {
				err = fmt.Errorf("%d of %d answered", answered, len(requests))
			}
			done <- err
		}()
	}
	for range 40 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestNameThatIsNotThere(t *testing.T) {
	f := FatTree(1, 1, 1, Options{})
	for what, use := range map[string]func(){
		"node": func() { f.NodeByName("x") }, "port": func() { f.AddEvents("h0", 7, "VL15Dropped", 0, 1) }, "counter": func() { f.AddEvents("h0", 1, "x", 0, 1) },
		"cable": func() { f.AddSwitch("y", 1); f.SetLinkDown("y", 1) }, "twice": func() { f.AddHCA("h0") }, "cabled": func() { f.LinkPorts("h0", 1, "y", 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			use()
		}()
	}
}
