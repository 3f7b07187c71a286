package ibfabric

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/graylink/graylink/internal/ibagent"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibmad/madsim"
)

// start runs an agent, delegator and sampler, on a fabric until its ports are read.
func start(t *testing.T, f *madsim.Fabric) *ibagent.Agent {
	c := ibagent.DefaultConfig()
	c.Name, c.Interval = "s", 200*time.Millisecond
	a, err := ibagent.Start(c, func(string) (ibmad.Transport, error) { return f.AttachTransport("h0"), nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		n := 0
		for _, p := range a.CollectPoints(time.Now()) {
			if strings.HasSuffix(p.Name, "_port_receive_rate_bytes_per_second") {
				n++
			}
		}
		if n == 2*(2+2)+2*2+4 {
			return a
		}
		if time.Now().After(end) {
			t.Fatalf("%d ports have rates", n)
		}
	}
}

func gather(t *testing.T, a *ibagent.Agent) map[string]*dto.MetricFamily {
	now := time.Now()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(a, func() time.Time { return now }))
	list, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range list {
		out[f.GetName()] = f
	}
	return out
}

func value(t *testing.T, families map[string]*dto.MetricFamily, name string, labels ...string) (*dto.Metric, bool) {
	t.Helper()
	for _, m := range families[name].GetMetric() {
		if slices.EqualFunc(m.Label, labels, func(l *dto.LabelPair, want string) bool { return l.GetName()+"="+l.GetValue() == want }) {
			return m, true
		}
	}
	return nil, false
}

func TestSeries(t *testing.T) {
	f := madsim.FatTree(2, 2, 2, madsim.Options{})
	f.SetCounter("leaf0", 1, ibmad.AttrPortCountersExtended, "PortXmitData", 0, 1000)
	f.SetCounter("leaf0", 1, ibmad.AttrPortCountersExtended, "SymbolErrorCounter", 0, 77)
	f.SetCounter("h1", 1, ibmad.AttrPortRcvErrorDetails, "PortLoopingErrors", 0, 65535)
	families := gather(t, start(t, f))

	m, ok := value(t, families, "fabric_switch_port_transmit_bytes_total", "port=1", "switch=leaf0")
	if !ok || m.GetCounter().GetValue() != 4000 || m.GetCounter().CreatedTimestamp == nil {
		t.Errorf("octets %v", m)
	}
	if m, ok := value(t, families, "fabric_switch_port_symbol_errors_total", "port=1", "switch=leaf0"); !ok || m.GetCounter().GetValue() != 77 {
		t.Errorf("symbol errors %v", m)
	}
	if m, ok := value(t, families, "fabric_nic_port_receive_error_details_total", "nic=h1/hca", "reason=looping"); !ok || m.GetCounter().GetValue() != 65535 {
		t.Errorf("looping %v", m)
	}
	if m, ok := value(t, families, "fabric_nic_port_saturated", "counter=PortRcvErrorDetails.PortLoopingErrors", "nic=h1/hca"); !ok || m.GetGauge().GetValue() != 1 {
		t.Errorf("saturated %v", m)
	}
	if m, ok := value(t, families, "fabric_switch_port_lane_fec_corrected_symbols_total", "lane=3", "port=1", "switch=leaf0"); !ok {
		t.Errorf("lanes %v", m)
	}
	if m, ok := value(t, families, "graylink_ib_sampler_ports", "sampler=s"); !ok || m.GetGauge().GetValue() != 16 {
		t.Errorf("ports of the sampler %v", m)
	}
	if got, ok := value(t, families, "graylink_ib_unassigned_ports"); !ok || got.GetGauge().GetValue() != 0 {
		t.Errorf("unassigned %v", got)
	}
	for name, f := range families {
		if f.GetType() != dto.MetricType_COUNTER && f.GetType() != dto.MetricType_GAUGE {
			t.Errorf("%s is of type %v", name, f.GetType())
		}
	}
	problems, err := promlint.NewWithMetricFamilies(list(families)).Lint()
	if err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func list(families map[string]*dto.MetricFamily) (out []*dto.MetricFamily) {
	for _, f := range families {
		out = append(out, f)
	}
	return out
}
