package madsim

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibmad"
)

// BenchmarkSweep reads the data and error details of all ports of 54 switches
// and 648 HCAs, of which some are silent, with the client's default times: 200 ms
// for an attempt, three attempts.
func BenchmarkSweep(b *testing.B) {
	for _, percent := range []int{0, 5} {
		b.Run(fmt.Sprintf("%dPercentSilent", percent), func(b *testing.B) {
			f := FatTree(36, 18, 18, Options{Latency: 5 * time.Microsecond})
			var requests []ibmad.Request
			silent := map[ibmad.LID]bool{}
			for i, n := range f.Nodes() {
				if percent > 0 && i%(100/percent) == 7 {
					f.SetSilent(n.Name, true)
					silent[n.LID] = true
				}
				for port := range n.Ports {
					for _, a := range []ibmad.Attribute{ibmad.AttrPortCountersExtended, ibmad.AttrPortXmitDiscardDetails, ibmad.AttrPortRcvErrorDetails} {
						requests = append(requests, ibmad.GetCounters(a, n.LID, port+1))
					}
				}
			}
			// The asker's own agent is not asked over the fabric.
			c := ibmad.NewClient(f.Attach("h0"), ibmad.Config{})
			defer c.Close()
			for b.Loop() {
				unanswered := map[ibmad.LID]bool{}
				if err := c.Walk(ctx, requests, func(r *ibmad.Result) []ibmad.Request {
					if r.Err != nil {
						unanswered[r.Request.To.LID] = true
						if !errors.Is(r.Err, ibmad.ErrTimeout) && !errors.Is(r.Err, ibmad.ErrSilent) {
							b.Error(r.Err)
						}
					}
					return nil
				}); err != nil {
					b.Fatal(err)
				}
				if len(unanswered) != len(silent) {
					b.Errorf("%d nodes did not answer, want %d", len(unanswered), len(silent))
				}
			}
			b.ReportMetric(float64(len(requests)), "requests/op")
			b.ReportMetric(float64(len(silent)), "silent")
		})
	}
}
