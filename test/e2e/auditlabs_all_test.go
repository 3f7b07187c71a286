//go:build all

package e2e

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/lab"
)

// TestAuditsOfLabs audits as many fabrics as these flags say. In the background:
//
//	go test -tags all -run TestAuditsOfLabs ./test/e2e -timeout 4h -v -audits.clean 20 -audits.faulty 12 > audits.log 2>&1 &
var (
	cleanAudits  = flag.Int("audits.clean", 1, "number of fabrics without a fault that TestAuditsOfLabs audits, each in a new lab")
	faultyAudits = flag.Int("audits.faulty", 2, "number of fabrics with 0 to 3 faults that TestAuditsOfLabs audits")
	auditSeed    = flag.Uint64("audits.seed", 1, "seed of the faults of TestAuditsOfLabs")
	auditLength  = flag.Duration("audits.duration", time.Minute, "duration of each audit of TestAuditsOfLabs")
)

// auditedLab is a lab whose agents run, for audits.
type auditedLab struct {
	*fleet
	out, plan, criteria, proxy string
	length                     time.Duration // of an audit
}

// newAuditedLab builds a lab and waits until it probes and its clocks are locked.
func newAuditedLab(t *testing.T, name string) *auditedLab {
	t.Helper()
	f := newFleet(t, name, "../../deploy/lab/demo.yaml")
	proxy := httptest.NewServer(f.l.HTTPProxy())
	t.Cleanup(proxy.Close)
	f.startCoordinator()
	for _, n := range f.nodes() {
		f.startAgent(n, "--web.advertise-address="+n+":9868")
	}
	f.connected(len(f.nodes()))
	f.probing(len(f.nodes()))
	a := &auditedLab{fleet: f, out: filepath.Join(f.dir, "out"), plan: writePlan(t, f), length: *auditLength}
	a.criteria = f.write(filepath.Join(f.dir, "criteria.yaml"), auditCriteria)
	a.proxy = f.write(filepath.Join(f.dir, "http.yml"), "proxy_url: "+proxy.URL+"\nno_proxy: 127.0.0.1\n")
	f.wait(time.Minute, "all clocks are locked", func() bool { states, _ := f.clockStates(); return states["locked"] == len(f.nodes()) })
	return a
}

// run audits the lab, and returns the report and the exit code.
func (a *auditedLab) run(more ...string) (r *audit.Report, code int) {
	a.t.Helper()
	args := append([]string{"audit", "--topology", a.plan, "--coordinator", "http://" + a.web, "--http.config", a.proxy,
		"--criteria", a.criteria, "--duration", a.length.String(), "--output", a.out}, more...)
	stdout, stderr, code := graylink(a.t, args...)
	a.t.Logf("%s\n%s", stdout, stderr)
	r, err := audit.LoadReport(filepath.Join(a.out, "audit.json"))
	if err != nil {
		a.t.Fatal(err)
	}
	return r, code
}

// findings returns the check and element of every item with a status.
func findings(r *audit.Report, s audit.Status) (out []string) {
	for _, c := range r.Checks {
		for _, i := range c.Items {
			if at := c.ID + " " + i.Element; i.Status == s && !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	slices.Sort(out)
	return out
}

// auditFault is a fault of a lab, what an audit has to find of it, and what it may find besides.
type auditFault struct {
	lab.Fault
	wrongSpeed string   // link whose planned speed is another one
	due        []string // CHECK ELEMENT
	may        []string
}

// auditKinds are the kinds of faults that are drawn. "speed" is a plan that has another speed than the interfaces.
var auditKinds = []string{lab.KindLoss, lab.KindDelay, lab.KindBlackhole, lab.KindLinkDown, lab.KindMTU, lab.KindMiscable, "speed"}

// drawAuditFaults draws 0 to 3 faults, each at links of leaves that no other one strikes.
func drawAuditFaults(g *fabric.Graph, rng *rand.Rand) (out []auditFault) {
	uplinks, access := map[string][]string{}, map[string][]string{} // by leaf
	for i := range g.Topo.Links {
		k := &g.Topo.Links[i]
		of, leaf := uplinks, fabric.OwnerOf(k.A)
		if k.IsAccess() {
			of, leaf = access, fabric.OwnerOf(k.B)
		}
		of[leaf] = append(of[leaf], k.ID())
	}
	leaves := slices.Sorted(maps.Keys(uplinks))
	rng.Shuffle(len(leaves), func(i, j int) { leaves[i], leaves[j] = leaves[j], leaves[i] })
	kinds := slices.Clone(auditKinds)
	rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	cables := false // whether a fault changes cables, which goes with no other that does
	for _, kind := range kinds[:rng.IntN(4)] {
		changes := kind == lab.KindLinkDown || kind == lab.KindMiscable
		if len(leaves) < 2 || changes && cables {
			continue
		}
		cables = cables || changes
		of := uplinks[leaves[0]]
		at := rng.IntN(len(of))
		id := of[at]
		f := auditFault{Fault: lab.Fault{Kind: kind, At: id}}
		switch kind {
		case lab.KindLoss:
			f.Loss, f.due = 0.05, []string{"A3 " + id}
		case lab.KindDelay:
			f.Delay, f.due = 3*time.Millisecond, []string{"A4 " + id, "A5 " + id}
		case lab.KindBlackhole:
			f.due, f.may = []string{"A3 " + id}, []string{"A2 " + id, "A9-mtu " + id}
		case lab.KindLinkDown:
			f.due, f.may = []string{"A2 " + id}, []string{"A3 " + id}
		case lab.KindMTU:
			f.due = []string{"A9-mtu " + id}
		case lab.KindMiscable:
			other := uplinks[leaves[1]][len(of)-1-at] // it goes to another spine
			f.At = id + "," + other
			f.due = []string{"A2 " + id, "A2 " + other}
			leaves = leaves[1:]
		case "speed":
			of = access[leaves[0]]
			f.wrongSpeed = of[rng.IntN(len(of))]
			f.due = []string{"A9 " + f.wrongSpeed}
		}
		leaves = leaves[1:]
		out = append(out, f)
	}
	return out
}

// TestAuditsOfLabs audits new labs without a fault, which pass without a warning but those of A6, and labs with 0 to 3 faults, of
// which it prints recall and precision.
func TestAuditsOfLabs(t *testing.T) {
	for i := range *cleanAudits {
		t.Run(fmt.Sprintf("clean%d", i), func(t *testing.T) {
			r, code := newAuditedLab(t, "audits").run()
			warned := slices.DeleteFunc(findings(r, audit.Warn), func(at string) bool { return strings.HasPrefix(at, "A6 ") })
			if failed := findings(r, audit.Fail); code != 0 || len(failed) > 0 || len(warned) > 0 {
				t.Errorf("exit code %d, failed: %v, warned: %v", code, failed, warned)
			}
		})
	}
	due, found, wrong := 0, 0, 0
	for i := range *faultyAudits {
		t.Run(fmt.Sprintf("faulty%d", i), func(t *testing.T) {
			a := newAuditedLab(t, "audits")
			rng := rand.New(rand.NewPCG(*auditSeed, uint64(i)))
			faults := drawAuditFaults(a.g, rng)
			may := []string{}
			for _, x := range faults {
				due += len(x.due)
				may = append(may, slices.Concat(x.due, x.may)...)
				if x.wrongSpeed != "" {
					a.plan = a.planOtherSpeed(x.wrongSpeed)
					continue
				}
				if _, err := a.l.AddFault(t.Context(), x.Fault); err != nil {
					t.Fatal(err)
				}
			}
			r, code := a.run()
			failed := findings(r, audit.Fail)
			for _, x := range faults {
				for _, at := range x.due {
					if slices.Contains(failed, at) {
						found++
					} else {
						t.Logf("%s at %s: missed: %s", x.Kind, x.At, at)
					}
				}
			}
			for _, at := range failed {
				if !slices.Contains(may, at) {
					wrong++
					t.Logf("wrong: %s", at)
				}
			}
			if (code == 2) != (len(failed) > 0) || len(faults) == 0 && code != 0 {
				t.Errorf("%d faults: exit code %d, failed: %v", len(faults), code, failed)
			}
		})
	}
	if due == 0 {
		return
	}
	recall, precision := float64(found)/float64(due), float64(found)/float64(max(1, found+wrong))
	t.Logf("%d of %d findings that were due, and %d others: recall %.3f, precision %.3f", found, due, wrong, recall, precision)
	if recall < 0.98 || found+wrong > 0 && precision < 0.98 {
		t.Errorf("recall %.3f and precision %.3f, want 0.98 at least", recall, precision)
	}
}

// planOtherSpeed writes a plan in which a link has another speed than its interfaces have, and returns the file.
func (a *auditedLab) planOtherSpeed(id string) string {
	a.t.Helper()
	text, err := os.ReadFile(a.plan)
	if err != nil {
		a.t.Fatal(err)
	}
	topo, found := fabric.ParseTopology("plan.yaml", text)
	if err := found.Err(); err != nil {
		a.t.Fatal(err)
	}
	for i := range topo.Links {
		if topo.Links[i].ID() == id {
			topo.Links[i].SpeedGbps = 40
		}
	}
	if text, err = yaml.Marshal(topo); err != nil {
		a.t.Fatal(err)
	}
	return a.write(filepath.Join(a.dir, "otherspeed.yaml"), string(text))
}

// TestAuditOfARepair audits a lab whose link drops long packets, again when it is repaired, and once more when half of the agents are
// gone.
func TestAuditOfARepair(t *testing.T) {
	a := newAuditedLab(t, "audits")
	const link = "leaf2:up1--spine1:dn2"
	id, err := a.l.AddFault(t.Context(), lab.Fault{Kind: lab.KindMTU, At: link})
	if err != nil {
		t.Fatal(err)
	}
	r, code := a.run()
	if failed := findings(r, audit.Fail); code != 2 || !slices.Equal(failed, []string{"A9-mtu " + link}) {
		t.Errorf("with a short MTU: exit code %d, failed: %v", code, failed)
	}
	before := filepath.Join(a.dir, "before.json")
	if err := os.Rename(filepath.Join(a.out, "audit.json"), before); err != nil {
		t.Fatal(err)
	}
	if err := a.l.ClearFault(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r, code = a.run("--compare", before)
	if failed := findings(r, audit.Fail); code != 0 || len(failed) > 0 {
		t.Errorf("repaired: exit code %d, failed: %v", code, failed)
	}
	if c := r.Compared; c == nil || c.Before != audit.Fail || !slices.Contains(c.Changes, audit.Change{Check: "A9-mtu", Element: link, Before: audit.Fail, After: audit.Pass}) {
		t.Errorf("repaired: compared: %+v", c)
	}
	for _, n := range a.nodes()[:len(a.nodes())/2] {
		stop(t, a.agents[n])
		delete(a.agents, n)
	}
	r, code = a.run()
	if failed := findings(r, audit.Fail); code != 3 || len(failed) > 0 {
		t.Errorf("half of the agents gone: exit code %d, failed: %v", code, failed)
	}
}
