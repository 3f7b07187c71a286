package ufmreceiver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/ufm"
)

// restReader reads the REST interface.
type restReader struct {
	r      *ufmReceiver
	client *ufm.Client
	target *target
	zone   *time.Location

	countedEvents ufm.EventLog         // the events that are in counts
	counts        map[[2]string]uint64 // events by kind and severity
	changes       map[ufm.Reason]uint64

	logged *ufm.Memory    // what the pipeline of logs has
	state  *ufm.StateFile // nil if it is not kept

	inventory     time.Time // when it was last read
	version       string
	vports        map[vportKey]int
	unnamedVPorts int // virtual ports of unknown ports
}

type vportKey struct{ nic, state string }

func (r *ufmReceiver) newRESTReader() (*restReader, error) {
	c := r.config
	client, err := ufm.NewClient(c.restOptions())
	if err != nil {
		return nil, err
	}
	zone, err := time.LoadLocation(c.Timezone)
	if err != nil {
		return nil, fmt.Errorf("timezone: %w", err)
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, errors.New("endpoint: a URL is expected")
	}
	r.closers = append(r.closers, client.Close)
	p := &restReader{r: r, client: client, target: newTarget(u.Host), zone: zone, counts: map[[2]string]uint64{}, changes: map[ufm.Reason]uint64{},
		logged: &ufm.Memory{Events: ufm.EventLog{Limit: c.Remembered}}}
	if r.logs != nil {
		p.target.records = new(uint64)
	}
	if c.StateFile != "" && c.Shard == 0 {
		p.state, p.logged, err = ufm.OpenState(c.StateFile, u.Host, c.Remembered)
		switch {
		case errors.Is(err, ufm.ErrBadState):
			p.target.errors[ufm.KindState]++
			r.log.Warn("state file is invalid and will be replaced: the events that UFM lists now are not reported", "target", p.target.name, "err", err)
		case err != nil:
			return nil, err
		}
	}
	p.countedEvents = p.logged.Clone().Events
	return p, nil
}

// subnetName returns the subnet's name for series and log records.
func (p *restReader) subnetName() string {
	if p.r.config.Subnet != "" {
		return p.r.config.Subnet
	}
	return p.target.name
}

// readDue reads what is due. An error does not keep the rest from being read.
func (p *restReader) readDue(ctx context.Context) error {
	o := p.r.newOutlet(p.target)
	now := time.Now()
	fail := failure{target: p.target}
	part := func(what string, err error) {
		if err != nil {
			fail.addError(fmt.Errorf("%s: %w", what, err))
		}
	}
	if p.inventory.IsZero() || now.Sub(p.inventory) >= p.r.config.InventoryInterval {
		if v, err := p.client.FetchInventory(ctx); err != nil {
			part("inventory", err)
		} else {
			p.inventory = now
			p.r.names.SetInventory(v)
			for _, s := range v.Contradictions() {
				p.r.log.Warn("contradiction in the inventory", "target", p.target.name, "what", s)
			}
		}
		v, err := p.client.FetchVersion(ctx)
		if err == nil {
			p.version = v
		}
		part("version", err)
		if p.r.config.Shard == 0 && p.r.metrics != nil {
			part("virtual ports", p.readVPorts(ctx))
		}
	}
	if p.r.config.Shard == 0 {
		part("events", p.readEvents(ctx, o.batch))
		part("alarms", p.readAlarms(ctx, o.batch, now))
		if p.r.metrics != nil {
			if p.version != "" {
				o.addPoint(info, 1, now, now, p.target.name, p.version)
			}
			part("unhealthy ports", p.readUnhealthyPorts(ctx, o.batch, now))
			part("jobs", p.readJobs(ctx, o.batch, now))
			for k, n := range p.vports {
				o.addPoint(nicVPorts, float64(n), now, now, k.nic, k.state)
			}
			if v := p.r.names.CurrentInventory(); v != nil {
				part("states", p.addStates(ctx, o, v))
			}
		}
	}
	fail.addError(o.flushBatch(ctx))
	return fail.first
}

// addStates adds the states of ports and cables from the inventory, at the time of its reading.
func (p *restReader) addStates(ctx context.Context, o *outlet, v *ufm.Inventory) error {
	now := p.inventory
	var failed error
	for _, s := range v.PortStates() {
		one := 0.0
		if s.Up {
			one = 1
		}
		o.addPortPoint(swUp, nicUp, s.Name, one, now, now)
		if s.Gbps > 0 {
			o.addPortPoint(swSpeed, nicSpeed, s.Name, s.Gbps*1e9/8, now, now)
		}
		if s.Lanes > 0 {
			o.addPortPoint(swLanes, nicLanes, s.Name, float64(s.Lanes), now, now)
		}
		if s.ExpectedGbps > 0 {
			o.addPortPoint(swBestSpeed, nicBestSpeed, s.Name, s.ExpectedGbps*1e9/8, now, now)
		}
		if s.ExpectedLanes > 0 {
			o.addPortPoint(swBestLanes, nicBestLanes, s.Name, float64(s.ExpectedLanes), now, now)
		}
		failed = errors.Join(failed, o.flushIfFull(ctx))
	}
	for _, n := range v.SwitchNeighbors() {
		o.addPoint(neighbor, 1, now, now, n.Port.Switch, n.Port.Port, n.Remote, n.RemotePort, n.GUID.String())
		failed = errors.Join(failed, o.flushIfFull(ctx))
	}
	return failed
}

// readEvents counts the new events by kind, and the changes of the subnet that they report, and passes them on
// as log records.
func (p *restReader) readEvents(ctx context.Context, b *batch) error {
	all, err := p.client.FetchEvents(ctx, p.zone)
	if err != nil {
		return err
	}
	kind := func(e ufm.Event) [2]string { return [2]string{ufm.EventKind(e.Code), ufm.SeverityKind(e.Severity)} }
	for _, e := range all { // those from before start at 0
		p.counts[kind(e)] += 0
	}
	for _, e := range p.countedEvents.ConsumeNew(all) {
		p.counts[kind(e)]++
		if why, is := e.ChangeReason(); is {
			p.changes[why]++
		}
	}
	now := time.Now()
	for k, n := range p.counts {
		b.addPoint(events, float64(n), now, p.r.began, p.target.name, k[0], k[1])
	}
	for _, why := range ufm.Reasons {
		b.addPoint(subnetChanges, float64(p.changes[why]), now, p.r.began, p.subnetName(), string(why))
	}
	return p.logEvents(ctx, all)
}

// maxSeries bounds the number of series of alarms.
const maxSeries = 1000

func (p *restReader) readAlarms(ctx context.Context, b *batch, now time.Time) error {
	all, err := p.client.FetchAlarms(ctx, p.zone)
	if err != nil {
		return err
	}
	counts := map[[3]string]int{}
	for _, a := range all {
		k := [3]string{a.Name, a.Severity, a.ObjectDisplayName()}
		if _, there := counts[k]; !there && len(counts) >= maxSeries {
			k = [3]string{ufm.Other, "", ""}
		}
		counts[k]++
	}
	for k, n := range counts {
		b.addPoint(alarms, float64(n), now, now, p.target.name, k[0], k[1], k[2])
	}
	return p.logAlarms(ctx, all)
}

func (p *restReader) readUnhealthyPorts(ctx context.Context, b *batch, now time.Time) error {
	all, bad, err := p.client.FetchUnhealthyPorts(ctx)
	if err != nil {
		return err
	}
	p.target.errors[ufm.KindIdentity] += uint64(bad)
	unnamed := p.unnamedVPorts
	type point struct {
		name      ufm.Name
		condition string
	}
	seen := map[point]bool{}
	for _, u := range all {
		n, known := p.r.names.NameOf(u.Identity)
		if !known {
			unnamed++
			continue
		}
		if k := (point{n, u.Condition}); !seen[k] {
			seen[k] = true
			b.addPortPoint(swUnhealthy, nicUnhealthy, n, 1, now, now, u.Condition)
		}
	}
	p.target.unnamed = &unnamed
	return nil
}

// vportStates maps the states of virtual ports to label values; others become "other".
var vportStates = []string{"active", "armed", "down", "init"}

// readVPorts counts virtual ports by their port and state. A UFM without the list, such as one without
// virtualization, does not count as failing.
func (p *restReader) readVPorts(ctx context.Context) error {
	all, bad, err := p.client.FetchVPorts(ctx)
	if errors.Is(err, ufm.ErrNotOffered) {
		p.vports, p.unnamedVPorts = nil, 0
		return nil
	}
	if err != nil {
		return err
	}
	p.target.errors[ufm.KindIdentity] += uint64(bad)
	p.vports, p.unnamedVPorts = map[vportKey]int{}, 0
	for _, v := range all {
		n, known := p.r.names.NameOf(v.Identity)
		if !known || n.NIC == "" {
			p.unnamedVPorts++
			continue
		}
		state := strings.ToLower(v.State)
		if !slices.Contains(vportStates, state) {
			state = ufm.Other
		}
		p.vports[vportKey{n.NIC, state}]++
	}
	return nil
}

// jobStates maps UFM's statuses of jobs to label values; others become "other".
var jobStates = map[string]string{"running": "running", "completed": "completed", "completed with errors": "completed_with_errors", "aborted": "aborted"}

// readJobs counts UFM's own jobs by status. A UFM without the list does not count as failing.
func (p *restReader) readJobs(ctx context.Context, b *batch, now time.Time) error {
	all, err := p.client.CountJobs(ctx)
	if errors.Is(err, ufm.ErrNotOffered) {
		return nil
	}
	if err != nil {
		return err
	}
	counts := map[string]int{ufm.Other: 0}
	for _, s := range jobStates {
		counts[s] = 0
	}
	for status, n := range all {
		s, known := jobStates[strings.ToLower(status)]
		if !known {
			s = ufm.Other
		}
		counts[s] += n
	}
	for s, n := range counts {
		b.addPoint(jobs, float64(n), now, now, p.target.name, s)
	}
	return nil
}
