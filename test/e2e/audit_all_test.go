//go:build all

package e2e

import (
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
	a := newAuditedLab(t, "audit")
	a.length = 30 * time.Second
	r, code := a.run()
	if failed := findings(r, audit.Fail); code != 0 || len(failed) > 0 {
		t.Errorf("without a fault: exit code %d, %v failed: %s", code, failed, r.Result())
	}
	before := filepath.Join(a.dir, "before.json")
	if err := os.Rename(filepath.Join(a.out, "audit.json"), before); err != nil {
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
		id, err := a.l.AddFault(t.Context(), x.fault)
		if err != nil {
			t.Fatal(err)
		}
		r, code := a.run("--compare", before)
		if failed := findings(r, audit.Fail); code != 2 || !slices.Equal(failed, x.want) {
			t.Errorf("%s: exit code %d, %v failed, want %v", x.fault.Kind, code, failed, x.want)
		}
		if r.Compared == nil || r.Compared.Before != audit.Pass || r.Compared.After != audit.Fail || len(r.Compared.Changes) < len(x.want) {
			t.Errorf("%s: compared: %+v", x.fault.Kind, r.Compared)
		}
		if err := a.l.ClearFault(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}
