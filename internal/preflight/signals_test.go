package preflight

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/csig"
	"github.com/graylink/graylink/internal/csig/bpf"
	"github.com/graylink/graylink/internal/unix"
)

// trySource loads the programs of an agent with --csig.source compact.
func trySource() error {
	return bpf.TryEndpoint(bpf.EndpointOptions{EtherTypes: csig.EtherTypes{Compact: 0x88b5}, Format: csig.Compact,
		Signals: []csig.Signal{csig.Share}, StampPorts: []uint16{862}, Flows: 10, Arrived: 16})
}

// TestCapabilitiesOfSignals takes one capability after the other away from a process that has all that in-band signals need. The truth is
// the kernel's: a source has all that it needs if the kernel takes its programs.
func TestCapabilitiesOfSignals(t *testing.T) {
	program := copyProgram(t)
	for _, tc := range []struct {
		mode, row string
		needed    []unix.Capability
	}{
		{modeCapture, needCapture, []unix.Capability{unix.CapNetRaw}},
		{modeSource, needSource, []unix.Capability{unix.CapBPF, unix.CapPerfmon, unix.CapNetAdmin}},
	} {
		if major, minor, err := unix.KernelVersion(); tc.mode == modeSource && (err != nil || major < 6 || major == 6 && minor < 6) {
			if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
				t.Fatal("needs Linux 6.6 or later: TCX")
			}
			t.Logf("%s is not tested: it needs Linux 6.6 or later", tc.mode)
			continue
		}
		all := make([]uintptr, len(tc.needed))
		for i, c := range tc.needed {
			all[i] = uintptr(c)
		}
		states := statesWith(t, program, tc.mode, all)
		if states[tc.row] != OK || states[needProfile] != OK {
			t.Errorf("%s is %s and the profile %s with all capabilities that it needs", tc.row, states[tc.row], states[needProfile])
		}
		for i, c := range tc.needed {
			if states := statesWith(t, program, tc.mode, slices.Delete(slices.Clone(all), i, i+1)); states[tc.row] != Degraded {
				t.Errorf("without capability %d: %s is %q", c, tc.row, states[tc.row])
			}
		}
	}
}

// TestRowsOfSignals checks which rows there are, and what is lost if programs cannot be loaded or a profile cannot be used.
func TestRowsOfSignals(t *testing.T) {
	bad, refused := errors.New("csig.yml: line 3: a number is expected"), errors.New("the kernel refuses the program")
	fails := func() error { return refused }
	for _, tc := range []struct {
		name    string
		signals Signals
		ofFile  bool
		want    string
	}{
		{"captures", Signals{Profile: "csig.yml"}, true, "CSIG profile ok|CSIG capture"},
		{"a bad profile", Signals{ProfileError: bad}, true, "CSIG profile missing|CSIG capture"},
		{"a source with a bad profile", Signals{ProfileError: bad, TrySource: fails}, true, "CSIG profile missing"},
		{"a source of a file", Signals{Profile: "csig.yml", TrySource: fails}, true, "CSIG profile ok|CSIG source missing"},
		{"a source of a coordinator", Signals{Profile: "csig.yml", TrySource: fails}, false, "CSIG profile ok|CSIG source degraded"},
	} {
		var got []string
		for _, r := range checkAll(tc.signals.needs(tc.ofFile)) {
			if r.Need == needCapture {
				r.State = "" // it depends on who runs the test
			}
			got = append(got, strings.TrimSpace(r.Need+" "+string(r.State)))
			if r.Need == needProfile && tc.signals.ProfileError != nil && r.Found != bad.Error() {
				t.Errorf("%s: %+v", tc.name, r)
			}
		}
		if s := strings.Join(got, "|"); s != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, s, tc.want)
		}
	}
	n := Node{Signals: &Signals{ProfileError: bad}}
	if r := stateOf(t, n, needProfile); r.State != Missing || r.Lost == "" {
		t.Errorf("%+v", r)
	}
}
