package ibmad

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// dial attaches a client to a node of the fabric, for the length of the test.
func dial(tb testing.TB, f *ibtest.Fabric, node string, c Config) *Client {
	tb.Helper()
	t, err := DialIbsim(f.SocketName(), node)
	if err != nil {
		tb.Fatal(err)
	}
	client := NewClient(t, c)
	tb.Cleanup(func() {
		if err := client.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return client
}

func TestIbsimAnswers(t *testing.T) {
	f := ibtest.Start(t, ibtest.FatTree(4, 2, 2), ibtest.Options{})
	c := dial(t, f, "h0", Config{})
	leaf, err := Path{}.AppendHop(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		to   Address
		want NodeInfo
	}{
		{Address{}, NodeInfo{Type: NodeHCA, Ports: 1, GUID: 0x100000, PortGUID: 0x100001, LocalPort: 1}},
		{AlongRoute(leaf), NodeInfo{Type: NodeSwitch, Ports: 4, GUID: 0x200000, PortGUID: 0x200000, LocalPort: 1}},
	} {
		r, err := c.Do(context.Background(), GetNodeInfo(test.to))
		if err != nil {
			t.Fatal(err)
		}
		var got NodeInfo
		got.Decode(r.Data())
		if got.Type != test.want.Type || got.Ports != test.want.Ports || got.GUID != test.want.GUID || got.PortGUID != test.want.PortGUID || got.LocalPort != test.want.LocalPort {
			t.Errorf("%v is %+v, want %+v", test.to, got, test.want)
		}
	}
}

// Injected losses are reported with status 110, and the request is repeated. A destination without a route is a
// loss too.
func TestIbsimLosses(t *testing.T) {
	f := ibtest.Start(t, ibtest.FatTree(2, 1, 2), ibtest.Options{})
	c := dial(t, f, "h0", Config{Retries: 30})
	f.RunConsole(`Error "leaf1"[0] 60`)
	leaf1 := far(t, c, 0x200001)
	for range 20 {
		if _, err := c.Do(context.Background(), GetSwitchInfo(ToLID(leaf1))); err != nil {
			t.Error(err)
		}
	}
	if s := c.Stats(); s.Lost == 0 || s.Recovered == 0 || s.Answered < 20 || s.TimedOut != 0 || s.Late != 0 {
		t.Errorf("%+v: want losses, and everything answered in the end", s)
	}
	start := time.Now()
	if _, err := c.Do(context.Background(), GetSwitchInfo(ToLID(99))); !errors.Is(err, ErrTimeout) {
		t.Errorf("a LID without a port: %v", err)
	}
	if took := time.Since(start); took > c.Config().Timeout {
		t.Errorf("%v until ibsim's refusals were enough, want no time-out in it", took)
	}
}

// far finds the LID of a node by its GUID.
func far(t *testing.T, c *Client, guid GUID) (lid LID) {
	t.Helper()
	for l := LID(1); l < 20; l++ {
		r, err := c.Do(context.Background(), GetNodeInfo(ToLID(l)))
		var n NodeInfo
		if n.Decode(r.Data()); err == nil && n.GUID == guid {
			return l
		}
	}
	t.Fatalf("no LID has %v", guid)
	return 0
}

// ibsim has ten places; Close returns one.
func TestIbsimPlaces(t *testing.T) {
	f := ibtest.Start(t, ibtest.FatTree(1, 1, 1), ibtest.Options{NoSM: true})
	var places []*Ibsim
	for range 10 {
		p, err := DialIbsim(f.SocketName(), "h0")
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, p)
	}
	if _, err := DialIbsim(f.SocketName(), "h0"); !errors.Is(err, ErrIbsimRefused) {
		t.Errorf("the eleventh: %v, want %v", err, ErrIbsimRefused)
	}
	for range 3 {
		if err := places[4].Close(); err != nil {
			t.Fatal(err)
		}
	}
	again, err := DialIbsim(f.SocketName(), "h0")
	if err != nil {
		t.Fatal(err)
	}
	places[4] = again
	for i, p := range places {
		c := NewClient(p, Config{})
		if _, err := c.Do(context.Background(), GetNodeInfo(Address{})); err != nil {
			t.Errorf("place %d: %v", i, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := DialIbsim(f.SocketName(), "missing"); !errors.Is(err, ErrIbsimRefused) {
		t.Errorf("a node that is not there: %v, want %v", err, ErrIbsimRefused)
	}
	if _, err := DialIbsim(f.SocketName()+"x", "h0"); err == nil {
		t.Error("attached to a simulator that is not there")
	}
}

// Values set on the console arrive, and saturate at their limits.
func TestIbsimCounters(t *testing.T) {
	f := ibtest.Start(t, ibtest.FatTree(2, 1, 2), ibtest.Options{})
	c := dial(t, f, "h0", Config{})
	lid := far(t, c, 0x200001)
	for _, test := range []struct {
		attribute Attribute
		counter   string
		value     uint64
	}{
		{AttrPortCounters, "LocalLinkIntegrityErrors", 15}, {AttrPortCounters, "LinkDownedCounter", 255}, {AttrPortCounters, "SymbolErrorCounter", 65535},
		{AttrPortCounters, "PortXmitWait", 1<<32 - 1}, {AttrPortCountersExtended, "PortUnicastXmitPkts", 1<<63 + 5},
		{AttrPortXmitDiscardDetails, "PortSwHOQLifetimeLimitDiscards", 4711}, {AttrPortRcvErrorDetails, "PortLoopingErrors", 42},
		{AttrPortCountersExtended, "PortUnicastXmitPkts", 0},
	} {
		f.RunConsole(fmt.Sprintf(`PerformanceSet "leaf1"[3] %v.%s=%d`, test.attribute, test.counter, test.value))
		r, err := c.Do(context.Background(), GetCounters(test.attribute, lid, 3))
		if err != nil {
			t.Errorf("%v: %v", test.attribute, err)
			continue
		}
		for _, counter := range CountersOf(test.attribute) {
			if counter.Name == test.counter && counter.DecodeValue(r.Data()) != test.value {
				t.Errorf("%v is %d, want %d", &counter, counter.DecodeValue(r.Data()), test.value)
			}
		}
	}
	if _, err := c.Do(context.Background(), GetCounters(AttrPortCounters, lid, 99)); err == nil || errors.Is(err, ErrTimeout) {
		t.Errorf("port 99: %v, want a refusal", err)
	}
}

// With an ibsim that does not read, Send drops instead of waiting.
func TestIbsimThatDoesNotRead(t *testing.T) {
	name := fmt.Sprintf("graylink-test-%d", os.Getpid())
	control, err := net.ListenUnixgram("unixgram", simAddress(name, "ctl"))
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	data, err := net.ListenUnixgram("unixgram", simAddress(name, "out0"))
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	kinds := make(chan uint32, 10)
	go func() {
		defer close(kinds)
		for {
			b := make([]byte, simControlSize)
			_, from, err := control.ReadFromUnix(b)
			if err != nil {
				return
			}
			kinds <- binary.NativeEndian.Uint32(b[8:])
			binary.NativeEndian.PutUint32(b[16:], 0) // client 0
			from.Name += "\x00"                      // which the net package takes for the end
			if _, err := control.WriteToUnix(b, from); err != nil {
				return
			}
		}
	}()
	p, err := DialIbsim(name, "h0")
	if err != nil {
		t.Fatal(err)
	}
	var dropped error
	for i := 0; i < 10*p.MaxInFlight() && dropped == nil; i++ {
		dropped = p.Send(&MAD{}, ToLID(1), time.Second)
	}
	if !errors.Is(dropped, ErrDropped) {
		t.Errorf("%v, want %v", dropped, ErrDropped)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	control.Close()
	var got []uint32
	for k := range kinds {
		got = append(got, k)
	}
	if !slices.Equal(got, []uint32{simConnect, simDisconnect}) {
		t.Errorf("orders %v, want connect and disconnect", got)
	}
}
