package fabricswitch

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/sighting"
	"github.com/graylink/graylink/internal/switchagent"
	"github.com/graylink/graylink/internal/webaccess"
)

// seenFlows is a source that sees flows at the first port in every sweep.
type seenFlows struct{ flows int }

func (seenFlows) Kind() sighting.Kind              { return sighting.KindPacket }
func (seenFlows) SetPorts([]uint32) error          { return nil }
func (seenFlows) ForgetFlow(*sighting.Key, uint32) {}
func (seenFlows) Dropped() uint64                  { return 0 }
func (seenFlows) Close() error                     { return nil }

func (s seenFlows) SweepFlows(_ context.Context, yield func(key *sighting.Key, s sighting.Sample)) error {
	for i := range s.flows {
		now := time.Now().UnixNano()
		f := sighting.Flow{Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 49152), Dst: netip.MustParseAddrPort("10.1.0.1:862")}
		key := sighting.KeyOf(f)
		yield(&key, sighting.Sample{Port: 1, First: now, Last: now, Count: 1})
	}
	return nil
}

// startSimulated returns the handler of a simulated switch with two ports.
func startSimulated(t *testing.T, flows int) *Exporter {
	t.Helper()
	a, err := switchagent.StartSimulated(switchagent.Simulated{Switch: "leaf1", Ports: []string{"dn1", "up1"}, Source: seenFlows{flows}, Fresh: 3 * time.Second, Flows: 1 << 16,
		Neighbours: func() []sighting.Neighbour {
			return []sighting.Neighbour{{Port: "up1", System: "spine1", SystemPort: "dn1"}}
		}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return New(a, slog.New(slog.DiscardHandler))
}

func get(t *testing.T, h http.Handler, method, path string) (code int, body []byte) {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = "127.0.0.1:1234"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.Bytes()
}

// TestSightings checks the whole table, which is written in parts, and the changes since a version of it.
func TestSightings(t *testing.T) {
	const flows = 2*partFlows + 5
	h := startSimulated(t, flows).SightingsHandler()
	var whole sighting.Report
	code, body := get(t, h, "GET", "/api/v1/sightings")
	if err := json.Unmarshal(body, &whole); err != nil || code != http.StatusOK {
		t.Fatalf("%d, %v: %.200s", code, err, body)
	}
	if whole.Switch != "leaf1" || len(whole.Flows) != flows || whole.Flows[0].Ports[0].Name != "dn1" || len(whole.Neighbours) != 1 || whole.Neighbours[0].System != "spine1" {
		t.Errorf("%d flows, want %d: %.300s", len(whole.Flows), flows, body)
	}
	var changed sighting.Report
	if code, body = get(t, h, "GET", "/api/v1/sightings?instance="+whole.Instance+"&since=1"); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	if err := json.Unmarshal(body, &changed); err != nil || changed.Since != 1 {
		t.Errorf("since %d, %v: %.300s", changed.Since, err, body)
	}
	for path, want := range map[string]int{"/api/v1/sightings?since=x": http.StatusBadRequest, "/api/v1/routes": http.StatusNotFound, "/-/ready": http.StatusOK, "/metrics": http.StatusNotFound} {
		if code, body := get(t, h, "GET", path); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
}

// TestHandlerOfASwitch checks the endpoints of graylink-switch.
func TestHandlerOfASwitch(t *testing.T) {
	h := startSimulated(t, 1).Handler(&webaccess.Policy{Lifecycle: true})
	for _, tc := range []struct {
		method, path, want string
	}{
		{"GET", "/-/healthy", "healthy"}, {"GET", "/-/ready", "ready"}, {"POST", "/-/reload", "reloaded"}, {"GET", "/metrics", `graylink_switch_flows{switch="leaf1"} 1`},
		{"GET", "/metrics", `fabric_switch_port_admin_up{port="up1",switch="leaf1"} 1`}, {"GET", "/api/v1/ports", `"system":"spine1"`},
	} {
		if code, body := get(t, h, tc.method, tc.path); code != http.StatusOK || !strings.Contains(string(body), tc.want) {
			t.Errorf("%s %s: %d %s, want %s", tc.method, tc.path, code, body, tc.want)
		}
	}
}
