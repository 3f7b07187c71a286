package paths

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/sighting"
)

const (
	// maxReport bounds a report in bytes: maxFlows at 250 bytes each.
	maxReport = 16 << 20
	// pullTimeout bounds one question and its answer.
	pullTimeout = 5 * time.Second
	// maxBackoff bounds the time between questions to a switch that does not answer.
	maxBackoff = 30 * time.Second
	// maxPulls bounds the answers read at the same time, and so their memory.
	maxPulls = 16
)

// Puller reads the changes of the sighting tables of switches.
type Puller struct {
	Sightings *Sightings
	Client    *http.Client
	// URL returns the base URL of a switch, without a path.
	URL func(sw string) string
	// Switches are the switches that have an agent.
	Switches []string
	Log      *slog.Logger

	mu     sync.Mutex
	counts PullCounts
}

// PullCounts counts requests to switches since the start.
type PullCounts struct{ Pulls, Failures uint64 }

// TotalCounts returns the counts of all switches together.
func (p *Puller) TotalCounts() PullCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Run reads from every switch each interval until ctx ends. It requests a failing switch less and
// less often.
func (p *Puller) Run(ctx context.Context, interval time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	turn := make(chan struct{}, maxPulls)
	for i, sw := range p.Switches {
		first := interval * time.Duration(i) / time.Duration(len(p.Switches))
		wg.Go(func() { p.followSwitch(ctx, sw, first, interval, turn) })
	}
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

// followSwitch reads from one switch, from first on.
func (p *Puller) followSwitch(ctx context.Context, sw string, first, interval time.Duration, turn chan struct{}) {
	wait, failures := first, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		turn <- struct{}{}
		err := p.pullOnce(ctx, sw)
		<-turn
		wait = interval
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			continue
		}
		if failures == 0 {
			p.Log.Warn("cannot read sightings of a switch", "switch", sw, "err", err)
		}
		// After a gap in the versions the next request, for the whole table, is not delayed.
		wait = min(interval<<min(failures, 10), maxBackoff)
		failures++
	}
}

func (p *Puller) pullOnce(ctx context.Context, sw string) error {
	err := p.fetchReport(ctx, sw)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Pulls++
	if err != nil {
		p.counts.Failures++
	}
	return err
}

// fetchReport requests a report of a switch, and applies it.
func (p *Puller) fetchReport(ctx context.Context, sw string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	instance, since := p.Sightings.NextQuery(sw)
	at, err := url.JoinPath(p.URL(sw), "/api/v1/sightings")
	if err != nil {
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	at += "?" + url.Values{"instance": {instance}, "since": {strconv.FormatUint(since, 10)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	sent := time.Now()
	resp, err := p.Client.Do(req)
	if err != nil {
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	defer resp.Body.Close()
	received := time.Now()
	if resp.StatusCode != http.StatusOK {
		msg, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return fmt.Errorf("agent of switch %q: %s: %s", sw, resp.Status, strings.TrimSpace(string(msg)))
	}
	r, err := readReport(resp.Body)
	if err != nil {
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	return p.Sightings.ApplyReport(sw, r, sent, received)
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
