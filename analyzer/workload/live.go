package workload

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// Limits of a tracker beside a job.
const (
	maxOutliers    = 256  // that wait to be taken
	silentAfter    = 60   // cycles without a record of a job after which it has ended
	forgetJobAfter = 600  // cycles without a record of a job
	forgetAfter    = 3600 // cycles without a record of a communicator of a job that goes on
)

// Judged is an operation that was compared with what is normal.
type Judged struct {
	Job            string // by the scheduler; empty: unknown
	Comm, CommName string
	Op             string
	Transfer, Wait time.Duration // Wait is the median of the ranks
	Late           []int         // ranks that came last, if the others waited for them beyond what is normal
}

// observe passes on what was judged.
func (t *Tracker) observe(c *comm, r *result) {
	if t.opt.Judged == nil {
		return
	}
	o := Judged{Job: t.jobOf(c, time.Unix(0, r.end)), Comm: c.id, CommName: c.name, Op: r.s.shape.op, Transfer: time.Duration(r.transfer), Wait: time.Duration(r.wait)}
	if r.waitOver > 0 {
		o.Late = slices.Clone(r.late)
	}
	t.opt.Judged(o)
}

// jobOf returns the job that the scheduler placed on the nodes of a communicator; empty: unknown.
func (t *Tracker) jobOf(c *comm, at time.Time) string {
	if t.opt.JobOf == nil {
		return ""
	}
	return t.opt.JobOf(c.hosts(), at)
}

// SetOptions replaces the options, for records that are still to come.
func (t *Tracker) SetOptions(o Options) { t.opt = o }

// Outlier is an operation that took a rank more than twice as long as it normally does. Nodes may hold more of it than what they
// hand out.
type Outlier struct {
	Comm, Op string
	Seq      uint64
	Hosts    []string // of the communicator
}

func (t *Tracker) addOutlier(c *comm, o *ccl.Op) {
	same := func(x Outlier) bool { return x.Comm == o.Comm && x.Op == o.Op && x.Seq == o.Seq }
	if len(t.outliers) < maxOutliers && !slices.ContainsFunc(t.outliers, same) {
		t.outliers = append(t.outliers, Outlier{o.Comm, o.Op, o.Seq, c.hosts()})
	}
}

// TakeOutliers returns the operations that took a rank more than twice as long as normal since it was called last.
func (t *Tracker) TakeOutliers() []Outlier {
	out := t.outliers
	t.outliers = nil
	return out
}

// JobReport is the report on one job.
type JobReport struct {
	Job string
	Report
}

// JobReports returns a report on each job that the scheduler runs at a time and that has communicators, in the order in which
// they were seen. Records and dropped records are counted for all jobs together, and not in these reports.
func (t *Tracker) JobReports(at time.Time) []JobReport {
	names := map[*comm]string{}
	var out []JobReport
	for _, j := range t.order {
		for _, c := range j.order {
			name := t.jobOf(c, at)
			names[c] = name
			if name != "" && !slices.ContainsFunc(out, func(r JobReport) bool { return r.Job == name }) {
				out = append(out, JobReport{Job: name})
			}
		}
	}
	for i := range out {
		name := out[i].Job
		out[i].Report = t.reportOn(func(c *comm) bool { return names[c] == name }, func(d *Diagnosis) bool { return d.Job == name })
	}
	return out
}

// HasNormalPeer reports whether another communicator sent data from one place to another since a time, and none of its latest
// transfers took longer than normal. Communicators that an open diagnosis names do not count.
func (t *Tracker) HasNormalPeer(from, to Place, since time.Time) bool {
	same := func(a, b Place) bool {
		return a.Host == b.Host && a.NIC == b.NIC && (a.NIC != "" || a.GPU != nil && b.GPU != nil && *a.GPU == *b.GPU)
	}
	for _, j := range t.order {
		for _, s := range j.cells {
			if same(s.key.from.place, from) && same(s.key.to.place, to) && s.at >= since.UnixNano() && s.ready() && s.counted() == 0 && !j.isNamed(s.key.c) {
				return true
			}
		}
	}
	return false
}

// isNamed reports whether an open diagnosis names a communicator, or lists it as a consequence.
func (j *job) isNamed(c *comm) bool {
	for _, d := range j.open {
		if d.Comm == c.id || slices.ContainsFunc(d.Consequences, func(x Consequence) bool { return x.Comm == c.id }) {
			return true
		}
	}
	return false
}

// ForgetIdle forgets jobs and communicators of which no record came for a long time, with their diagnoses. It returns the open
// diagnoses that it forgot.
func (t *Tracker) ForgetIdle() (open []Diagnosis) {
	t.order = slices.DeleteFunc(t.order, func(j *job) bool {
		for _, c := range j.order {
			if t.cycle-c.cycle <= forgetJobAfter {
				t.forgetComms(j)
				return false
			}
		}
		for _, d := range j.open {
			open = append(open, d.Diagnosis)
		}
		t.comms -= len(j.order)
		t.cells -= len(j.cells)
		delete(t.jobs, j.name)
		return true
	})
	return open
}

// forgetComms forgets the communicators of a job that are no longer used, unless a diagnosis is open.
func (t *Tracker) forgetComms(j *job) {
	idle := func(c *comm) bool { return t.cycle-c.cycle > forgetAfter }
	if len(j.open) > 0 || !slices.ContainsFunc(j.order, idle) {
		return
	}
	for k := range j.cells {
		if idle(k.c) {
			delete(j.cells, k)
			t.cells--
		}
	}
	used := map[*process]bool{}
	for _, c := range j.order {
		for _, p := range c.members {
			used[p] = used[p] || !idle(c)
		}
	}
	for key, p := range j.procs {
		if !used[p] {
			delete(j.procs, key)
			continue
		}
		for s := range p.execs {
			if idle(s.comm) {
				delete(p.execs, s)
			}
		}
		for k := range p.gaps {
			if idle(k[0].comm) || idle(k[1].comm) {
				delete(p.gaps, k)
			}
		}
		p.spans = slices.DeleteFunc(p.spans, func(s span) bool { return idle(s.s.comm) || s.after != nil && idle(s.after.comm) })
	}
	j.order = slices.DeleteFunc(j.order, func(c *comm) bool {
		if !idle(c) {
			return false
		}
		delete(j.comms, c.id)
		t.comms--
		return true
	})
}

// EffectText returns what the job feels, as the beginning of a sentence.
func (d *Diagnosis) EffectText() string {
	switch {
	case d.Syndrome == CommHang || d.Syndrome == NonCommHang:
		return "The job hangs"
	case d.Effect != nil:
		return fmt.Sprintf("The job waits %.1f times as long", d.Effect.Ratio)
	}
	return "The job is slow"
}

// NetworkText returns whether the network is to blame, and what is, in a few words.
func (d *Diagnosis) NetworkText() string {
	switch d.Network.State {
	case Guilty:
		kind := "element"
		if slices.Contains(d.Isolate.Links, d.Network.Element) {
			kind = "link"
		}
		return fmt.Sprintf("network guilty, %s %s", kind, d.Network.Element)
	case Innocent:
		return "network innocent, " + d.who()
	}
	return "it is unknown whether the network is to blame: " + d.Network.Reason
}

// who returns the ranks of the diagnosis and their nodes.
func (d *Diagnosis) who() string {
	who := "rank " + joinInts(d.Ranks)
	if len(d.Ranks) > 1 {
		who = "ranks " + joinInts(d.Ranks)
	}
	if len(d.Nodes) > 0 {
		who += " on " + strings.Join(d.Nodes, ", ")
	}
	return who
}
