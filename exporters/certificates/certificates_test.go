package certificates

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

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
		want := "# HELP " + pki.ExpirySeries + " " + pki.ExpiryGauges[0].Help + "\n# TYPE " + pki.ExpirySeries + " gauge\n" + strings.Join(lines, "\n") + "\n"
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), pki.ExpirySeries); err != nil {
			t.Error(err)
		}
	}
	ca, own := pkitest.Line(t, f.CA, pki.UseAuthority), pkitest.Line(t, f.Cert, pki.UseCertificate)
	check(ca, own)
	c.Add(pki.NewWatch(pki.FilesOf(f.CA, f.Cert)...), pki.NewWatch(pki.FilesOf(f.CA, other.Cert)...))
	check(ca, own, pkitest.Line(t, other.Cert, pki.UseCertificate))
	for _, file := range []string{f.CA, f.Cert, other.Cert} {
		x := pkitest.Certificate(t, file)
		want := x.NotAfter.Sub(x.NotBefore).Seconds()
		if got := seriesOf(t, registry, pki.LifeSeries, x.SerialNumber.Text(16)); !slices.Equal(got, []float64{want}) {
			t.Errorf("lifetimes of %s: %v, want %v once", file, got, want)
		}
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// seriesOf returns the values of the series of a family with a serial number.
func seriesOf(t *testing.T, g prometheus.Gatherer, family, serial string) (out []float64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == family && slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "serial" && l.GetValue() == serial }) {
				out = append(out, m.GetGauge().GetValue())
			}
		}
	}
	return out
}
