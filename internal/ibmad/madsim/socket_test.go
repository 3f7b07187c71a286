package madsim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ibmad"
)

func serve(t *testing.T, f *Fabric) (name string) {
	t.Helper()
	name = fmt.Sprintf("madsim-%d-%s", os.Getpid(), t.Name())
	s, err := f.ServeIbsim(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return name
}

// Programs that read real fabrics read this one, with the same results.
func TestOtherProgramsReadIt(t *testing.T) {
	ibtest.RequireTools(t)
	f := FatTree(3, 2, 2, Options{})
	programs := ibtest.AttachSocket(t, serve(t, f))
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := programs.Run("h0", name, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	if got, want := run("ibstat"), fmt.Sprintf("Base lid: %d\n", f.NodeByName("h0").LID); !strings.Contains(got, want) {
		t.Errorf("ibstat: no %q in\n%s", want, got)
	}
	found := run("ibnetdiscover")
	if sw, ca := strings.Count(found, "\nSwitch\t"), strings.Count(found, "\nCa\t"); sw != 5 || ca != 6 {
		t.Errorf("%d switches and %d HCAs, want 5 and 6:\n%s", sw, ca, found)
	}
	for _, n := range f.ListNodes() {
		if !strings.Contains(found, fmt.Sprintf("# %q", n.Name)) {
			t.Errorf("ibnetdiscover does not show %s:\n%s", n.Name, found)
		}
	}

	spine := fmt.Sprint(f.NodeByName("spine1").LID)
	if got := run("smpquery", "portinfo", spine, "2"); !strings.Contains(got, "LinkSpeedExtActive:..............53.125 Gbps") || !strings.Contains(got, "LinkWidthActive:.................4X") {
		t.Errorf("smpquery portinfo:\n%s", got)
	}

	// the path by the tables, hop by hop
	src, dst := f.NodeByName("h0"), f.NodeByName("h5")
	trace := run("ibtracert", fmt.Sprint(src.LID), fmt.Sprint(dst.LID))
	at := "leaf0"
	var want []string
	for at != dst.Name {
		out := f.ForwardingPort(at, dst.LID)
		peer, peerPort, _ := f.PeerOf(at, out)
		want = append(want, fmt.Sprintf("[%d] -> ", out), fmt.Sprintf("[%d] lid %d", peerPort, f.NodeByName(peer).LID))
		at = peer
	}
	for _, hop := range want {
		if !strings.Contains(trace, hop) {
			t.Errorf("ibtracert: no %q in\n%s", hop, trace)
		}
	}
}

// Every counter of every attribute has the name, the place and the width that
// perfquery gives it.
func TestCountersEqualPerfquery(t *testing.T) {
	ibtest.RequireTools(t)
	// perfquery shows VL15Dropped twice; umad2sim cuts a datagram after 160 octets
	// of its attribute; and perfquery's text ends after 1,536 octets.
	unseen := map[string]bool{
		"PortCounters.QP1Dropped": true, "PortCountersExtended.VL15Dropped": true, "PortCountersExtended.PortXmitWait": true, "PortCountersExtended.QP1Dropped": true,
	}
	for lane := 8; lane < 12; lane++ {
		unseen[fmt.Sprintf("PortExtendedSpeedsCounters.FECUncorrectableBlockCtrLane%d", lane)] = true
	}
	f := FatTree(1, 1, 1, Options{})
	f.SetVendor("leaf0", FDR)
	programs := ibtest.AttachSocket(t, serve(t, f))
	for _, test := range []struct {
		node, option string
		attribute    ibmad.Attribute
		counters     []ibmad.Counter
	}{
		{"spine0", "", ibmad.AttrPortCounters, nil}, {"spine0", "-x", ibmad.AttrPortCountersExtended, nil},
		{"spine0", "-D", ibmad.AttrPortXmitDiscardDetails, nil}, {"spine0", "-E", ibmad.AttrPortRcvErrorDetails, nil},
		{"spine0", "--vlxmitcounters", ibmad.AttrPortVLXmitWait, nil}, {"spine0", "-X", ibmad.AttrPortXmitDataSL, nil},
		{"spine0", "-S", ibmad.AttrPortRcvDataSL, nil}, {"spine0", "--rcvcc", ibmad.AttrPortRcvConCtrl, nil},
		{"spine0", "--slrcvfecn", ibmad.AttrPortSLRcvFECN, nil}, {"spine0", "--slrcvbecn", ibmad.AttrPortSLRcvBECN, nil},
		{"spine0", "-T", ibmad.AttrPortExtendedSpeeds, ibmad.ReedSolomonCounters()}, {"leaf0", "-T", ibmad.AttrPortExtendedSpeeds, nil},
	} {
		if test.counters == nil {
			test.counters = ibmad.CountersOf(test.attribute)
		}
		want := map[string]uint64{}
		for i, c := range test.counters {
			v := c.MaxValue() - uint64(i)
			if c.Bits == 4 {
				v = uint64(i) & 15
			}
			f.SetCounter(test.node, 1, test.attribute, c.Name, c.Number, v)
			_, name, _ := strings.Cut(c.String(), ".")
			want[name] = v
		}
		args := []string{fmt.Sprint(f.NodeByName(test.node).LID), "1"}
		if test.option != "" {
			args = append([]string{test.option}, args...)
		}
		out, err := programs.Run("h0", "perfquery", args...)
		if err != nil {
			t.Error(err)
			continue
		}
		for line := range strings.Lines(out) {
			name, dotted, ok := strings.Cut(strings.TrimSpace(line), ":")
			if !ok || strings.HasPrefix(line, "#") || name == "PortSelect" || strings.HasPrefix(name, "CounterSelect") {
				continue
			}
			v, known := want[name]
			if got := strings.TrimLeft(dotted, "."); !unseen[test.attribute.String()+"."+name] && (!known || got != fmt.Sprint(v)) {
				t.Errorf("perfquery %s says %s of %s; ours is %d, known %v", test.option, got, name, v, known)
			}
			delete(want, name)
		}
		for name := range want {
			if unseen[test.attribute.String()+"."+name] {
				continue
			}
			t.Errorf("perfquery %s does not know %s", test.option, name)
		}
	}
}

// Clients attach from outside, more than ibsim's ten.
func TestServeManyClients(t *testing.T) {
	f := FatTree(2, 2, 10, Options{Latency: time.Microsecond})
	name := serve(t, f)
	lids := make([]ibmad.LID, 0, 24)
	for _, n := range f.ListNodes() {
		lids = append(lids, n.LID)
	}
	var clients []*ibmad.Client
	for h := range 20 {
		transport, err := ibmad.DialIbsim(name, fmt.Sprintf("h%d", h))
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, ibmad.NewClient(transport, ibmad.Config{Timeout: time.Minute}))
	}
	for h, c := range clients {
		var got []ibmad.LID
		var requests []ibmad.Request
		for _, lid := range lids {
			requests = append(requests, ibmad.GetClassPortInfo(lid))
		}
		if err := c.DoAll(ctx, requests, func(r *ibmad.Result) []ibmad.Request {
			if r.Err == nil {
				got = append(got, r.Request.To.LID)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		if !slices.Equal(got, lids) {
			t.Errorf("h%d: %v answered, want all", h, got)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := ibmad.DialIbsim(name, "missing"); !errors.Is(err, ibmad.ErrIbsimRefused) {
		t.Errorf("a node that is not there: %v, want %v", err, ibmad.ErrIbsimRefused)
	}
}

// A silent node costs a client in another process its time-out.
func TestServeSilence(t *testing.T) {
	f := FatTree(2, 1, 1, Options{})
	transport, err := ibmad.DialIbsim(serve(t, f), "h0")
	if err != nil {
		t.Fatal(err)
	}
	c := ibmad.NewClient(transport, ibmad.Config{Timeout: 20 * time.Millisecond, Retries: 1})
	defer c.Close()
	f.SetSilent("h1", true)
	r, err := c.Do(ctx, ibmad.GetNodeInfo(ibmad.ToLID(f.NodeByName("h1").LID)))
	if took := r.Received.Sub(r.Sent); !errors.Is(err, ibmad.ErrTimeout) || took < 40*time.Millisecond {
		t.Errorf("%v after %v, want a time-out after two attempts", err, took)
	}
}
