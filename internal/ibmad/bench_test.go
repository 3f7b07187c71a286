package ibmad

import (
	"context"
	"testing"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
)

// switches finds the LIDs and the tops of the tables of all switches of a fat
// tree, whose ports all have the same number.
func switches(tb testing.TB, c *Client) map[LID]SwitchInfo {
	tb.Helper()
	found := make(map[LID]SwitchInfo)
	requests := make([]Request, 0, 2000)
	for lid := LID(1); lid <= 720; lid++ {
		requests = append(requests, GetSwitchInfo(To(lid)))
	}
	if err := c.Walk(context.Background(), requests, func(r *Result) []Request {
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

// large is the fabric of 54 switches of 36 ports and 648 HCAs.
func large(b *testing.B) (*Client, map[LID]SwitchInfo) {
	f := ibtest.Start(b, ibtest.FatTree(36, 18, 18), ibtest.Options{})
	c := dial(b, f, "h0", Config{})
	found := switches(b, c)
	if len(found) != 54 {
		b.Fatalf("%d switches, want 54", len(found))
	}
	return c, found
}

func walkAll(b *testing.B, c *Client, requests []Request) {
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Walk(context.Background(), requests, func(r *Result) []Request {
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

func BenchmarkIbsim(b *testing.B) {
	c, found := large(b)
	b.Run("Sweep1944Ports", func(b *testing.B) {
		var requests []Request
		for lid := range found {
			for port := range 36 {
				for _, a := range []Attribute{AttrPortCountersExtended, AttrPortXmitDiscardDetails, AttrPortRcvErrorDetails} {
					requests = append(requests, GetCounters(a, lid, uint8(port+1)))
				}
			}
		}
		walkAll(b, c, requests)
	})
	b.Run("ForwardingTables54", func(b *testing.B) {
		var requests []Request
		for lid, info := range found {
			for block := range uint16(info.LinearTop/64 + 1) {
				requests = append(requests, GetForwardingBlock(To(lid), block))
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
