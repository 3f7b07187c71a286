//go:build all

package e2e

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/audit"
	"github.com/graylink/graylink/internal/lab"
)

// auditCriteria are what a fabric of namespaces meets on a machine with other work: its delays are those of the kernel's scheduler.
const auditCriteria = `
loss: {max_ratio: 0.002}
delay: {max_added: 300us, max_added_p99: 20ms}
asymmetry: {max_difference: 500us}
clocks: {max_bound: 200us}
hosts: {max_excluded: 0.5}
`

// writePlan writes the lab's topology with the speed that the kernel reports of virtual interfaces, and returns the file.
func writePlan(t *testing.T, f *fleet) string {
	t.Helper()
	plan := *f.l.Topology()
	plan.Links = slices.Clone(plan.Links)
	for i := range plan.Links {
		plan.Links[i].SpeedGbps = 10
	}
	text, err := yaml.Marshal(&plan)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(f.dir, "plan.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestAuditOfALab audits a fabric of namespaces with real agents and packets: as it is, with a link that delays, and with one
// that loses packets.
func TestAuditOfALab(t *testing.T) {
	f := newFleet(t, "audit", "../../deploy/lab/demo.yaml")
	proxy := httptest.NewServer(f.l.HTTPProxy())
	t.Cleanup(proxy.Close)
	f.startCoordinator()
	for _, n := range f.nodes() {
		f.startAgent(n, "--web.advertise-address="+n+":9868")
	}
	f.connected(len(f.nodes()))
	f.probing(len(f.nodes()))
	out, plan := filepath.Join(f.dir, "out"), writePlan(t, f)
	for name, text := range map[string]string{"criteria.yaml": auditCriteria, "http.yml": "proxy_url: " + proxy.URL + "\nno_proxy: 127.0.0.1\n"} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(more ...string) (r *audit.Report, failed []string, code int) {
		t.Helper()
		args := append([]string{"audit", "--topology", plan, "--coordinator", "http://" + f.web, "--http.config", filepath.Join(f.dir, "http.yml"),
			"--criteria", filepath.Join(f.dir, "criteria.yaml"), "--duration", "30s", "--output", out}, more...)
		stdout, stderr, code := graylink(t, args...)
		t.Logf("%s\n%s", stdout, stderr)
		file, err := os.Open(filepath.Join(out, "audit.json"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if r, err = audit.ReadReport(file); err != nil {
			t.Fatal(err)
		}
		for _, c := range r.Checks {
			for _, i := range c.Items {
				if i.Status == audit.Fail {
					failed = append(failed, c.ID+" "+i.Element)
				}
			}
		}
		return r, failed, code
	}
	f.wait(time.Minute, "all clocks are locked", func() bool { states, _ := f.clockStates(); return states["locked"] == len(f.nodes()) })
	r, failed, code := run()
	if code != 0 || len(failed) > 0 {
		t.Errorf("without a fault: exit code %d, %v failed: %s", code, failed, r.Result())
	}
	before := filepath.Join(f.dir, "before.json")
	if err := os.Rename(filepath.Join(out, "audit.json"), before); err != nil {
		t.Fatal(err)
	}
	const link = "leaf2:up1--spine1:dn2"
	for _, x := range []struct {
		fault lab.Fault
		want  []string
	}{
		{lab.Fault{Kind: lab.KindDelay, At: link, Delay: 3 * time.Millisecond}, []string{"A4 " + link, "A5 " + link}},
		{lab.Fault{Kind: lab.KindLoss, At: link, Loss: 0.05}, []string{"A3 " + link}},
	} {
		id, err := f.l.AddFault(t.Context(), x.fault)
		if err != nil {
			t.Fatal(err)
		}
		r, failed, code := run("--compare", before)
		if code != 2 || !slices.Equal(failed, x.want) {
			t.Errorf("%s: exit code %d, %v failed, want %v", x.fault.Kind, code, failed, x.want)
		}
		if r.Compared == nil || r.Compared.Before != audit.Pass || r.Compared.After != audit.Fail || len(r.Compared.Changes) < len(x.want) {
			t.Errorf("%s: compared: %+v", x.fault.Kind, r.Compared)
		}
		if err := f.l.ClearFault(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}
