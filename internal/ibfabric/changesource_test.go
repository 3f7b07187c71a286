package ibfabric

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/ufm"
)

var (
	_ ChangeSource = (*OpenSMLog)(nil)
	_ ChangeSource = (*ufm.Changes)(nil)
)

type fakeSource struct {
	changed bool
	err     error
	asked   int
}

func (t *fakeSource) PollChange() (bool, error) {
	t.asked++
	return t.changed, t.err
}

func TestUnrestOfSeveral(t *testing.T) {
	failed := errors.New("no log")
	for _, x := range []struct {
		a, b fakeSource
		want bool
		err  error
	}{
		{fakeSource{}, fakeSource{}, false, nil},
		{fakeSource{changed: true}, fakeSource{}, true, nil},
		{fakeSource{}, fakeSource{changed: true}, true, nil},
		{fakeSource{err: failed}, fakeSource{}, false, failed},
		{fakeSource{err: failed}, fakeSource{changed: true}, true, nil},
	} {
		got, err := PollAny(&x.a, &x.b)()
		if got != x.want || !errors.Is(err, x.err) || x.a.asked != 1 || x.b.asked != 1 {
			t.Errorf("%+v: %v, %v", x, got, err)
		}
	}
	if got, err := PollAny()(); got || err != nil {
		t.Errorf("no source: %v, %v", got, err)
	}
}

// TestUFMBreaksReadings checks that a change in UFM's events makes readings Broken until the tables have
// settled, as OpenSM's log does. Other events do not.
func TestUFMBreaksReadings(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(3, 2, 2), ibtest.Options{})
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := OpenLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for name, report := range map[string]func(*ufm.Changes){
		"a link":            func(c *ufm.Changes) { c.RecordEvents([]ufm.Event{{Code: "352"}, {Code: "329"}}) },
		"the log's line":    func(c *ufm.Changes) { c.RecordEvents([]ufm.Event{{Code: "513", Description: "SM: SUBNET UP"}}) },
		"another SM":        func(c *ufm.Changes) { c.RecordEvents([]ufm.Event{{Code: "510"}}) },
		"OpenSM's own log":  func(*ufm.Changes) { write(t, path, "SUBNET UP\n") },
		"no events to hear": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w, now := watchOn(t, sim, "h1")
			clock := *now
			changes := &ufm.Changes{Now: func() time.Time { return clock }, StaleAfter: time.Minute}
			w.PollChange = PollAny(log, changes)
			changes.RecordEvents(nil)
			if _, err := log.PollChange(); err != nil {
				t.Fatal(err)
			}
			read(t, w)
			changes.RecordEvents([]ufm.Event{{Code: "352"}})
			if read(t, w).Broken {
				t.Fatal("an event that changes nothing breaks")
			}
			if report == nil {
				clock = clock.Add(2 * time.Minute)
			} else {
				report(changes)
			}
			if !read(t, w).Broken {
				t.Error("it does not break")
			}
			changes.RecordEvents(nil)
			if !read(t, w).Broken {
				t.Error("the change may take longer")
			}
			*now = now.Add(w.SettleTime)
			read(t, w)
			if read(t, w).Broken {
				t.Error("it is over, and still breaks")
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
