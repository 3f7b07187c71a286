package paths

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/internal/sighting"
)

// maxBackoff bounds the time between questions to a switch that does not answer.
const maxBackoff = 30 * time.Second

// Puller reads the changes of the sighting tables of switches.
type Puller struct {
	switchpoll.Poller
	Sightings *Sightings
}

// Run reads from every switch each interval until ctx ends. It requests a failing switch less and less often.
func (p *Puller) Run(ctx context.Context, interval time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { p.Follow(ctx, p.table(), interval) })
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			p.Sightings.Tick(now)
		}
	}
}

// table describes the tables of sightings, which every agent has.
func (p *Puller) table() *switchpoll.Table {
	return &switchpoll.Table{Name: "sightings", Path: "/api/v1/sightings", MaxBackoff: maxBackoff, NextQuery: p.Sightings.NextQuery,
		Apply: func(sw string, body []byte, sent, received time.Time) error {
			var r sighting.Report
			if err := json.Unmarshal(body, &r); err != nil {
				return fmt.Errorf("report: %w", err)
			}
			return p.Sightings.ApplyReport(sw, &r, sent, received)
		}}
}
