package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/fabric"
)

const ipv6Topology = "../../deploy/lab/demo-ipv6.yaml"

// TestTracesOfIPv6 requests the path of every edge of a fabric of IPv6, there and back. Each is the kernel's own, and the
// kernels' counters show that their answers named the hops.
func TestTracesOfIPv6(t *testing.T) {
	const flows = 3
	tr := newTracers(t, ipv6Topology, "e2ev6", flows, ample)
	before := tr.answeredV6()
	defer tr.start()()
	var v verdicts
	for range 5 { // what a busy machine did not answer in time is requested again, as an analyzer does it
		if v = tr.ask(func(fabric.Flow) bool { return true }); v.known == v.asked {
			break
		}
	}
	answered := tr.answeredV6() - before
	t.Logf("%d asked, %d known, %d wrong; switches answered %d times; notes %v", v.asked, v.known, v.wrong, answered, v.notes)
	if want := 2 * flows * 8 * 7; v.asked != want || v.known != want || v.filled != 0 {
		t.Errorf("%d asked, %d known, %d of them with a hop filled in; want %d, %d and 0", v.asked, v.known, v.filled, want, want)
	}
	// Edges below one leaf have one hop, and others three.
	if least := 2 * flows * (8*1*1 + 8*6*3); answered < least {
		t.Errorf("switches answered %d times, and these paths have %d hops", answered, least)
	}
}

// answeredV6 returns how many messages that packets expired all switches have sent.
func (tr *tracers) answeredV6() (sent int) {
	tr.t.Helper()
	for _, s := range tr.g.Topo.Switches {
		err := tr.lab.InNamespace(s.Name, func() error {
			b, err := os.ReadFile("/proc/thread-self/net/snmp6")
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				if f := strings.Fields(line); len(f) == 2 && f[0] == "Icmp6OutTimeExcds" {
					n, err := strconv.Atoi(f[1])
					sent += n
					return err
				}
			}
			return nil
		})
		if err != nil {
			tr.t.Fatal(err)
		}
	}
	return sent
}
