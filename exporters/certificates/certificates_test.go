package certificates

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
)

// TestCollector: sources may have files in common, and come later than the registration.
func TestCollector(t *testing.T) {
	f, other := pkitest.New(t), pkitest.New(t)
	keeper, err := pki.Open(pki.Files{CA: f.CA, Cert: f.Cert, Key: f.Key}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	c := NewCollector(keeper, nil)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	check := func(lines ...string) {
		t.Helper()
		slices.Sort(lines)
		want := "# HELP " + pki.ExpirySeries + " " + pki.ExpiryHelp + "\n# TYPE " + pki.ExpirySeries + " gauge\n" + strings.Join(lines, "\n") + "\n"
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	ca, own := pkitest.Line(t, f.CA, pki.UseAuthority), pkitest.Line(t, f.Cert, pki.UseCertificate)
	check(ca, own)
	c.Add(pki.NewWatch(pki.FilesOf(f.CA, f.Cert)...), pki.NewWatch(pki.FilesOf(f.CA, other.Cert)...))
	check(ca, own, pkitest.Line(t, other.Cert, pki.UseCertificate))
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}
