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

type teller struct {
	told  bool
	err   error
	asked int
}

func (t *teller) PollChange() (bool, error) {
	t.asked++
	return t.told, t.err
}

func TestUnrestOfSeveral(t *testing.T) {
	failed := errors.New("no log")
	for _, x := range []struct {
		a, b teller
		want bool
		err  error
	}{
		{teller{}, teller{}, false, nil},
		{teller{told: true}, teller{}, true, nil},
		{teller{}, teller{told: true}, true, nil},
		{teller{err: failed}, teller{}, false, failed},
		{teller{err: failed}, teller{told: true}, true, nil},
	} {
		got, err := PollAny(&x.a, &x.b)()
		if got != x.want || !errors.Is(err, x.err) || x.a.asked != 1 || x.b.asked != 1 {
			t.Errorf("%+v: %v, %v", x, got, err)
		}
	}
	if got, err := PollAny()(); got || err != nil {
		t.Errorf("nobody: %v, %v", got, err)
	}
}

// TestUFMBreaksReadings: a change that UFM's events tell of ends what readings confirm,
// until the tables are calm, beside OpenSM's log and as that does; other events do not.
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
	for name, tell := range map[string]func(*ufm.Changes){
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
			if tell == nil {
				clock = clock.Add(2 * time.Minute)
			} else {
				tell(changes)
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
