package compare

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

// BenchmarkNICs compares spans of ten minutes of 256 NICs, of which rules record a value every second. Every tenth NIC became slower.
func BenchmarkNICs(b *testing.B) {
	const nics, perLeaf, seconds = 256, 32, 600
	var text strings.Builder
	text.WriteString("load 1s")
	for i := range nics {
		after := 1e-5
		if i%10 == 0 {
			after = 1e-4
		}
		for _, side := range []string{"source", "destination"} {
			for name, values := range map[string][2]float64{"owd_seconds:p50_2s": {1e-5, after}, "owd_seconds:p99_2s": {5e-5, 5e-5}, "probe_sent:rate_2s": {100, 100},
				"probe_lost:rate_2s": {}, "probe_ecn_marked:rate_2s": {}} {
				fmt.Fprintf(&text, "\n\tfabric:nic_%s{nic=\"h%d/eth1\", leaf=\"leaf%d\", side=%q, plane=\"a\"} %gx%d %gx%d", name, i+1, i/perLeaf+1, side, values[0], seconds, values[1], seconds)
			}
		}
	}
	db := evidencetest.NewQuerier(b, text.String())
	g := worldtest.NewClos(b, 4, nics/perLeaf, perLeaf)
	r := Request{From: time.Unix(seconds, 0), To: time.Unix(2*seconds, 0), Span: seconds * time.Second, Kind: NICs, Limit: defaultLimit}
	for b.Loop() {
		c, err := New(db, func() *fabric.Graph { return g }).Compare(b.Context(), r)
		if err != nil || c.Unknown() || len(c.Sections[0].Changes) != defaultLimit || c.Sections[0].ChangesLeftOut != 52-defaultLimit {
			b.Fatalf("%v: %+v", err, c.Sections)
		}
	}
}
