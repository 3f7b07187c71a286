package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/graylink/graylink/analyzer/collectives"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/publish"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/cmd/graylink/labjob"
	"github.com/graylink/graylink/internal/collectivejob"
	"github.com/graylink/graylink/internal/fabric"
)

// The job of the demo: small operations, so that two cores have time for everything else.
const (
	jobName    = "train1"
	jobRanks   = 8
	jobBytes   = 512 << 10
	jobChunk   = 32 << 10
	jobCompute = 60 * time.Millisecond
	lateRank   = 3
	lateBy     = 80 * time.Millisecond
)

// Patience of the demo with its job.
const (
	normalTimeout    = 3 * time.Minute // until it is known what is normal for the job
	trafficTimeout   = time.Minute     // until the job has sent enough to see which links it crosses
	diagnosisTimeout = 2 * time.Minute // until the analyzer says what the job waits for
	overTimeout      = 2 * time.Minute // until it says that this is over
)

// normalOperations is the number of operations that have to be compared with what is normal before something is broken.
const normalOperations = 48

// enoughOctets is what the busiest uplink has to have sent before an uplink is chosen: far more than the probes send meanwhile.
const enoughOctets = 4 << 20

// JobOutcome is what was said of the demo's job.
type JobOutcome struct {
	Name string `json:"name"`
	// Link is the diagnosis while the link was broken, and Late the one while a rank came late. Nil: none was right in time.
	Link          *workload.Diagnosis `json:"link"`
	SecondsToLink *float64            `json:"seconds_to_link"`
	// LateRank is the rank that was made late, and LateNode its node. The node is empty until then.
	LateRank      int                 `json:"late_rank"`
	LateNode      string              `json:"late_node"`
	Late          *workload.Diagnosis `json:"late"`
	SecondsToLate *float64            `json:"seconds_to_late"`
}

// IsCorrect reports whether both diagnoses were right.
func (o *JobOutcome) IsCorrect() bool { return o == nil || o.Link != nil && o.Late != nil }

// runningJob is the demo's job, and what follows it.
type runningJob struct {
	*labjob.Job
	placements *jobs.Register
	follower   *collectives.Follower
	judged     atomic.Int64 // operations that were compared with what is normal
}

// collectivesDir returns the directory in which an agent finds the records of its node's ranks, and "" without a job.
func (d *Demo) collectivesDir(node string) string {
	if !d.o.Job {
		return ""
	}
	return filepath.Join(d.dir, "collectives", node)
}

// startJob starts the job.
func (d *Demo) startJob(run context.Context) error {
	l := d.Lab()
	if !d.o.Job || l == nil {
		return nil
	}
	members, err := labjob.Members(l.Topology(), nil, labjob.Port)
	if err != nil {
		return err
	}
	members = members[:min(jobRanks, len(members))]
	options := labjob.ForEachRank(collectivejob.Options{Job: jobName, Op: collectivejob.AllReduce, Bytes: jobBytes, Chunk: jobChunk, Compute: jobCompute}, members)
	program := d.o.Executable
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	j := &runningJob{placements: jobs.NewRegister(d.g)}
	if j.Job, err = labjob.Start(run, l, program, options, io.Discard, filepath.Join(d.dir, "collectives")); err != nil {
		return fmt.Errorf("job %s: %w", jobName, err)
	}
	p := jobs.Placement{Job: jobName}
	for _, m := range members {
		p.Nodes = append(p.Nodes, m.Host)
	}
	j.placements.ReplaceSource("demo", []jobs.Placement{p})
	d.job = j
	d.printProgress("job %s runs: %d ranks in a ring, one a node", jobName, len(members))
	return nil
}

// followJob lets the analyzer follow the job until run ends, and count its operations in the series.
func (d *Demo) followJob(run context.Context, series *publish.Collectives) {
	j := d.job
	j.follower = collectives.New(collectives.Options{Graph: d.g, Client: httpClient(d.site.dialAgent), URL: AgentURL, Snapshot: d.loop.Snapshot, Jobs: j.placements,
		Judged: func(o workload.Judged) {
			j.judged.Add(1)
			series.Observe(o)
		}, Log: d.o.Log})
	d.background.Go(func() { j.follower.Run(run, func(collectives.State) {}) })
}

// Job reports whether a job runs.
func (d *Demo) Job() bool { return d.job != nil }

// await waits until done returns true. It returns an error if an agent or the job ends, and false after the limit.
func (d *Demo) await(ctx context.Context, limit time.Duration, what string, done func() (bool, error)) (bool, error) {
	deadline, said := time.Now().Add(limit), time.Now()
	for {
		if ok, err := done(); ok || err != nil {
			return ok, err
		}
		if err := errors.Join(d.site.agentError(), d.job.Err()); err != nil {
			return false, err
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		if time.Since(said) >= 5*time.Second {
			said = time.Now()
			d.printProgress("  waiting %s", what)
		}
		if err := sleepContext(ctx, 100*time.Millisecond); err != nil {
			return false, err
		}
	}
}

// awaitNormal waits until it is known what is normal for the job, and nothing is said against it.
func (d *Demo) awaitNormal(ctx context.Context) error {
	ok, err := d.await(ctx, normalTimeout, "until it is known how long the job's operations take", func() (bool, error) {
		return d.job.judged.Load() >= normalOperations && len(d.openDiagnoses()) == 0, nil
	})
	if err == nil && !ok {
		err = fmt.Errorf("after %s it is not known what is normal for job %s: %d operations were compared", normalTimeout, jobName, d.job.judged.Load())
	}
	if err == nil {
		d.printProgress("it is known how long the operations of job %s take", jobName)
	}
	return err
}

// openDiagnoses returns the diagnoses of the job that are open.
func (d *Demo) openDiagnoses() (out []workload.Diagnosis) {
	for _, x := range d.job.follower.State().Report.Diagnoses {
		if x.Open {
			out = append(out, x)
		}
	}
	return out
}

// portOctets is a port of a switch and the octets that it has sent.
type portOctets struct {
	IfName, IfAlias string
	Stats           struct{ TX struct{ Bytes uint64 } } `json:"stats64"`
}

// parsePorts returns the octets that each port of a switch has sent, by the text of "ip -j -s link show". The lab writes the
// name of a port that is not its interface's as the alias.
func parsePorts(sw string, text []byte) (map[string]uint64, error) {
	var links []portOctets
	if err := json.Unmarshal(text, &links); err != nil {
		return nil, fmt.Errorf("ports of %s: %w", sw, err)
	}
	sent := map[string]uint64{}
	for _, l := range links {
		name := l.IfAlias
		if name == "" {
			name = l.IfName
		}
		sent[sw+":"+name] = l.Stats.TX.Bytes
	}
	return sent, nil
}

// uplinks returns the directions from switches to those of a higher tier, in the topology's order.
func uplinks(g *fabric.Graph) (out []fabric.Direction) {
	for _, l := range fabricLinks(g) {
		for _, dir := range []fabric.Direction{{From: l.A, To: l.B}, {From: l.B, To: l.A}} {
			if g.SwitchTier(fabric.OwnerOf(dir.From)) < g.SwitchTier(fabric.OwnerOf(dir.To)) {
				out = append(out, dir)
			}
		}
	}
	return out
}

// chooseUplink returns one of the uplinks that sent at least half as much as the busiest one, by the seed.
func chooseUplink(ups []fabric.Direction, sent map[string]uint64, seed uint64) fabric.Direction {
	most := uint64(0)
	for _, u := range ups {
		most = max(most, sent[u.From])
	}
	busy := slices.DeleteFunc(slices.Clone(ups), func(u fabric.Direction) bool { return sent[u.From] < most-most/2 })
	return busy[seed%uint64(len(busy))]
}

// sentOctets returns the octets that the ports of all switches have sent, by the counters of the kernel.
func (d *Demo) sentOctets(ctx context.Context) (map[string]uint64, error) {
	all := map[string]uint64{}
	for i := range d.g.Topo.Switches {
		sw := d.g.Topo.Switches[i].Name
		text, err := d.Lab().Command(ctx, sw, "ip", "-j", "-s", "link", "show").Output()
		if err != nil {
			return nil, fmt.Errorf("ports of %s: %w", sw, err)
		}
		sent, err := parsePorts(sw, text)
		if err != nil {
			return nil, err
		}
		for port, n := range sent {
			all[port] = n
		}
	}
	return all, nil
}

// MoveToJob places a fault of a link on an uplink that the job's data cross, by the counters of the kernel.
func (d *Demo) MoveToJob(ctx context.Context, p *PlannedFault, seed uint64) error {
	if err := d.awaitNormal(ctx); err != nil {
		return err
	}
	ups := uplinks(d.g)
	if len(ups) == 0 {
		return errors.New("--job: the topology has no link between switches of different tiers")
	}
	before, err := d.sentOctets(ctx)
	if err != nil {
		return err
	}
	var sent map[string]uint64
	ok, err := d.await(ctx, trafficTimeout, "until the job has sent enough to see which links it crosses", func() (bool, error) {
		now, err := d.sentOctets(ctx)
		if err != nil {
			return false, err
		}
		most := uint64(0)
		sent = map[string]uint64{}
		for _, u := range ups {
			sent[u.From] = now[u.From] - before[u.From]
			most = max(most, sent[u.From])
		}
		return most >= enoughOctets, nil
	})
	if err == nil && !ok {
		err = fmt.Errorf("--job: after %s the job has sent less than %d MiB across any uplink", trafficTimeout, enoughOctets>>20)
	}
	if err != nil {
		return err
	}
	u := chooseUplink(ups, sent, seed)
	p.Element, p.Direction = d.g.LinkAt(u.From).ID(), u.String()
	p.Fault.At, p.Fault.Direction = p.Element, p.Direction
	return nil
}

// blames reports whether a diagnosis is that the network is guilty by an element.
func blames(x *workload.Diagnosis, link string) bool {
	e := x.Network.Element
	return (x.Syndrome == workload.CommSlow || x.Syndrome == workload.CommHang) && x.Network.State == workload.Guilty && (e == link || e != "" && strings.HasPrefix(link, e+"--"))
}

// blamesRank reports whether a diagnosis is that a rank comes late, and the network is innocent.
func blamesRank(x *workload.Diagnosis, rank int) bool {
	return x.Syndrome == workload.NonCommSlow && x.Network.State == workload.Innocent && slices.Equal(x.Ranks, []int{rank})
}

// awaitDiagnosis waits for a diagnosis that is right, and returns it and the seconds since a moment. Both are nil if none
// comes.
func (d *Demo) awaitDiagnosis(ctx context.Context, since time.Time, right func(*workload.Diagnosis) bool) (found *workload.Diagnosis, seconds *float64, err error) {
	var open []workload.Diagnosis
	ok, err := d.await(ctx, diagnosisTimeout, "for what is said of the job", func() (bool, error) {
		open = d.openDiagnoses()
		if i := slices.IndexFunc(open, func(x workload.Diagnosis) bool { return right(&x) }); i >= 0 {
			found = &open[i]
		}
		return found != nil, nil
	})
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		d.printProgress("nothing right is said of job %s within %s", jobName, diagnosisTimeout)
		for i := range open {
			d.printProgress("  said: %s", jobLine(&open[i]))
		}
		return nil, nil, nil
	}
	took := time.Since(since).Seconds()
	d.printProgress("after %.1f s: %s", took, jobLine(found))
	return found, &took, nil
}

// jobLine returns what a job waits for, on one line.
func jobLine(x *workload.Diagnosis) string {
	return "job " + x.Job + strings.TrimPrefix(x.EffectText(), "The job") + "; " + x.NetworkText()
}

// JobLines returns what was said of the job, for a terminal.
func (o *JobOutcome) JobLines() string {
	s := ""
	for _, x := range []*workload.Diagnosis{o.Link, o.Late} {
		if x != nil {
			s += "  " + jobLine(x) + "\n"
		}
	}
	if o.Link == nil {
		s += "  job " + o.Name + ": it was NOT said that the link slows it\n"
	}
	if o.Late == nil {
		s += "  job " + o.Name + ": it was NOT said that a rank comes late\n"
	}
	return s
}

// showLateRank makes a rank of the job late, and waits until this is said and the network is innocent.
func (d *Demo) showLateRank(ctx context.Context, out *JobOutcome) error {
	ok, err := d.await(ctx, overTimeout, "until the job no longer waits for the link", func() (bool, error) {
		return !slices.ContainsFunc(d.openDiagnoses(), func(x workload.Diagnosis) bool { return out.Link != nil && x.ID == out.Link.ID }), nil
	})
	if err != nil {
		return err
	}
	if !ok {
		d.printProgress("job %s still waits for the link after %s", jobName, overTimeout)
		return nil
	}
	ranks := d.job.Ranks()
	rank := min(lateRank, len(ranks)-1)
	out.LateRank, out.LateNode = rank, ranks[rank].Host
	d.printProgress("making rank %d of job %s late by %s, on %s", rank, jobName, lateBy, out.LateNode)
	began := time.Now()
	if err := d.job.SetLate(rank, lateBy); err != nil {
		return err
	}
	out.Late, out.SecondsToLate, err = d.awaitDiagnosis(ctx, began, func(x *workload.Diagnosis) bool { return blamesRank(x, rank) })
	return err
}
