//go:build all

package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/lab"
)

var (
	collectiveKinds = flag.String("collectives.kinds", "delay,loss,shape,nic-slow,late,stop,blackhole", "faults of TestCollectives")
	collectiveRuns  = flag.Int("collectives.runs", 1, "runs of each fault of TestCollectives")
	collectiveCalm  = flag.Duration("collectives.calm", time.Minute, "time without a fault in TestCollectives, in which nothing may be said")
)

// Operations of the job before the rank of a fault misbehaves: the analyzer has to know first what is normal.
const usualOperations = 350

// faultDelay is far above how much operations vary where eight ranks, eight agents, Prometheus and an analyzer share two cores.
const faultDelay = 40 * time.Millisecond

// ring is a job of eight ranks, one a node, over two leaves: what TestCollectives watches.
type ring struct {
	*chain
	job  *exec.Cmd
	said *bytes.Buffer
}

// TestCollectives runs a job of eight ranks in a ring on real packets, which agents and an analyzer follow. It breaks links, a NIC
// and ranks, and wants the right syndrome, and the network to be guilty by the right element, or innocent. The truth is what the
// lab broke, and which port the job's octets cross by the kernel's counters.
func TestCollectives(t *testing.T) {
	c := newChainWith(t, "e2ecoll", "testdata/ring-fabric.yaml", 1, []string{"--schedule.cadence=20ms"}, func(c *chain, addresses []string) {
		c.startPrometheus(program(t, "prometheus"), addresses)
		c.settings += "collectives: {follow: true}\n"
	})
	c.write("jobs.yaml", "jobs:\n  - {job: ring, nodes: [h1, h2, h3, h4, h5, h6, h7, h8]}\n")
	r := &ring{chain: c}
	c.wait(3*time.Minute, "the fabric is innocent", c.innocent)
	r.calm(*collectiveCalm)
	for _, kind := range strings.Split(*collectiveKinds, ",") {
		right := 0
		for i := range *collectiveRuns {
			c.wait(3*time.Minute, "the fabric is innocent again", c.innocent)
			if ok := r.strike(kind, i); ok {
				right++
			}
		}
		t.Logf("%s: %d of %d right", kind, right, *collectiveRuns)
		if right*100 < *collectiveRuns*95 {
			t.Errorf("%s: %d of %d runs were right; 95 %% are required", kind, right, *collectiveRuns)
		}
	}
}

// start starts the job and waits until the analyzer knows what is normal for it.
func (r *ring) start(args ...string) {
	r.t.Helper()
	dir := r.file("collectives")
	r.said = &bytes.Buffer{}
	r.job = exec.Command(filepath.Join(bin, "graylink"), append([]string{"lab", "job", "--name", r.l.Name(), "--job", "ring", "--size", "512KiB", "--chunk", "32KiB", "--compute", "60ms", "--records", os.DevNull, "--dir", dir}, args...)...)
	r.job.Stderr = r.said
	if err := r.job.Start(); err != nil {
		r.t.Fatal(err)
	}
	comm := ""
	r.wait(3*time.Minute, "the job's operations are known", func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "h1", "*.log"))
		if err != nil || len(files) == 0 {
			return false
		}
		comm = strings.TrimSuffix(filepath.Base(slices.Max(files)), "-rank0.log")
		rep := r.report()
		return rep.Coverage.RanksSeen >= 8 && r.known(comm) >= 48
	})
}

// known returns how many operations of a communicator were judged.
func (r *ring) known(comm string) float64 {
	body, _ := r.get("http://"+r.analyzers[0].address+"/metrics", nil)
	for series, n := range readSeries(bytes.NewReader(body)) {
		if strings.HasPrefix(series, "fabric_collective_transfer_seconds_count{") && strings.Contains(series, comm) {
			return n
		}
	}
	return 0
}

// stop ends the job.
func (r *ring) stop() {
	r.t.Helper()
	if err := r.job.Process.Signal(syscall.SIGINT); err != nil {
		r.t.Fatal(err)
	}
	if err := r.job.Wait(); err != nil {
		r.t.Errorf("the job: %v: %s", err, r.said)
	}
	files, err := filepath.Glob(r.file("collectives/*/*.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			r.t.Error(err)
		}
	}
	r.wait(3*time.Minute, "the diagnoses are over", func() bool { return len(r.open()) == 0 })
}

// report returns what the analyzer says of collectives.
func (r *ring) report() (rep workload.Report) {
	r.t.Helper()
	r.ask(r.analyzers[0], "/api/v1/collectives", &rep)
	return rep
}

// open returns the diagnoses that are open.
func (r *ring) open() (out []workload.Diagnosis) {
	for _, d := range r.report().Diagnoses {
		if d.Open {
			out = append(out, d)
		}
	}
	return out
}

// calm runs the job without a fault.
func (r *ring) calm(span time.Duration) {
	r.t.Helper()
	r.start()
	seen := map[string]bool{}
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(time.Second) {
		for _, d := range r.report().Diagnoses {
			if !seen[d.ID] {
				seen[d.ID] = true
				r.t.Errorf("without a fault: %s %s %v, effect %+v", d.Syndrome, d.Pattern, d.Ranks, d.Effect)
			}
		}
	}
	r.t.Logf("%v without a fault: %d diagnoses", span, len(seen))
	r.stop()
}

// uplink returns the link and its port at leaf1 over which most octets of the job leave that leaf.
func (r *ring) uplink() (link, port string) {
	r.t.Helper()
	count := func(dev string) uint64 {
		out, err := r.l.Command(r.t.Context(), "leaf1", "cat", "/sys/class/net/"+dev+"/statistics/tx_bytes").Output()
		if err != nil {
			r.t.Fatal(err)
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		return n
	}
	before := [2]uint64{count("up1"), count("up2")}
	var up [2]uint64
	r.wait(time.Minute, "the job sends a mebibyte", func() bool {
		up = [2]uint64{count("up1") - before[0], count("up2") - before[1]}
		return up[0]+up[1] > 1<<23
	})
	if up[0] > up[1] {
		return "leaf1:up1--spine1:dn1", "up1"
	}
	return "leaf1:up2--spine2:dn1", "up2"
}

// expected is what a fault has to be called.
type expected struct {
	syndromes []workload.Syndrome
	network   workload.NetworkState
	element   string // of a guilty network
	rank      int    // of the diagnosis, where a rank is to blame
}

// breakIt breaks something, and returns what it has to be called and how it is healed.
func (r *ring) breakIt(kind string) (want expected, heal func()) {
	r.t.Helper()
	if kind == "late" {
		return expected{[]workload.Syndrome{workload.NonCommSlow}, workload.Innocent, "", 3}, func() {}
	}
	if kind == "stop" {
		return expected{[]workload.Syndrome{workload.NonCommHang}, workload.Innocent, "", 3}, func() {}
	}
	link, port := r.uplink()
	want = expected{[]workload.Syndrome{workload.CommSlow}, workload.Guilty, link, -1}
	var f lab.Fault
	switch kind {
	case "delay":
		f = lab.Fault{Kind: lab.KindDelay, At: link, Delay: faultDelay}
	case "loss":
		f = lab.Fault{Kind: lab.KindLoss, At: link, Loss: 0.2}
		want.syndromes = append(want.syndromes, workload.CommHang)
	case "blackhole":
		f = lab.Fault{Kind: lab.KindBlackhole, At: link}
		want.syndromes = []workload.Syndrome{workload.CommHang}
	case "nic-slow":
		f = lab.Fault{Kind: lab.KindNICSlow, At: "h3/eth1", Direction: lab.DirectionOut, Delay: faultDelay}
		want.element = "h3/eth1"
	case "shape":
		run := func(args ...string) {
			if out, err := r.l.Command(r.t.Context(), "leaf1", append([]string{"tc"}, args...)...).CombinedOutput(); err != nil {
				r.t.Fatalf("tc %v: %v: %s", args, err, out)
			}
		}
		run("qdisc", "replace", "dev", port, "root", "tbf", "rate", "40mbit", "burst", "64k", "limit", "4m")
		return want, func() { run("qdisc", "del", "dev", port, "root") }
	default:
		r.t.Fatalf("there is no fault %q", kind)
	}
	id := r.fault(f)
	return want, func() { r.heal(id) }
}

// strike breaks something while the job runs, and reports whether the diagnoses are right.
func (r *ring) strike(kind string, run int) bool {
	r.t.Helper()
	switch kind {
	case "late":
		r.start("--late", "3=80ms", "--late-from", strconv.Itoa(usualOperations))
	case "stop":
		r.start("--stop", fmt.Sprintf("3=%d", usualOperations))
	default:
		r.start()
	}
	before := len(r.report().Diagnoses)
	began := time.Now()
	want, heal := r.breakIt(kind)
	var found []workload.Diagnosis
	var detected time.Duration
	wrong := ""
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		found = r.open()
		if len(found) > 0 && detected == 0 {
			detected = time.Since(began)
		}
		wrong = want.wrong(found)
		if wrong == "" || r.confused(want, found) {
			break
		}
	}
	took := time.Since(began)
	if after := len(r.report().Diagnoses) - before; wrong == "" && after > len(found) {
		r.t.Logf("%s run %d: %d diagnoses besides that were closed", kind, run, after-len(found))
	}
	for _, d := range found {
		r.t.Logf("%s run %d: %s %s ranks %v, network %s %s (%s), effect %+v; detected after %.1f s, all said after %.1f s", kind, run, d.Syndrome, d.Pattern, d.Ranks, d.Network.State, d.Network.Element, d.Network.Reason, d.Effect, detected.Seconds(), took.Seconds())
	}
	if wrong != "" {
		_, verdicts := r.verdicts(r.analyzers[0])
		r.t.Logf("%s run %d is wrong: %s; coverage %+v; records %+v; verdicts of the fabric %v", kind, run, wrong, r.report().Coverage, r.report().Records, names(verdicts))
	}
	if r.confused(want, found) {
		r.t.Errorf("%s run %d: guilty and innocent are confused", kind, run)
	}
	heal()
	r.stop()
	return wrong == ""
}

// names returns the elements of verdicts that are open.
func names(verdicts []incident.Incident) (out []string) {
	for _, v := range verdicts {
		if v.Open {
			out = append(out, v.Element.ID)
		}
	}
	return out
}

// confused reports whether the network is called guilty of a rank's fault, or by another element, or innocent of its own.
func (r *ring) confused(want expected, found []workload.Diagnosis) bool {
	return slices.ContainsFunc(found, func(d workload.Diagnosis) bool {
		if want.network == workload.Innocent {
			return d.Network.State == workload.Guilty
		}
		return d.Network.State == workload.Innocent
	})
}

// wrong returns what is wrong with the diagnoses of a fault; nothing is.
func (e expected) wrong(found []workload.Diagnosis) string {
	if len(found) == 0 {
		return "nothing was said"
	}
	for _, d := range found {
		switch {
		case !slices.Contains(e.syndromes, d.Syndrome):
			return fmt.Sprintf("%s where %v is right", d.Syndrome, e.syndromes)
		case e.rank >= 0 && !slices.Equal(d.Ranks, []int{e.rank}):
			return fmt.Sprintf("ranks %v where %d is right", d.Ranks, e.rank)
		case d.Network.State != e.network:
			return fmt.Sprintf("the network is %s (%s)", d.Network.State, d.Network.Reason)
		case e.element != "" && d.Network.Element != e.element && !strings.HasPrefix(e.element, d.Network.Element+"--"):
			return fmt.Sprintf("%s is guilty where %s is right", d.Network.Element, e.element)
		}
	}
	return ""
}
