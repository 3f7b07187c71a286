package fakesys

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func script(t *testing.T, text string) *Script {
	t.Helper()
	s, err := ParseScript("s", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func do(t *testing.T, tree *Tree, steps ...string) {
	t.Helper()
	for _, s := range steps {
		if err := tree.RunStep(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func want(t *testing.T, tree *Tree, file, want string) {
	t.Helper()
	if got := read(t, tree, file); got != want {
		t.Errorf("%s: %q, want %q", file, got, want)
	}
}

func TestPlayerTakesStepsWhenTheyAreDue(t *testing.T) {
	tree := profile(t, "a100")
	const port = ib + "mlx5_0/ports/1/"
	p := NewPlayer(tree, script(t, `
at 1s
set mlx5_0/1 state 1: DOWN
set mlx5_0/1 phys_state 2: Polling
add mlx5_0/1 counters/link_downed 1
net ibp12s0 operstate down
+500ms
kmsg 3 mlx5_core 0000:0c:00.0: made up
+1.5s
set mlx5_0/1 state 4: ACTIVE
repeat 2
+1s
add mlx5_0/1 counters/symbol_error 100
end
`))
	for _, test := range []struct {
		elapsed                              time.Duration
		steps                                int
		next                                 time.Duration
		state, phys, downed, symbol, operate string
	}{
		{0, 0, time.Second, "4: ACTIVE", "5: LinkUp", "0", "0", "up"},
		{999 * time.Millisecond, 0, time.Second, "4: ACTIVE", "5: LinkUp", "0", "0", "up"},
		{time.Second, 4, 1500 * time.Millisecond, "1: DOWN", "2: Polling", "1", "0", "down"},
		{1600 * time.Millisecond, 1, 3 * time.Second, "1: DOWN", "2: Polling", "1", "0", "down"},
		{4 * time.Second, 2, 5 * time.Second, "4: ACTIVE", "2: Polling", "1", "100", "down"},
		{time.Minute, 1, 0, "4: ACTIVE", "2: Polling", "1", "200", "down"},
		{2 * time.Minute, 0, 0, "4: ACTIVE", "2: Polling", "1", "200", "down"},
	} {
		done, err := p.RunDue(test.elapsed)
		if next, _ := p.NextDue(); err != nil || len(done) != test.steps || next != test.next {
			t.Errorf("%s: %d steps %v, next at %s", test.elapsed, len(done), err, next)
		}
		for file, v := range map[string]string{
			"state": test.state, "phys_state": test.phys, "counters/link_downed": test.downed, "counters/symbol_error": test.symbol,
		} {
			want(t, tree, port+file, v)
		}
		want(t, tree, net+"ibp12s0/operstate", test.operate)
	}
	log := read(t, tree, kmsgFile)
	// Three records of Build, the last at 2 ms; the step at 1.5 s.
	if end := "\n3,3,1502000,-;mlx5_core 0000:0c:00.0: made up\n SUBSYSTEM=pci\n DEVICE=+pci:0000:0c:00.0"; !strings.HasSuffix(log, end) {
		t.Errorf("kernel log %q, want at its end %q", log, end)
	}
}

func TestPlayInRealTime(t *testing.T) {
	tree := profile(t, "rxe")
	s := script(t, "at 1m\nset rxe0/1 state 1: DOWN\n+1h\nset rxe0/1 state 4: ACTIVE\n")
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var played []time.Duration
		err := NewPlayer(tree, s).Play(t.Context(), func(s Step) {
			if since := time.Since(start); since != s.At {
				t.Errorf("a step of %s at %s", s.At, since)
			}
			played = append(played, s.At)
		})
		if err != nil || !slices.Equal(played, []time.Duration{time.Minute, 61 * time.Minute}) {
			t.Errorf("%v %v", played, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		if err := NewPlayer(tree, s).Play(ctx, func(Step) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cut off: %v", err)
		}
	})
	want(t, tree, ib+"rxe0/ports/1/state", "1: DOWN")
}

func TestStepErrorsNameTheLine(t *testing.T) {
	tree := profile(t, "rxe")
	p := NewPlayer(tree, script(t, "boot\nset rxe0/2 state 1: DOWN\nset rxe0/1 state 1: DOWN\n"))
	done, err := p.RunDue(0)
	var se *ScriptError
	if len(done) != 1 || !errors.As(err, &se) || se.Line != 2 || err.Error() != "s:2: set rxe0/2 state 1: DOWN: rxe0/2 has no state" {
		t.Errorf("%d steps, %v", len(done), err)
	}
	if done, err = p.RunDue(0); len(done) != 1 || err != nil {
		t.Errorf("after it: %d steps, %v", len(done), err)
	}
}

func TestStepsThatFail(t *testing.T) {
	tree := profile(t, "rxe")
	do(t, tree, "remove eth0", "hang "+ib+"rxe0/fw_ver")
	for step, want := range map[string]string{
		"fly rxe0":                           `"fly": at, +DURATION`,
		"set rxe1/1 state 1: DOWN":           "the tree has no RDMA device rxe1",
		"set rxe1 fw_ver 1":                  "the tree has no RDMA device, interface or PCI function rxe1",
		"set 0000:00:00.0 device 1":          "the tree has no PCI function 0000:00:00.0",
		"set rxe0 firmware 1":                "rxe0 has no firmware",
		"set rxe0 ports 1":                   "ports of rxe0 is no file with a value",
		"set rxe0 subsystem 1":               "subsystem of rxe0 is no file with a value",
		"add rxe0/1 state 1":                 `state of rxe0/1 holds "4: ACTIVE", to which nothing can be added`,
		"net rxe0 operstate down":            "the tree has no interface rxe0",
		"remove rxe1":                        "the tree has no RDMA device",
		"remove eth0":                        "was removed already",
		"restore rxe0":                       "is as it was built: nothing is to be restored",
		"hang " + ib + "rxe0/fw_ver":         "hangs already",
		"unhang " + ib + "rxe0/node_type":    "does not hang",
		"hang " + ib + "rxe0/ports":          "is a directory: hang takes a file",
		"hang sys/class/net/eth1/speed":      "the tree has no sys/class/net/eth1/speed",
		"remove " + ib + "rxe0/fw_ver":       "is hidden by hang, garble or fail: restore it first",
		"chmod " + ib + "rxe0/subsystem 000": "is a symbolic link, which has no mode",
		"aer 0000:06:00.0 fatal NoSuch 1":    "aer_dev_fatal of 0000:06:00.0 has no NoSuch",
		"aer rxe0 fatal DLP 1":               "rxe0 has no aer_dev_fatal",
		"add 0000:06:00.0 aer_dev_fatal 1":   "to which nothing can be added",
	} {
		if err := tree.RunStep(step); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", step, err, want)
		}
	}
}

// Rule 5.
func TestHiddenFilesGoOnChanging(t *testing.T) {
	const file = ib + "mlx5_0/ports/1/counters/link_downed"
	tree := profile(t, "a100")
	for _, test := range []struct{ hide, shown string }{
		{"fail " + file, "(unreadable)"},
		{"garble " + file + " N/A (no PMA)", "N/A (no PMA)"},
		{`garble ` + file + ` "1\n2"`, "1\n2"},
		{"hang " + file, "(hangs)"},
		{"remove " + file, "(absent)"},
		{"remove mlx5_0", "(absent)"},
		{"remove 0000:0c:00.0", "(absent)"},
		{"remove sys/class/infiniband/mlx5_0", "(absent)"},
	} {
		do(t, tree, "set mlx5_0/1 counters/link_downed 5")
		want(t, tree, file, "5")
		do(t, tree, test.hide)
		want(t, tree, file, test.shown)
		do(t, tree, "add mlx5_0/1 counters/link_downed 2")
		want(t, tree, file, test.shown)
		if words := strings.Fields(test.hide); words[0] == "hang" {
			do(t, tree, "unhang "+file)
		} else {
			do(t, tree, "restore "+words[1])
		}
		want(t, tree, file, "7")
		checkLinks(t, tree)
	}
	if left := list(t, tree, privateDir+"/"+removedDir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestHiddenTwice(t *testing.T) {
	const file = ib + "mlx5_0/fw_ver"
	tree := profile(t, "a100")
	was := read(t, tree, file)
	do(t, tree, "fail "+file, "garble "+file+" x", "hang "+file, "fail "+file)
	want(t, tree, file, "(unreadable)")
	do(t, tree, "remove mlx5_0", "garble /"+file+" y")
	want(t, tree, file, "(absent)")
	do(t, tree, "restore mlx5_0")
	want(t, tree, file, "y")
	do(t, tree, "restore "+file)
	want(t, tree, file, was)
}

func TestRemoveTakesWhatPointsThere(t *testing.T) {
	tree := profile(t, "sriov34")
	before := len(list(t, tree, "sys/bus/pci/devices"))
	do(t, tree, "remove 0000:93:00.1") // mlx5_1, with its 16 virtual functions
	if n := len(list(t, tree, ib)); n != 17 {
		t.Errorf("%d devices", n)
	}
	if n := len(list(t, tree, "sys/bus/pci/devices")); n != before-17 {
		t.Errorf("%d of %d functions", n, before)
	}
	want(t, tree, net+"rdma4/speed", "(absent)")
	want(t, tree, ib+"mlx5_0/ports/1/state", "4: ACTIVE")
	checkLinks(t, tree)
	if err := tree.RunStep("remove mlx5_1"); err == nil {
		t.Error("removed with its function and once more")
	}
	do(t, tree, "set mlx5_1/1 state 2: INIT", "restore 0000:93:00.1")
	if n := len(list(t, tree, ib)); n != 34 {
		t.Errorf("%d devices are there again", n)
	}
	want(t, tree, ib+"mlx5_1/ports/1/state", "2: INIT")
	checkLinks(t, tree)
	if left := list(t, tree, privateDir+"/"+removedDir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestInnerRemovalOutlastsTheOuterOne(t *testing.T) {
	tree := profile(t, "a100")
	do(t, tree, "remove mlx5_0", "remove 0000:0c:00.0", "restore 0000:0c:00.0")
	want(t, tree, net+"ibp12s0/operstate", "up")
	want(t, tree, ib+"mlx5_0/fw_ver", "(absent)")
	checkLinks(t, tree)
	do(t, tree, "remove 0000:0c:00.0")
	if err := tree.RunStep("restore mlx5_0"); err == nil || !strings.Contains(err.Error(), "what it was in was removed too") {
		t.Errorf("restored into what is not there: %v", err)
	}
	do(t, tree, "restore 0000:0c:00.0", "restore mlx5_0")
	want(t, tree, ib+"mlx5_0/node_type", "1: CA")
	checkLinks(t, tree)
}

func TestBondedInterfaceGoes(t *testing.T) {
	tree := profile(t, "h100")
	do(t, tree, "remove enp41s0f1np1")
	checkLinks(t, tree)
	want(t, tree, net+"bond0/lower_enp41s0f1np1/mtu", "(absent)")
	do(t, tree, "restore enp41s0f1np1")
	want(t, tree, net+"bond0/lower_enp41s0f1np1/mtu", "1500")

	do(t, tree, "boot")
	log := read(t, tree, kmsgFile)
	if strings.Count(log, "\n") != 0 || !strings.HasPrefix(log, "6,0,0,-;") {
		t.Errorf("kernel log after a boot: %q", log)
	}
	ids := map[string]bool{read(t, tree, bootFile): true}
	for range 3 {
		do(t, tree, "boot")
		id := read(t, tree, bootFile)
		if ids[id] || !bootIDPattern.MatchString(id) {
			t.Errorf("boot id %q", id)
		}
		ids[id] = true
	}

	do(t, tree, "aer mlx5_3 fatal CmpltTO 2", "aer 0000:5e:00.0 fatal DLP 1", "kmsg 4 no device")
	aer := read(t, tree, ib+"mlx5_3/device/aer_dev_fatal")
	for _, line := range []string{"CmpltTO 2\n", "\nDLP 1\n", "\nTOTAL_ERR_FATAL 3"} {
		if !strings.Contains(aer, line) {
			t.Errorf("%q has no %q", aer, line)
		}
	}
	want(t, tree, kmsgFile, "6,0,0,-;Linux version 6.8.0-fakesys\n4,1,0,-;no device")

	do(t, tree, "chmod sys/class/net/bond0/speed 000", "set bond0 speed 1")
	if info, err := os.Stat(tree.Path(net + "bond0/speed")); err != nil || info.Mode().Perm() != 0 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
}

// Rule 2: a reader of a file that changes sees one value or the other.
func TestReadersSeeWholeValues(t *testing.T) {
	tree := profile(t, "a100")
	const port = ib + "mlx5_0/ports/1"
	stop := make(chan struct{})
	var readers sync.WaitGroup
	entries := len(list(t, tree, port))
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				b, err := os.ReadFile(tree.Path(port + "/state"))
				if s := string(b); err != nil || s != "4: ACTIVE\n" && s != "1: DOWN\n" && s != "x" {
					t.Errorf("%q %v", s, err)
					return
				}
				if names, err := os.ReadDir(tree.Path(port)); err != nil || len(names) != entries {
					t.Errorf("%d entries %v", len(names), err)
					return
				}
			}
		})
	}
	for range 50 {
		do(t, tree, "set mlx5_0/1 state 1: DOWN", "set mlx5_0/1 state 4: ACTIVE", "garble "+port+"/state x", "restore "+port+"/state")
	}
	close(stop)
	readers.Wait()
}

// Rule 4: a reader of a FIFO waits, and gets the value when the file hangs no longer.
func TestReaderOfAHangingFileIsLetGo(t *testing.T) {
	for _, end := range []string{"unhang ", "restore "} {
		tree := profile(t, "a100")
		const file = ib + "mlx5_0/ports/1/rate"
		do(t, tree, "hang "+file, "set mlx5_0/1 rate 100 Gb/sec (2X HDR)")
		// Open for reading and writing does not wait; the reader's end then has a writer, and waits in Read.
		f, err := os.OpenFile(tree.Path(file), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string)
		go func() {
			b := make([]byte, 100)
			n, err := f.Read(b)
			if err != nil && err != io.EOF {
				t.Error(err)
			}
			got <- string(b[:n])
		}()
		do(t, tree, end+file)
		if s := <-got; s != "100 Gb/sec (2X HDR)\n" {
			t.Errorf("%q", s)
		}
		f.Close()
		want(t, tree, file, "100 Gb/sec (2X HDR)")
	}
}

func TestReaderThatOpensAHangingFile(t *testing.T) {
	tree := profile(t, "rxe")
	const file = ib + "rxe0/node_type"
	do(t, tree, "hang "+file)
	got := make(chan string, 1)
	opening := make(chan struct{})
	go func() {
		close(opening)
		b, err := os.ReadFile(tree.Path(file)) // waits in open, or comes late and finds the file
		if err != nil {
			t.Error(err)
		}
		got <- string(b)
	}()
	<-opening
	do(t, tree, "unhang "+file)
	if s := <-got; s != "1: CA\n" {
		t.Errorf("%q", s)
	}
}
