package ufmreceiver

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/graylink/graylink/internal/ufm"
)

// telemetryReader reads one telemetry service.
type telemetryReader struct {
	r        *ufmReceiver
	config   *Telemetry
	client   *ufm.Client
	source   *ufm.Source
	target   *target
	families map[familyKey]*family
	told     map[string]bool // unknown columns that the log has
	// whole: the service gives every shard all ports.
	whole bool
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
	table, err := ufm.NewTable(r.config.Columns, r.config.Optics)
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, client.Close)
	return &telemetryReader{r: r, config: t, client: client, source: ufm.NewSource(table, &r.names), target: newTarget(t.target()),
		families: map[familyKey]*family{}, told: map[string]bool{}}, nil
}

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
	o := t.r.outlet(t.target)
	var report ufm.Report
	began := time.Now()
	silent := t.whole && t.r.config.Shard != 0 // shard 0 has told them
	err := t.client.Get(ctx, t.path(), func(body io.Reader) (err error) {
		report, err = t.source.Read(t.config.format(), body, func(s ufm.Sample) error {
			if silent {
				return nil
			}
			t.sample(o.batch, s, began)
			return o.full(ctx)
		})
		return err
	})
	for k, n := range report.Errors {
		t.target.errors[k] += uint64(n)
	}
	if report.Rows == 0 {
		t.target.age, t.target.unnamed, t.target.shared = nil, nil, nil
		return err
	}
	fail := failure{target: t.target}
	fail.add(err)
	ports := 0
	t.source.Each(func(p *ufm.Port) {
		if ports++; silent {
			return
		}
		o.port(swResets, nicResets, p.Name, float64(p.Resets), began, t.r.began)
		fail.add(o.full(ctx))
	})
	if err == nil {
		fail.add(t.divided(ports))
	}
	unknown := t.source.Table.Unknown()
	for _, name := range unknown {
		if !t.told[name] {
			t.told[name] = true
			t.r.log.Info("a column is not known and left out", "target", t.target.name, "column", name)
		}
	}
	n, m, k := len(unknown), report.Unnamed, report.Shared
	t.target.unknown, t.target.unnamed, t.target.shared, t.target.age = &n, &m, &k, nil
	if !report.Oldest.IsZero() {
		age := time.Since(report.Oldest)
		t.target.age = &age
	}
	fail.add(o.flush(ctx))
	return fail.first
}

// minDivided is how many ports a shard has at least before all of them in one shard
// are taken for a service that does not divide: 64 ports fall to one of two shards by
// chance once in 2^63.
const minDivided = 64

// divided tells of a service that gives a shard all ports that the inventory has: it
// does not know of shards, and every receiver would tell every port. Then shard 0 alone
// does, from the next reading on.
func (t *telemetryReader) divided(ports int) error {
	v := t.r.names.Inventory()
	t.whole = false
	if t.r.config.NumShards == 1 || v == nil || ports < minDivided || ports < v.Telling() {
		return nil
	}
	t.whole = true
	return &ufm.Error{Kind: ufm.KindShards, Err: fmt.Errorf("%s: shard %d of %d has all %d ports: the service does not divide them, and shard 0 alone tells them",
		t.target.name, t.r.config.Shard, t.r.config.NumShards, ports)}
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
