package ibfabric

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// watchOn returns a watch on a running fabric whose clock advances by a millisecond per reading.
func watchOn(tb testing.TB, sim *ibtest.Fabric, host string) (*Watch, *time.Time) {
	now := time.Unix(1_800_000_000, 0)
	return &Watch{Client: dial(tb, sim, host), SettleTime: 3 * time.Second, MaxGap: 5 * time.Second, CableInterval: 10 * time.Second,
		Now: func() time.Time { now = now.Add(time.Millisecond); return now }}, &now
}

func read(tb testing.TB, w *Watch) Reading {
	tb.Helper()
	r, err := w.Read(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	if !r.Begun.Before(r.Ended) {
		tb.Fatal(r.Begun, r.Ended)
	}
	return r
}

// The rules of Reading apply to a fabric whose subnet manager reroutes.
func TestWatchRules(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(3, 2, 2), ibtest.Options{})
	w, now := watchOn(t, sim, "h1")
	first := read(t, w)
	if !first.Broken {
		t.Error("rule 1: one reading confirms")
	}
	second := read(t, w)
	if second.Broken || second.Fabric != first.Fabric {
		t.Error("rule 1: two readings alike do not confirm")
	}
	sim.ChangeAndWait(`Unlink "leaf0"[3]`)
	third := read(t, w)
	if third.Fabric == second.Fabric || third.Broken {
		t.Error("rule 1: the tables changed", third.Broken)
	}
	if diff := same(third.Fabric, readFabric(t, sim)); diff != "" {
		t.Error("rule 4: ", diff)
	}
	if again := read(t, w); again.Fabric != third.Fabric || again.Broken {
		t.Error("rule 1: what is new is not confirmed")
	}
	pending := true
	w.PollChange = func() (bool, error) { was := pending; pending = false; return was, nil }
	if r := read(t, w); !r.Broken {
		t.Error("rule 2: unrest does not break")
	}
	if r := read(t, w); !r.Broken {
		t.Error("rule 2: the change may take longer")
	}
	*now = now.Add(w.SettleTime)
	if r := read(t, w); !r.Broken {
		t.Error("rule 2: it may have changed since the reading before")
	}
	if r := read(t, w); r.Broken {
		t.Error("rule 2: it is over")
	}
	over := false
	w.Settled = func() bool { return over }
	pending = true
	if changed, err := w.Poll(); !changed || err != nil {
		t.Error("rule 2: a change between readings is not reported", err)
	}
	if r := read(t, w); !r.Broken || !w.SettledAt().After(r.Ended) {
		t.Error("rule 2: a change between readings does not break")
	}
	pending, over = true, true
	if changed, err := w.Poll(); !changed || err != nil {
		t.Error("rule 2: the end of a change is not reported", err)
	}
	if r := read(t, w); !r.Broken || w.SettledAt().After(r.Begun) {
		t.Error("rule 2: it may have changed since the reading before")
	}
	if r := read(t, w); r.Broken {
		t.Error("rule 2: the change is over, and two readings agree")
	}
	w.smLID++ // as if another manager had been there
	read(t, w)
	if r := read(t, w); !r.Broken {
		t.Error("rule 2: another subnet manager does not break")
	}
	*now = now.Add(w.SettleTime)
	read(t, w)
	if r := read(t, w); r.Broken {
		t.Error("rule 2: the other subnet manager has settled")
	}
	*now = now.Add(w.MaxGap)
	if r := read(t, w); !r.Broken {
		t.Error("rule 2: a long time between")
	}
	// Rule 4: a cable that OpenSM does not know yet is found in time.
	sim.StopSM()
	sim.RunConsole(`Unlink "leaf1"[2]`)
	*now = now.Add(w.CableInterval)
	read(t, w)
	r := read(t, w)
	e, _ := r.Fabric.ByName("leaf1")
	if r.Fabric.PortAt(End{e.Node, 2}).Linked {
		t.Error("rule 4: the cable is not there any more")
	}
}

func TestOpenSMLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write := func(text string, flags int) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	const trap = "Nov 21 19:16:16 983542 [32D006C0] 0x01 -> log_trap_info: Received Generic Notice type:1 num:128 (Link state change)"
	write(trap+"\n", 0)
	l, err := OpenLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := func(what string, changed bool) {
		t.Helper()
		if got, err := l.PollChange(); got != changed || err != nil {
			t.Errorf("%s: unrest %v, %v", what, got, err)
		}
	}
	want("what was there before", false)
	write("osm_vendor_bind: Mgmt class 0x81\n"+trap[:80], os.O_APPEND)
	want("half a line", false)
	write(trap[80:]+"\n", os.O_APPEND)
	want("the other half", true)
	want("nothing new", false)
	if l.Settled() {
		t.Error("a trap ends a change")
	}
	write("Nov 21 19:16:17 [32D006C0] 0x02 -> SUBNET UP\n", os.O_APPEND)
	want("the end of a sweep", true)
	if !l.Settled() {
		t.Error("SUBNET UP does not end a change")
	}
	write("Nov 21 19:16:18 [32D006C0] 0x02 -> Discovered new port\n", os.O_APPEND)
	want("another change", true)
	if l.Settled() {
		t.Error("a change after SUBNET UP is over")
	}
	write(string(make([]byte, 3*maxPartialLine)), os.O_APPEND)
	want("a line without end", false)
	if n := len(l.partialLine); n > 2*maxPartialLine {
		t.Errorf("%d octets of it are kept", n)
	}
	write("x\n", os.O_TRUNC)
	want("truncated", true)
	want("nothing since", false)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	want("moved away", false)
	write("y\n", 0)
	want("another file", true)
	if _, err := OpenLog(path + ".2"); err == nil {
		t.Error("a log that is not there is opened")
	}
}
