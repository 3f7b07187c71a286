package web

import (
	"slices"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/internal/fabric"
)

// TestFloodIsSaid: a flood is on the page whatever the answer about the network is.
func TestFloodIsSaid(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	flood := evidence.Flood{NIC: "h2/eth1", From: "10.0.1.2", PerSecond: 5000}
	for _, state := range []fabric.State{fabric.Innocent, fabric.InsufficientEvidence} {
		s := snapshot.Snapshot{At: now, Every: time.Second, Report: fabric.Report{State: state}, Floods: []evidence.Flood{flood}}
		if b := newBanner(s, nil, now); !slices.Contains(b.More, flood.String()) {
			t.Errorf("%s: the page says %q", state, b.More)
		}
	}
}
