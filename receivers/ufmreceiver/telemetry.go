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
	r             *ufmReceiver
	config        *Telemetry
	client        *ufm.Client
	source        *ufm.Source
	target        *target
	families      map[familyKey]*family
	loggedColumns map[string]bool // unknown columns that have been logged
	// undivided means that the service gives every shard all ports.
	undivided bool
}

type familyKey struct {
	metric *ufm.Metric
	nic    bool
}

func (r *ufmReceiver) newTelemetryReader(t *Telemetry) (*telemetryReader, error) {
	client, err := ufm.NewClient(r.config.telemetryOptions(t))
	if err != nil {
		return nil, err
	}
	table, err := ufm.NewTable(r.config.Columns, r.config.Optics)
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, client.Close)
	return &telemetryReader{r: r, config: t, client: client, source: ufm.NewSource(table, &r.names), target: newTarget(t.targetName()),
		families: map[familyKey]*family{}, loggedColumns: map[string]bool{}}, nil
}

// requestPath returns the path of the document, with this receiver's part of the ports.
func (t *telemetryReader) requestPath() string {
	c := t.r.config
	if c.NumShards == 1 {
		return t.config.Path
	}
	return fmt.Sprintf("%s?num_shards=%d&shard=%d&sharding_field=port_guid", t.config.Path, c.NumShards, c.Shard)
}

func (t *telemetryReader) familyFor(m *ufm.Metric, nic bool) *family {
	key := familyKey{m, nic}
	f := t.families[key]
	if f == nil {
		f = columnFamily(m, nic)
		t.families[key] = f
	}
	return f
}

// readDocument reads the document and passes on samples as they arrive.
func (t *telemetryReader) readDocument(ctx context.Context) error {
	o := t.r.newOutlet(t.target)
	var report ufm.Report
	began := time.Now()
	silent := t.undivided && t.r.config.Shard != 0 // shard 0 passes them on
	err := t.client.Get(ctx, t.requestPath(), func(body io.Reader) (err error) {
		report, err = t.source.Read(t.config.documentFormat(), body, func(s ufm.Sample) error {
			if silent {
				return nil
			}
			t.addSample(o.batch, s, began)
			return o.flushIfFull(ctx)
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
	fail.addError(err)
	ports := 0
	t.source.EachPort(func(p *ufm.Port) {
		if ports++; silent {
			return
		}
		o.addPortPoint(swResets, nicResets, p.Name, float64(p.Resets), began, t.r.began)
		fail.addError(o.flushIfFull(ctx))
	})
	if err == nil {
		fail.addError(t.checkSharding(ports))
	}
	unknown := t.source.Table.UnknownColumns()
	for _, name := range unknown {
		if !t.loggedColumns[name] {
			t.loggedColumns[name] = true
			t.r.log.Info("unknown column of telemetry is left out", "target", t.target.name, "column", name)
		}
	}
	n, m, k := len(unknown), report.Unnamed, report.Shared
	t.target.unknown, t.target.unnamed, t.target.shared, t.target.age = &n, &m, &k, nil
	if !report.Oldest.IsZero() {
		age := time.Since(report.Oldest)
		t.target.age = &age
	}
	fail.addError(o.flushBatch(ctx))
	return fail.first
}

// minDivided is the smallest number of ports with which a shard that has all of them shows that the service
// does not divide them: 64 ports are all in one of two shards by chance once in 2^63.
const minDivided = 64

// checkSharding returns an error if a service gives a shard all ports of the inventory. Such a service ignores
// shards, and every receiver would report every port. From the next reading on, only shard 0 does.
func (t *telemetryReader) checkSharding(ports int) error {
	v := t.r.names.CurrentInventory()
	t.undivided = false
	if t.r.config.NumShards == 1 || v == nil || ports < minDivided || ports < v.ActivePortCount() {
		return nil
	}
	t.undivided = true
	return &ufm.Error{Kind: ufm.KindShards, Err: fmt.Errorf("%s: shard %d of %d has all %d ports: the service does not divide them, and only shard 0 passes them on",
		t.target.name, t.r.config.Shard, t.r.config.NumShards, ports)}
}

func (t *telemetryReader) addSample(b *batch, s ufm.Sample, now time.Time) {
	at, since := s.At, s.Port.Since
	if at.IsZero() {
		at = now
	}
	if since.IsZero() {
		since = t.r.began
	}
	f := t.familyFor(s.Column.Metric, s.Port.NIC != "")
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
	b.addPoint(f, s.Value, at, since, v...)
}
