package ibfabric

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibmad/madsim"
)

// simulated returns a client on a simulated fabric, with short time-outs.
func simulated(tb testing.TB, sim *madsim.Fabric, host string, c ibmad.Config) *ibmad.Client {
	tb.Helper()
	if c.Timeout == 0 {
		c.Timeout = 100 * time.Millisecond
	}
	client := ibmad.NewClient(sim.AttachTransport(host), c)
	tb.Cleanup(func() {
		if err := client.Close(); err != nil {
			tb.Error(err)
		}
	})
	return client
}

// A node that does not answer is reported with the port that leads there; the rest is found.
func TestDiscoverNamesTheSilent(t *testing.T) {
	sim := madsim.FatTree(4, 2, 3, madsim.Options{})
	c := simulated(t, sim, "h0", ibmad.Config{})
	whole, found, err := Discover(t.Context(), c)
	if err != nil || len(found)+len(whole.Unanswered) > 0 || len(whole.Nodes) != 18 || whole.Switches != 6 {
		t.Fatal(err, found, whole)
	}
	sim.SetSilent("h11", true)
	sim.SetSilent("spine1", true)
	f, found, err := Discover(t.Context(), c)
	if err != nil || len(found) > 0 {
		t.Fatal(err, found)
	}
	if len(f.Nodes) != 16 {
		t.Errorf("%d nodes, not 16", len(f.Nodes))
	}
	near := map[string]bool{}
	for _, q := range f.Unanswered {
		if q.Query != "NodeInfo" || !errors.Is(q.Err, ibmad.ErrTimeout) && !errors.Is(q.Err, ibmad.ErrSilent) {
			t.Errorf("%+v", q)
		}
		near[f.EndName(q.Near)] = true
	}
	want := map[string]bool{}
	for _, gone := range []struct {
		name string
		port uint8
	}{{"h11", 1}, {"spine1", 1}, {"spine1", 2}, {"spine1", 3}, {"spine1", 4}} {
		name, port, _ := sim.PeerOf(gone.name, gone.port)
		e, _ := f.ByName(name)
		want[f.EndName(End{e.Node, port})] = true
	}
	if len(near) != len(want) || len(near) != 5 {
		t.Errorf("silent beyond %v, not %v", near, want)
	}
	for end := range want {
		if !near[end] {
			t.Errorf("the silent node beyond %s is not reported", end)
		}
	}
}

// A walk crosses the tables of all switches of the simulator; a silent one is reported and not crossed.
func TestReadTablesNamesTheSilent(t *testing.T) {
	sim := madsim.FatTree(4, 2, 3, madsim.Options{})
	c := simulated(t, sim, "h0", ibmad.Config{})
	f, _, err := Discover(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := ReadTables(t.Context(), c, f)
	if err != nil || len(tables.Unanswered) > 0 {
		t.Fatal(err, tables)
	}
	f = f.WithTables(tables.LFTs)
	for _, src := range f.lids() {
		for _, dst := range f.lids() {
			if _, err := f.Walk(src, dst); err != nil {
				t.Fatal(err)
			}
		}
	}
	leaf, _ := f.ByName("leaf3")
	if leaf.Node == 0 {
		t.Fatalf("%v", sim.ListNodes())
	}
	sim.SetSilent("leaf3", true)
	if tables, err = ReadTables(t.Context(), c, f); err != nil || len(tables.Unanswered) != 1 || tables.Unanswered[0].Near != (End{leaf.Node, 0}) || tables.LFTs[leaf.Node] != nil {
		t.Fatal(err, tables)
	}
	f = f.WithTables(tables.LFTs)
	lids := f.lids()
	if _, err := f.Walk(lids[0], lids[len(lids)-1]); !errors.Is(err, ErrUnread) {
		t.Error(err)
	}
}

// The virtual lane of each hop comes from its own table, by the ports that it crosses.
func TestLanes(t *testing.T) {
	sim := madsim.FatTree(2, 1, 2, madsim.Options{})
	c := simulated(t, sim, "h0", ibmad.Config{})
	f, _, err := Discover(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := ReadTables(t.Context(), c, f)
	if err != nil {
		t.Fatal(err)
	}
	f = f.WithTables(tables.LFTs)
	src, _ := f.FindLID("h0/hca")
	dst, _ := f.FindLID("h3/hca")
	hops, err := f.Walk(src, dst)
	if err != nil || len(hops) != 3 {
		t.Fatal(hops, err)
	}
	for i, h := range hops {
		var vls ibmad.SLtoVL
		vls[5] = uint8(i + 1)
		sim.SetSLtoVL(f.NodeName(h.Switch), h.In, h.Out, vls)
	}
	if lanes, err := ReadVirtualLanes(t.Context(), c, f, hops, 5); err != nil || !slices.Equal(lanes, []uint8{1, 2, 3}) {
		t.Error(lanes, err)
	}
	sim.SetSilent("spine0", true)
	if lanes, err := ReadVirtualLanes(t.Context(), c, f, hops, 5); err == nil {
		t.Error(lanes)
	}
}

// Without the key, a protected fabric is silent beyond the own port.
func TestDiscoverMKey(t *testing.T) {
	sim := madsim.FatTree(2, 1, 2, madsim.Options{})
	sim.SetMKey(0x77, 2)
	if f, _, err := Discover(t.Context(), simulated(t, sim, "h0", ibmad.Config{MKey: 0x77})); err != nil || len(f.Nodes) != 7 || len(f.Unanswered) != 0 {
		t.Error(err, f)
	}
	if f, _, err := Discover(t.Context(), simulated(t, sim, "h0", ibmad.Config{MKey: 0x78})); err == nil && len(f.Unanswered) == 0 {
		t.Error("the wrong key is as good")
	}
}

// The rules of Reading apply where the simulator changes between the readings.
func TestWatchSilentSwitch(t *testing.T) {
	sim := madsim.FatTree(3, 2, 2, madsim.Options{})
	now := time.Unix(1_800_000_000, 0)
	w := &Watch{Client: simulated(t, sim, "h0", ibmad.Config{}), SettleTime: time.Second, MaxGap: time.Hour, CableInterval: time.Hour,
		Now: func() time.Time { now = now.Add(time.Millisecond); return now }}
	read(t, w)
	whole := read(t, w)
	sim.SetSilent("spine1", true)
	without := read(t, w)
	if without.Fabric == whole.Fabric || without.Fabric.Switches != 4 || without.Broken {
		t.Errorf("%+v", without)
	}
	if again := read(t, w); again.Fabric != without.Fabric {
		t.Error("one that stays silent is a change each time")
	}
	sim.SetSilent("spine1", false)
	now = now.Add(time.Hour)
	if back := read(t, w); back.Fabric.Switches != 5 {
		t.Error("it is back and not seen")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Read(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if r := read(t, w); !r.Broken {
		t.Error("nothing is known of the time without readings")
	}
}

// liar answers every query with a stranger's data.
type liar struct {
	mu      sync.Mutex
	text    []byte
	at      int
	guid    uint64
	endless bool
	out     chan ibmad.MAD
	closed  chan struct{}
	sent    int
}

func (l *liar) Send(m *ibmad.MAD, to ibmad.Address, _ time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := *m
	d := answer.Data()
	l.sent++
	if l.endless {
		l.lie(m, d)
	} else {
		for i := range d[:64] {
			if len(l.text) > 0 {
				d[i] = l.text[l.at%len(l.text)]
				l.at++
			}
		}
	}
	answer.MakeResponse(0)
	l.out <- answer
	return nil
}

// lie answers for an endless fabric: every node is a switch of 254 ports, all of them connected to others.
func (l *liar) lie(m *ibmad.MAD, d *ibmad.Data) {
	switch m.Attribute() {
	case ibmad.AttrNodeInfo:
		l.guid++
		info := ibmad.NodeInfo{Type: ibmad.NodeSwitch, Ports: 254, GUID: ibmad.GUID(l.guid), PortGUID: ibmad.GUID(l.guid), LocalPort: 1}
		info.Encode(d)
	case ibmad.AttrPortInfo:
		info := ibmad.PortInfo{State: ibmad.PortActive, PhysState: ibmad.PhysLinkUp, LID: 7, LMC: 7}
		info.Encode(d)
	}
}

func (l *liar) Receive(m *ibmad.MAD) (bool, error) {
	select {
	case *m = <-l.out:
		return false, nil
	case <-l.closed:
		return false, errors.New("closed")
	}
}
func (l *liar) MaxInFlight() int { return 64 }
func (l *liar) Close() error {
	close(l.closed)
	return nil
}

func newLiar(text []byte) *liar {
	return &liar{text: text, out: make(chan ibmad.MAD, 256), closed: make(chan struct{})}
}

func TestDiscoverEndlessFabric(t *testing.T) {
	l := newLiar(nil)
	l.endless = true
	c := ibmad.NewClient(l, ibmad.Config{Timeout: time.Minute})
	defer c.Close()
	if _, _, err := Discover(t.Context(), c); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	t.Logf("%d questions", l.sent)
}

func FuzzDiscover(f *testing.F) {
	var d ibmad.Data
	info := ibmad.NodeInfo{Type: ibmad.NodeSwitch, Ports: 3, GUID: 5, PortGUID: 5, LocalPort: 2}
	info.Encode(&d)
	f.Add(slices.Clone(d[:64]))
	f.Add(append(slices.Clone(d[:64]), binary.BigEndian.AppendUint64(nil, 77)...))
	f.Add([]byte(strings.Repeat("\x02\x01", 33)))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 || len(text) > 1024 {
			return
		}
		l := newLiar(text)
		c := ibmad.NewClient(l, ibmad.Config{Timeout: time.Minute})
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		fab, _, err := Discover(ctx, c)
		if err != nil {
			return
		}
		tables, err := ReadTables(ctx, c, fab)
		if err != nil {
			return
		}
		fab = fab.WithTables(tables.LFTs)
		for _, src := range fab.ends[1:min(len(fab.ends), 8)] {
			for _, dst := range fab.ends[1:min(len(fab.ends), 8)] {
				_, _ = fab.Walk(fab.FirstLID(src), fab.FirstLID(dst))
			}
		}
		fab.BuildTopology()
		fab.ListConnections()
	})
}

// BenchmarkDiscoverSilent discovers the fat tree of 54 switches and 648 HCAs of which one in twenty does not
// answer, with the client's own time-outs.
func BenchmarkDiscoverSilent(b *testing.B) {
	sim := madsim.FatTree(36, 18, 18, madsim.Options{})
	for i := range 33 {
		sim.SetSilent("h"+strconv.Itoa(19*i+7), true)
	}
	sim.SetSilent("spine3", true)
	c := ibmad.NewClient(sim.AttachTransport("h0"), ibmad.Config{})
	defer c.Close()
	for b.Loop() {
		f, found, err := Discover(b.Context(), c)
		if err != nil || len(found) > 0 || len(f.Nodes) != 702-34 || len(f.Unanswered) != 33+36 {
			b.Fatal(err, found, len(f.Nodes), len(f.Unanswered))
		}
	}
}

// TestSpeedsAsRead: PortInfo of a port at FDR10 says QDR, and Mellanox's own attribute is read there. Only devices that have it are sent the request.
func TestSpeedsAsRead(t *testing.T) {
	sim := madsim.FatTree(2, 1, 2, madsim.Options{})
	fdr10 := madsim.Vendor{ID: 0x2c9, DeviceID: 0xc738, Speed: 4, FDR10: true}
	qdr := madsim.Vendor{ID: 0x2c9, DeviceID: 0x1003, Speed: 4}
	xdr := madsim.Vendor{ID: 0x2c9, DeviceID: 0xd2f4, Speed: 4, SpeedExt: 8, XDR: true}
	for _, name := range []string{"leaf0", "h0"} {
		sim.SetVendor(name, fdr10)
	}
	sim.SetVendor("h1", qdr)
	sim.SetVendor("leaf1", xdr)
	f, found, err := Discover(t.Context(), simulated(t, sim, "h0", ibmad.Config{}))
	if err != nil || len(found)+len(f.Unanswered) > 0 {
		t.Fatal(err, found, f.Unanswered)
	}
	for name, want := range map[string]struct {
		speed Speed
		gbps  float64
	}{"leaf0:1": {FDR10, 40}, "h0/hca": {FDR10, 40}, "h1/hca": {QDR, 40}, "leaf1:1": {XDR, 800}} {
		e, ok := f.ByName(name)
		if p := f.PortAt(e); !ok || p.Speed != want.speed || p.RateGbps() != want.gbps {
			t.Errorf("%s is %s with %.0f Gb/s, want %s", name, p.Speed, p.RateGbps(), want.speed)
		}
	}
}
