package ibmad

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// switches finds the LIDs and the tops of the tables of all switches of a fat tree, which all have the same
// number of ports.
func switches(tb testing.TB, c *Client) map[LID]SwitchInfo {
	tb.Helper()
	found := make(map[LID]SwitchInfo)
	requests := make([]Request, 0, 2000)
	for lid := LID(1); lid <= 720; lid++ {
		requests = append(requests, GetSwitchInfo(ToLID(lid)))
	}
	if err := c.DoAll(context.Background(), requests, func(r *Result) []Request {
		if r.Err == nil {
			var s SwitchInfo
			s.Decode(r.Data())
			found[r.Request.To.LID] = s
		}
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	return found
}

// large starts the fabric of 54 switches of 36 ports and 648 HCAs.
func large(b *testing.B) (*ibtest.Fabric, *Client, map[LID]SwitchInfo) {
	b.Helper()
	f := ibtest.Start(b, ibtest.FatTree(36, 18, 18), ibtest.Options{})
	c := dial(b, f, "h0", Config{})
	found := switches(b, c)
	if len(found) != 54 {
		b.Fatalf("%d switches, want 54", len(found))
	}
	return f, c, found
}

func walkAll(b *testing.B, c *Client, requests []Request) {
	b.ReportAllocs()
	for b.Loop() {
		if err := c.DoAll(context.Background(), requests, func(r *Result) []Request {
			if r.Err != nil {
				b.Error(r.Err)
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(requests)), "requests/op")
	if s := c.Stats(); s.Lost+s.Late+s.Foreign+s.Dropped > 0 {
		b.Logf("%+v", s)
	}
}

// sweep reads the data and the error details of all ports of the switches.
func sweep(found map[LID]SwitchInfo) (requests []Request) {
	for lid := range found {
		for port := range 36 {
			for _, a := range []Attribute{AttrPortCountersExtended, AttrPortXmitDiscardDetails, AttrPortRcvErrorDetails} {
				requests = append(requests, GetCounters(a, lid, uint8(port+1)))
			}
		}
	}
	return requests
}

// BenchmarkIbsim measures the client together with ibsim: one process that answers one datagram after the
// other.
func BenchmarkIbsim(b *testing.B) {
	_, c, found := large(b)
	b.Run("Sweep1944Ports", func(b *testing.B) { walkAll(b, c, sweep(found)) })
	b.Run("ForwardingTables54", func(b *testing.B) {
		var requests []Request
		for lid, info := range found {
			for block := range uint16(info.LinearTop/64 + 1) {
				requests = append(requests, GetForwardingBlock(ToLID(lid), block))
			}
		}
		walkAll(b, c, requests)
	})
	b.Run("Serial", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Do(context.Background(), GetCounters(AttrPortCountersExtended, 1, 1)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPeers does the sweep of BenchmarkIbsim with the programs of
// infiniband-diags, on the same fabric. perfquery: a process for each switch
// reads the wide counters of all its ports; for the details, a process for each port,
// of one switch only. ibqueryerrors: one process, which discovers the fabric first;
// every port has errors, so that it requests the details of all.
func BenchmarkPeers(b *testing.B) {
	f, c, found := large(b)
	run := func(b *testing.B, ports int, name string, args ...string) string {
		out, err := f.Run("h1", name, args...)
		if n := strings.Count(out, "PortSelect:"); ports > 0 && (err != nil || n != ports) {
			b.Fatalf("%v: %d ports, want %d: %s", err, n, ports, out)
		}
		return out
	}
	for _, kind := range []string{"leaf", "spine"} {
		for i := range map[string]int{"leaf": 36, "spine": 18}[kind] {
			for port := 1; port <= 36; port++ {
				for _, counter := range []string{"PortXmitDiscards", "PortRcvErrors"} {
					f.RunConsole(fmt.Sprintf(`PerformanceSet "%s%d"[%d] PortCounters.%s=3`, kind, i, port, counter))
				}
			}
		}
	}
	b.Run("Ours", func(b *testing.B) { walkAll(b, c, sweep(found)) })
	b.Run("PerfqueryExtended", func(b *testing.B) {
		for b.Loop() {
			for lid := range found {
				run(b, 36, "perfquery", "-x", strconv.Itoa(int(lid)), "1-36")
			}
		}
		b.ReportMetric(36*float64(len(found)), "requests/op")
	})
	b.Run("PerfqueryDetailsOfOneSwitch", func(b *testing.B) {
		lid := slices.Min(slices.Collect(maps.Keys(found)))
		for b.Loop() {
			for port := 1; port <= 36; port++ {
				for _, option := range []string{"-D", "-E"} {
					run(b, 1, "perfquery", option, strconv.Itoa(int(lid)), strconv.Itoa(port))
				}
			}
		}
		b.ReportMetric(72, "requests/op")
	})
	b.Run("Ibqueryerrors", func(b *testing.B) {
		for b.Loop() {
			out := run(b, 0, "ibqueryerrors", "--switch", "--data", "--details")
			b.ReportMetric(float64(strings.Count(out, "PortRcvErrors == 3")), "ports/op")
		}
	})
}
