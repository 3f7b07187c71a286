package paths

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/switchpoll"
	"github.com/graylink/graylink/internal/sighting"
)

const (
	// maxReport bounds a report in bytes: maxFlows at 250 bytes each.
	maxReport = 16 << 20
	// maxBackoff bounds the time between questions to a switch that does not answer.
	maxBackoff = 30 * time.Second
)

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
		Apply: func(sw string, body io.Reader, sent, received time.Time) error {
			r, err := readReport(body)
			if err != nil {
				return err
			}
			return p.Sightings.ApplyReport(sw, r, sent, received)
		}}
}

// readReport reads one report of at most maxReport bytes.
func readReport(r io.Reader) (*sighting.Report, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxReport+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxReport:
		return nil, fmt.Errorf("a report of more than %d bytes", maxReport)
	}
	var out sighting.Report
	if err := json.Unmarshal(body, &out); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return &out, nil
}
