package preflight

import (
	"fmt"
	"strings"

	"github.com/graylink/graylink/internal/unix"
)

// Signals say how an agent handles in-band signals (CSIG).
type Signals struct {
	// Profile is the file of the domain's profile, and ProfileError why it cannot be used with the other flags; nil if it can.
	Profile      string
	ProfileError error
	// TrySource loads the eBPF programs that tag probes and read tags, and takes them out again. It is nil if the agent tags nothing.
	TrySource func() error
}

// Rows of in-band signals.
const (
	needProfile = "CSIG profile"
	needSource  = "CSIG source"
	needCapture = "CSIG capture"
)

// The oldest kernel with TCX, by which programs are attached.
const (
	tcxMajor = 6
	tcxMinor = 6
)

// needs returns what in-band signals need. ofFile states that the agent's NICs are those of a configuration file.
func (s *Signals) needs(ofFile bool) []need {
	out := []need{{needProfile, "The agent does not start.", s.checkProfile}}
	switch {
	case s.TrySource == nil:
		return append(out, need{needCapture, "The tags of frames are not read.", checkCapture})
	case s.ProfileError != nil:
		return out
	}
	without, lost := Degraded, "The NICs that the coordinator assigns are not probed."
	if ofFile {
		without, lost = Missing, "The agent does not start."
	}
	return append(out, need{needSource, lost, func() (State, string) { return s.checkSource(without) }})
}

func (s *Signals) checkProfile() (State, string) {
	if s.ProfileError != nil {
		return Missing, s.ProfileError.Error()
	}
	return OK, s.Profile + " can be used"
}

func checkCapture() (State, string) {
	if err := unix.TryPacketSocket(); err != nil {
		return Degraded, "want CAP_NET_RAW: " + err.Error()
	}
	return OK, "Packet sockets can be opened"
}

// checkSource checks what the eBPF programs need. Without it, the state is as given.
func (s *Signals) checkSource(without State) (State, string) {
	major, minor, err := unix.KernelVersion()
	if err != nil {
		return without, err.Error()
	}
	if major < tcxMajor || major == tcxMajor && minor < tcxMinor {
		return without, fmt.Sprintf("Linux %d.%d; want %d.%d or later", major, minor, tcxMajor, tcxMinor)
	}
	err = s.TrySource()
	if err == nil {
		return OK, "The eBPF programs can be loaded"
	}
	var missing []string
	for _, c := range []struct {
		capability unix.Capability
		name       string
	}{{unix.CapBPF, "CAP_BPF"}, {unix.CapPerfmon, "CAP_PERFMON"}, {unix.CapNetAdmin, "CAP_NET_ADMIN"}} {
		if !unix.HasCapability(c.capability) {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return without, "want " + strings.Join(missing, ", ") + ": " + err.Error()
	}
	return without, err.Error()
}
