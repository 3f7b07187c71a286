package ibfabric

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// TestTrapsOfTheLog checks the lines of OpenSM 3.3.23 about traps, with and without a port, and lines about other things.
func TestTrapsOfTheLog(t *testing.T) {
	const head = "Nov 21 19:16:16 983542 [32D006C0] 0x01 -> log_trap_info: "
	for _, tt := range []struct {
		line string
		want Trap
		ok   bool
	}{
		{head + "Received Generic Notice type:1 num:128 (Link state change) Producer:2 (Switch) from LID:7 TID:0x0000000000000001", Trap{128, 7, 0}, true},
		{head + "Received Generic Notice type:1 num:129 (Local Link integrity threshold reached) Producer:2 (Switch) from LID:7 Port 12 TID:0x0000000000000002", Trap{129, 7, 12}, true},
		{head + "Received Generic Notice type:1 num:131 (Flow Control Update watchdog timer expired) Producer:1 (Channel Adapter) from LID:49151 Port 1 TID:0x00", Trap{131, 49151, 1}, true},
		{head + "Received Generic Notice type:4 num:144 (Local changes) Producer:1 (Channel Adapter) from LID:3 TID:0x0000000000000003", Trap{144, 3, 0}, true},
		{head + "Received Generic Notice type:1 num:99999 (?) Producer:2 (Switch) from LID:7 TID:0x00", Trap{}, false},
		{head + "Received Generic Notice type:1 num:129 (?) Producer:2 (Switch) from LID:7 Port 300 TID:0x00", Trap{}, false},
		{head + "Received Vendor Notice type:1 vend:0x0002C9 dev:1 from LID:7 TID:0x00", Trap{}, false},
		{"log_notice: Reporting Generic Notice type:1 num:128 (Link state change) from LID:7 GID:fe80::20:0", Trap{}, false},
		{"", Trap{}, false},
	} {
		if got, ok := parseTrap([]byte(tt.line)); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %+v, %v", tt.line, got, ok)
		}
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, keep := range []bool{true, false} {
		l, err := OpenLog(path)
		if err != nil {
			t.Fatal(err)
		}
		l.KeepTraps = keep
		line := head + "Received Generic Notice type:1 num:130 (Excessive Buffer overrun threshold reached) Producer:2 (Switch) from LID:9 Port 4 TID:0x00\n"
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(line + line); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if changed, err := l.PollChange(); !changed || err != nil {
			t.Error(changed, err)
		}
		want := []Trap{{130, 9, 4}, {130, 9, 4}}
		if !keep {
			want = nil
		}
		if got := l.TakeTraps(); !slices.Equal(got, want) {
			t.Errorf("kept %v: %v", keep, got)
		}
		if again := l.TakeTraps(); len(again) > 0 {
			t.Errorf("taken twice: %v", again)
		}
		l.Close()
	}
}

// TestTrapsOfOpenSM checks that the running OpenSM logs the trap of a switch whose link went down, in the form that is
// read.
func TestTrapsOfOpenSM(t *testing.T) {
	sim := ibtest.Start(t, ibtest.FatTree(2, 2, 1), ibtest.Options{})
	f := readFabric(t, sim)
	l, err := OpenLog(sim.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.KeepTraps = true
	sim.ChangeAndWait(`Unlink "leaf0"[2]`)
	var traps []Trap
	for end := time.Now().Add(5 * time.Minute); len(traps) == 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := l.PollChange(); err != nil {
			t.Fatal(err)
		}
		traps = l.TakeTraps()
	}
	for _, trap := range traps {
		e, found := f.ByLID(trap.LID)
		if trap.Number != 128 || trap.Port != 0 || !found || int(e.Node) >= f.Switches {
			t.Errorf("%+v from %+v, want 128 from a switch", trap, e)
		}
	}
	if len(traps) == 0 {
		t.Error("no trap was logged")
	}
}
