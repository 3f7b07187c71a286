// Package switchpoll requests a table of the agents of switches, which answer with what changed since an earlier answer.
package switchpoll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// pullTimeout bounds one question and its answer.
	pullTimeout = 5 * time.Second
	// idleBackoff is the time between questions to a switch whose agent does not have the table.
	idleBackoff = time.Minute
	// maxPulls bounds the answers read at the same time, and maxReport each of them in bytes, and so their memory.
	maxPulls  = 16
	maxReport = 16 << 20
)

// errNoTable means that the agent of a switch does not have the table.
var errNoTable = errors.New("the agent does not have it")

// Poller asks the agents of switches. Its fields must not change after the first question.
type Poller struct {
	Client *http.Client
	// URL returns the base URL of a switch, without a path.
	URL func(sw string) string
	// Switches are the switches that have an agent.
	Switches []string
	Log      *slog.Logger

	mu     sync.Mutex
	counts Counts
}

// Counts counts requests to switches since the start.
type Counts struct{ Pulls, Failures uint64 }

// Table is what the agents are asked for.
type Table struct {
	// Name is what it has, in the plural. Path is that of its requests, such as /api/v1/sightings.
	Name, Path string
	// MaxBackoff bounds the time between questions to a switch that does not answer.
	MaxBackoff time.Duration
	// Optional is set if an agent may lack the table. That is no failure.
	Optional bool
	// NextQuery returns the instance and version that the next answer of a switch is to continue.
	NextQuery func(sw string) (instance string, since uint64)
	// Apply applies a report, which is the answer of a switch, with the times of the question and the answer.
	Apply func(sw string, report []byte, sent, received time.Time) error
}

// TotalCounts returns the counts of all switches together.
func (p *Poller) TotalCounts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Follow asks every switch for a table each interval until ctx ends. It asks a failing switch less and less often.
func (p *Poller) Follow(ctx context.Context, t *Table, interval time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	turn := make(chan struct{}, maxPulls)
	for i, sw := range p.Switches {
		first := interval * time.Duration(i) / time.Duration(len(p.Switches))
		wg.Go(func() { p.followSwitch(ctx, t, sw, first, interval, turn) })
	}
}

// followSwitch asks one switch, from first on.
func (p *Poller) followSwitch(ctx context.Context, t *Table, sw string, first, interval time.Duration, turn chan struct{}) {
	wait, failures := first, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		turn <- struct{}{}
		err := p.PullOnce(ctx, t, sw)
		<-turn
		switch wait = interval; {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			continue
		case t.Optional && errors.Is(err, errNoTable):
			wait = max(interval, idleBackoff)
			continue
		}
		if failures == 0 {
			p.Log.Warn("cannot read "+t.Name+" of a switch", "switch", sw, "err", err)
		}
		// After a gap in the versions the next request, for the whole table, is not delayed.
		wait = max(min(interval<<min(failures, 10), t.MaxBackoff), interval)
		failures++
	}
}

// PullOnce asks a switch, applies its answer, and counts both.
func (p *Poller) PullOnce(ctx context.Context, t *Table, sw string) error {
	err := p.fetch(ctx, t, sw)
	if err != nil {
		err = fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	lacks := t.Optional && errors.Is(err, errNoTable)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Pulls++
	if err != nil && !lacks {
		p.counts.Failures++
	}
	return err
}

func (p *Poller) fetch(ctx context.Context, t *Table, sw string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	instance, since := t.NextQuery(sw)
	at, err := url.JoinPath(p.URL(sw), t.Path)
	if err != nil {
		return err
	}
	at += "?" + url.Values{"instance": {instance}, "since": {strconv.FormatUint(since, 10)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	sent := time.Now()
	resp, err := p.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	received := time.Now()
	if resp.StatusCode != http.StatusOK {
		msg, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		err := fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(msg)))
		if resp.StatusCode == http.StatusNotFound { // also of an agent that is older than the request
			return errors.Join(errNoTable, err)
		}
		return err
	}
	report, err := io.ReadAll(io.LimitReader(resp.Body, maxReport+1))
	switch {
	case err != nil:
		return err
	case len(report) > maxReport:
		return fmt.Errorf("a report of more than %d bytes", maxReport)
	}
	return t.Apply(sw, report, sent, received)
}
