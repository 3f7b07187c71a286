// Package pull reads the routes and sessions of switches from their agents, and keeps the last table of each.
package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/analyzer/routing"
	"github.com/graylink/graylink/internal/routetable"
)

const (
	// pullTimeout bounds one question and its answer.
	pullTimeout = 5 * time.Second
	// maxBackoff bounds the time between questions to a switch that does not answer. It is shorter than KnownFor, so that a
	// switch which fails once does not become unknown.
	maxBackoff = 8 * time.Second
	// idleBackoff is the time between questions to a switch whose agent does not read routes.
	idleBackoff = time.Minute
	// maxPulls bounds the answers read at the same time, and so their memory.
	maxPulls = 16
	// KnownFor is how long the table of a switch that does not answer counts as known.
	KnownFor = 10 * time.Second
)

// errNoRoutes means that the agent of a switch does not read routes.
var errNoRoutes = errors.New("the agent does not read routes")

// Reader reads the routes of switches. Its fields must not change after Run began.
type Reader struct {
	Client *http.Client
	// URL returns the base URL of a switch, without a path.
	URL func(sw string) string
	// Switches are the switches that have an agent.
	Switches []string
	Log      *slog.Logger

	mu     sync.Mutex
	tables map[string]*kept
	counts Counts
}

// kept is the last table of a switch, and when its last answer arrived. said is the same in the words of package routing, as of a
// version of the view. It is nil before it is asked for.
type kept struct {
	view     routetable.View
	received time.Time
	said     *routing.Switch
	version  uint64
	instance string
}

// Counts counts requests to switches since the start.
type Counts struct{ Pulls, Failures uint64 }

// TotalCounts returns the counts of all switches together.
func (r *Reader) TotalCounts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// Known returns the tables of the switches that answered within KnownFor before now, by name. Tables of a switch that has
// no room for all prefixes are not known, but its sessions are. The caller must not change the maps.
func (r *Reader) Known(now time.Time) map[string]routetable.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]routetable.View, len(r.tables))
	for sw, k := range r.tables {
		if now.Sub(k.received) > KnownFor {
			continue
		}
		v := k.view
		if v.Omitted > 0 {
			v.FIB, v.RIB, v.Paths, v.Changed = nil, nil, nil, nil
		}
		out[sw] = v
	}
	return out
}

// Reported returns what the switches said that answered within KnownFor before now, by name. The caller must not change it.
func (r *Reader) Reported(now time.Time) map[string]*routing.Switch {
	known := r.Known(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]*routing.Switch, len(known))
	for sw, v := range known {
		k := r.tables[sw]
		if k == nil {
			continue
		}
		if k.said == nil || k.version != v.Version || k.instance != v.Instance {
			k.said, k.version, k.instance = inWords(&v), v.Version, v.Instance
		}
		said := *k.said
		said.At, said.RIBAt = v.At, v.RIBAt
		out[sw] = &said
	}
	return out
}

// inWords returns a view in the words of package routing.
func inWords(v *routetable.View) *routing.Switch {
	out := &routing.Switch{Name: v.Switch, FIB: byText(v.FIB), RIB: byText(v.RIB), Paths: byText(v.Paths)}
	for _, s := range v.Sessions {
		x := routing.Session{Port: s.Port, Protocol: s.Protocol, Up: s.Up, Detection: s.Detection}
		if s.Established != nil {
			x.Established = *s.Established
		}
		if s.Downs != nil {
			x.Downs = *s.Downs
		}
		out.Sessions = append(out.Sessions, x)
	}
	return out
}

// byText returns routes by the text of their prefixes. Unknown routes stay unknown.
func byText(routes map[netip.Prefix][]string) map[string][]string {
	if routes == nil {
		return nil
	}
	out := make(map[string][]string, len(routes))
	for p, ports := range routes {
		out[p.String()] = ports
	}
	return out
}

// Run reads from every switch each interval until ctx ends. It requests a failing switch less and less often.
func (r *Reader) Run(ctx context.Context, interval time.Duration) {
	var wg sync.WaitGroup
	defer wg.Wait()
	turn := make(chan struct{}, maxPulls)
	for i, sw := range r.Switches {
		first := interval * time.Duration(i) / time.Duration(len(r.Switches))
		wg.Go(func() { r.followSwitch(ctx, sw, first, interval, turn) })
	}
}

// followSwitch reads from one switch, from first on.
func (r *Reader) followSwitch(ctx context.Context, sw string, first, interval time.Duration, turn chan struct{}) {
	wait, failures := first, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		turn <- struct{}{}
		err := r.pullOnce(ctx, sw)
		<-turn
		switch wait = interval; {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			continue
		case errors.Is(err, errNoRoutes):
			wait = max(interval, idleBackoff)
			continue
		}
		if failures == 0 {
			r.Log.Warn("cannot read routes of a switch", "switch", sw, "err", err)
		}
		wait = max(min(interval<<min(failures, 10), maxBackoff), interval)
		failures++
	}
}

func (r *Reader) pullOnce(ctx context.Context, sw string) error {
	err := r.fetchReport(ctx, sw)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Pulls++
	if err != nil && !errors.Is(err, errNoRoutes) {
		r.counts.Failures++
	}
	return err
}

// nextQuery returns the instance and version that the next answer of a switch is to continue.
func (r *Reader) nextQuery(sw string) (instance string, since uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.tables[sw]; k != nil {
		return k.view.Instance, k.view.Version
	}
	return "", 0
}

// fetchReport requests a report of a switch, and applies it.
func (r *Reader) fetchReport(ctx context.Context, sw string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	instance, since := r.nextQuery(sw)
	at, err := url.JoinPath(r.URL(sw), "/api/v1/routes")
	if err != nil {
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	at += "?" + url.Values{"instance": {instance}, "since": {strconv.FormatUint(since, 10)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound: // also of an agent that is older than this endpoint
		return fmt.Errorf("agent of switch %q: %w", sw, errNoRoutes)
	default:
		msg, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return fmt.Errorf("agent of switch %q: %s: %s", sw, resp.Status, strings.TrimSpace(string(msg)))
	}
	report, err := routetable.ReadReport(resp.Body)
	if err != nil {
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	return r.apply(sw, report, time.Now())
}

// apply applies a report that was received at a time. If it does not continue the table, the table is forgotten, so that
// the next query is for the whole.
func (r *Reader) apply(sw string, report *routetable.Report, received time.Time) error {
	if report.Switch != sw {
		return fmt.Errorf("agent of switch %q: it reports of switch %q", sw, report.Switch)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.tables[sw]
	if k == nil {
		k = &kept{}
	}
	if err := k.view.Apply(report); err != nil {
		delete(r.tables, sw)
		return fmt.Errorf("agent of switch %q: %w", sw, err)
	}
	k.received = received
	if r.tables == nil {
		r.tables = map[string]*kept{}
	}
	r.tables[sw] = k
	return nil
}
