package ufmreceiver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap/exp/zapslog"

	"github.com/graylink/graylink/internal/ufm"
)

// ufmReceiver reads one UFM: a goroutine for its REST interface and one for each
// telemetry service, which end with Shutdown.
type ufmReceiver struct {
	config   *Config
	settings receiver.Settings
	next     consumer.Metrics

	log   *slog.Logger
	names ufm.Directory
	began time.Time
	stop  context.CancelFunc
	wg    sync.WaitGroup
	close []func()
}

// Start begins to read. It does not wait for UFM.
func (r *ufmReceiver) Start(context.Context, component.Host) error {
	r.log = slog.New(zapslog.NewHandler(r.settings.Logger.Core()))
	r.began = time.Now()
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	var loops []func()
	if r.config.Endpoint != "" {
		p, err := r.rest()
		if err != nil {
			stop()
			return err
		}
		loops = append(loops, func() { r.run(ctx, r.config.Interval, p.target, p.read) })
	}
	for i := range r.config.Telemetry {
		t := &r.config.Telemetry[i]
		p, err := r.telemetry(t)
		if err != nil {
			stop()
			return fmt.Errorf("telemetry[%d]: %w", i, err)
		}
		loops = append(loops, func() { r.run(ctx, t.Interval, p.target, p.read) })
	}
	for _, loop := range loops {
		r.wg.Go(loop)
	}
	return nil
}

// Shutdown ends it. It may be called without Start.
func (r *ufmReceiver) Shutdown(context.Context) error {
	if r.stop == nil {
		return nil
	}
	r.stop()
	r.wg.Wait()
	for _, c := range r.close {
		c()
	}
	r.close = nil
	return nil
}

// target is what is told of every target.
type target struct {
	name    string
	errors  map[ufm.Kind]uint64
	samples uint64
	age     *time.Duration
	unknown *int
	unnamed *int
}

func newTarget(name string) *target { return &target{name: name, errors: map[ufm.Kind]uint64{}} }

// run reads now, and at every interval.
func (r *ufmReceiver) run(ctx context.Context, every time.Duration, t *target, read func(context.Context) error) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		began := time.Now()
		err := read(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.errors[ufm.KindOf(err)]++
			r.log.Warn("reading failed", "target", t.name, "kind", string(ufm.KindOf(err)), "err", err)
		}
		now := time.Now()
		if err := r.pass(ctx, r.health(t, err == nil, now, now.Sub(began))); err != nil {
			t.errors[ufm.KindConsumer]++
			r.log.Warn("metrics are not taken", "target", t.name, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// health is how the reading of a target goes.
func (r *ufmReceiver) health(t *target, ok bool, now time.Time, d time.Duration) *batch {
	b := newBatch()
	one := 0.0
	if ok {
		one = 1
	}
	b.add(up, one, now, r.began, t.name)
	b.add(took, d.Seconds(), now, r.began, t.name)
	for _, k := range ufm.Kinds {
		b.add(failures, float64(t.errors[k]), now, r.began, t.name, string(k))
	}
	b.add(samples, float64(t.samples), now, r.began, t.name)
	if t.age != nil {
		b.add(sampleAge, t.age.Seconds(), now, r.began, t.name)
	}
	if t.unknown != nil {
		b.add(unknown, float64(*t.unknown), now, r.began, t.name)
	}
	if t.unnamed != nil {
		b.add(unnamed, float64(*t.unnamed), now, r.began, t.name)
	}
	return b
}

// pass passes a batch on.
func (r *ufmReceiver) pass(ctx context.Context, b *batch) error {
	if b.n == 0 {
		return nil
	}
	if err := r.next.ConsumeMetrics(ctx, b.metrics); err != nil {
		return &ufm.Error{Kind: ufm.KindConsumer, Err: err}
	}
	return nil
}

// telemetryReader reads one telemetry service.
type telemetryReader struct {
	r        *ufmReceiver
	config   *Telemetry
	client   *ufm.Client
	source   *ufm.Source
	target   *target
	families map[familyKey]*family
	told     map[string]bool // unknown columns that the log has
}

type familyKey struct {
	metric *ufm.Metric
	nic    bool
}

func (r *ufmReceiver) telemetry(t *Telemetry) (*telemetryReader, error) {
	client, err := ufm.NewClient(r.config.telemetry(t))
	if err != nil {
		return nil, err
	}
	table, err := ufm.NewTable(r.config.Columns)
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, client.Close)
	return &telemetryReader{r, t, client, ufm.NewSource(table, &r.names), newTarget(t.target()), map[familyKey]*family{}, map[string]bool{}}, nil
}

// maxBatch bounds how many points are passed on at once, and so the memory it takes.
const maxBatch = 20_000

// path is the document's, with this receiver's part of the ports.
func (t *telemetryReader) path() string {
	c := t.r.config
	if c.NumShards == 1 {
		return t.config.Path
	}
	return fmt.Sprintf("%s?num_shards=%d&shard=%d&sharding_field=port_guid", t.config.Path, c.NumShards, c.Shard)
}

func (t *telemetryReader) family(m *ufm.Metric, nic bool) *family {
	key := familyKey{m, nic}
	f := t.families[key]
	if f == nil {
		f = columnFamily(m, nic)
		t.families[key] = f
	}
	return f
}

// read reads the document and passes on samples as they come.
func (t *telemetryReader) read(ctx context.Context) error {
	b := newBatch()
	flush := func() error {
		n := b.n
		if err := t.r.pass(ctx, b); err != nil {
			return err
		}
		t.target.samples += uint64(n)
		b = newBatch()
		return nil
	}
	var report ufm.Report
	began := time.Now()
	err := t.client.Get(ctx, t.path(), func(body io.Reader) (err error) {
		report, err = t.source.Read(t.config.format(), body, func(s ufm.Sample) error {
			t.sample(b, s, began)
			if b.n < maxBatch {
				return nil
			}
			return flush()
		})
		return err
	})
	for k, n := range report.Errors {
		t.target.errors[k] += uint64(n)
	}
	if report.Rows == 0 {
		t.target.age, t.target.unnamed = nil, nil
		return err
	}
	t.source.Each(func(p *ufm.Port) {
		b.port(swResets, nicResets, p.Name, float64(p.Resets), began, t.r.began)
	})
	unknown := t.source.Table.Unknown()
	for _, name := range unknown {
		if !t.told[name] {
			t.told[name] = true
			t.r.log.Info("a column is not known and left out", "target", t.target.name, "column", name)
		}
	}
	n, m := len(unknown), report.Unnamed
	t.target.unknown, t.target.unnamed, t.target.age = &n, &m, nil
	if !report.Oldest.IsZero() {
		age := time.Since(report.Oldest)
		t.target.age = &age
	}
	if e := flush(); err == nil {
		err = e
	}
	return err
}

func (t *telemetryReader) sample(b *batch, s ufm.Sample, now time.Time) {
	at, since := s.At, s.Port.Since
	if at.IsZero() {
		at = now
	}
	if since.IsZero() {
		since = t.r.began
	}
	f := t.family(s.Column.Metric, s.Port.NIC != "")
	label := s.Column.Value
	if s.State != "" {
		label = s.State
	}
	var values [3]string
	v := values[:0]
	if s.Port.NIC != "" {
		v = append(v, s.Port.NIC)
	} else {
		v = append(v, s.Port.Switch, s.Port.Name.Port)
	}
	if s.Column.Metric.Label != "" {
		v = append(v, label)
	}
	b.add(f, s.Value, at, since, v...)
}

// restReader reads the REST interface.
type restReader struct {
	r         *ufmReceiver
	client    *ufm.Client
	target    *target
	zone      *time.Location
	log       ufm.EventLog
	counts    map[[2]string]uint64 // events by name and severity
	inventory time.Time            // when it was read last
	version   string
}

func (r *ufmReceiver) rest() (*restReader, error) {
	client, err := ufm.NewClient(r.config.rest())
	if err != nil {
		return nil, err
	}
	zone, err := time.LoadLocation(r.config.Timezone)
	if err != nil {
		return nil, fmt.Errorf("timezone: %w", err)
	}
	u, err := url.Parse(r.config.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint: a URL is expected")
	}
	r.close = append(r.close, client.Close)
	return &restReader{r: r, client: client, target: newTarget(u.Host), zone: zone, counts: map[[2]string]uint64{}}, nil
}

// read reads what is due. What fails does not keep the rest from being read.
func (p *restReader) read(ctx context.Context) error {
	b := newBatch()
	now := time.Now()
	var first error
	failed := func(err error) {
		if first == nil {
			first = err
		} else {
			p.target.errors[ufm.KindOf(err)]++ // run counts the first
		}
	}
	if p.inventory.IsZero() || now.Sub(p.inventory) >= p.r.config.InventoryInterval {
		if v, err := p.client.Inventory(ctx); err != nil {
			failed(fmt.Errorf("inventory: %w", err))
		} else {
			p.inventory = now
			p.r.names.Set(v)
			for _, s := range v.Found() {
				p.r.log.Warn("the inventory contradicts itself", "target", p.target.name, "what", s)
			}
		}
		if v, err := p.client.Version(ctx); err != nil {
			failed(fmt.Errorf("version: %w", err))
		} else {
			p.version = v
		}
	}
	if p.r.config.Shard == 0 {
		if v := p.r.names.Inventory(); v != nil {
			p.states(b, v, p.inventory)
		}
		if p.version != "" {
			b.add(info, 1, now, now, p.target.name, p.version)
		}
		if err := p.events(ctx, b); err != nil {
			failed(fmt.Errorf("events: %w", err))
		}
		if err := p.alarms(ctx, b, now); err != nil {
			failed(fmt.Errorf("alarms: %w", err))
		}
		if err := p.unhealthy(ctx, b, now); err != nil {
			failed(fmt.Errorf("unhealthy ports: %w", err))
		}
	}
	p.target.samples += uint64(b.n)
	if err := p.r.pass(ctx, b); err != nil {
		failed(err)
	}
	return first
}

func (p *restReader) states(b *batch, v *ufm.Inventory, now time.Time) {
	for _, s := range v.States() {
		one := 0.0
		if s.Up {
			one = 1
		}
		b.port(swUp, nicUp, s.Name, one, now, now)
		if s.Gbps > 0 {
			b.port(swSpeed, nicSpeed, s.Name, s.Gbps*1e9/8, now, now)
		}
	}
}

// maxSeries bounds the series of events, and those of alarms.
const maxSeries = 1000

func (p *restReader) events(ctx context.Context, b *batch) error {
	all, err := p.client.Events(ctx, p.zone)
	if err != nil {
		return err
	}
	key := func(e ufm.Event) [2]string {
		k := [2]string{e.Name, e.Severity}
		if e.Name == "" {
			k[0] = e.Code
		}
		if _, there := p.counts[k]; !there && len(p.counts) >= maxSeries {
			return [2]string{"other", ""}
		}
		return k
	}
	for _, e := range all { // those from before begin with 0
		p.counts[key(e)] += 0
	}
	for _, e := range p.log.New(all) {
		p.counts[key(e)]++
	}
	now := time.Now()
	for k, n := range p.counts {
		b.add(events, float64(n), now, p.r.began, p.target.name, k[0], k[1])
	}
	return nil
}

func (p *restReader) alarms(ctx context.Context, b *batch, now time.Time) error {
	all, err := p.client.Alarms(ctx)
	if err != nil {
		return err
	}
	counts := map[[3]string]int{}
	for _, a := range all {
		k := [3]string{a.Name, a.Severity, a.Object}
		if _, there := counts[k]; !there && len(counts) >= maxSeries {
			k = [3]string{"other", "", ""}
		}
		counts[k]++
	}
	for k, n := range counts {
		b.add(alarms, float64(n), now, now, p.target.name, k[0], k[1], k[2])
	}
	return nil
}

func (p *restReader) unhealthy(ctx context.Context, b *batch, now time.Time) error {
	all, bad, err := p.client.UnhealthyPorts(ctx)
	if err != nil {
		return err
	}
	p.target.errors[ufm.KindIdentity] += uint64(bad)
	nobody := 0
	type point struct {
		name      ufm.Name
		condition string
	}
	seen := map[point]bool{}
	for _, u := range all {
		n, known := p.r.names.Name(u.Identity)
		if !known {
			nobody++
			continue
		}
		if k := (point{n, u.Condition}); !seen[k] {
			seen[k] = true
			b.port(swUnwell, nicUnwell, n, 1, now, now, u.Condition)
		}
	}
	p.target.unnamed = &nobody
	return nil
}
