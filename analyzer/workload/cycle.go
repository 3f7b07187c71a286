package workload

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/ccl"
)

// finding is a fault in one cycle, before it becomes a diagnosis that lasts.
type finding struct {
	key         string // the same while the fault lasts
	comm        *comm
	syndrome    Syndrome
	pattern     Pattern
	phase       string
	ranks       []int
	connection  *Connection
	connections []pair
	equivalent  []Equivalent
	op          string
	first, last uint64
	began       int64
	effect      *Effect
	confidence  float64
	nodes       []string // only for whole nodes; otherwise those of the ranks
	touched     []Consequence
}

// touch notes a communicator that waits for the fault.
func (f *finding) touch(c *comm, s Syndrome) {
	if c == f.comm || slices.ContainsFunc(f.touched, func(x Consequence) bool { return x.Comm == c.id }) {
		return
	}
	f.touched = append(f.touched, Consequence{c.id, c.name, s})
}

// Cycle returns what is wrong at a moment by the records so far. The fabric may be nil.
func (t *Tracker) Cycle(at time.Time, fabric Fabric) Report {
	t.cycle++
	for _, j := range t.order {
		j.endSilent(t.cycle)
		found := t.diagnoseHang(j, fabric)
		if len(found) == 0 && !j.hanging() {
			found = j.diagnoseSlow()
		}
		t.update(j, found, at, fabric)
	}
	return t.report()
}

// hanging says whether a diagnosis of a hang is open.
func (j *job) hanging() bool {
	for _, d := range j.open {
		if d.Syndrome == CommHang || d.Syndrome == NonCommHang {
			return true
		}
	}
	return false
}

// diagnoseSlow finds what makes the operations of a job slow.
func (j *job) diagnoseSlow() []*finding {
	var found []*finding
	slow := map[*comm]*finding{} // communicators with slow transfers
	for _, c := range j.order {
		for _, s := range c.ordered() {
			counts := s.counting(counting, func(r *result) bool { return r.transferOver > 0 })
			if counts == nil {
				continue
			}
			f := s.finding(CommSlow, Unlocated, counts, func(r *result) int64 { return r.transferOver }, func(r *result) int64 { return r.normal })
			if s.shape.op == "AllToAll" {
				f.confidence = 0 // only the cells say that it is the transfer
			}
			if old := slow[c]; old == nil || f.confidence > old.confidence || f.confidence == old.confidence && f.effect.AddedNS > old.effect.AddedNS {
				slow[c] = f
			}
		}
	}
	if len(slow) > 0 {
		found = j.locate(slow)
	}
	late := map[string]*finding{}
	for _, c := range j.order {
		for _, s := range c.ordered() {
			j.diagnoseLate(s, late)
		}
	}
	keys := make([]string, 0, len(late))
	for k := range late {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		found = append(found, late[k])
	}
	return found
}

// ordered returns the series of a communicator that are compared with what is normal, always in the same order.
func (c *comm) ordered() []*series {
	out := make([]*series, 0, len(c.series))
	for _, s := range c.series {
		if symmetric(s.shape.op) || s.shape.from >= 0 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *series) int {
		return cmp.Or(cmp.Compare(a.shape.op, b.shape.op), cmp.Compare(a.shape.log2, b.shape.log2), cmp.Compare(a.shape.algo, b.shape.algo), cmp.Compare(a.shape.proto, b.shape.proto),
			cmp.Compare(a.shape.from, b.shape.from), cmp.Compare(a.shape.peer, b.shape.peer))
	})
	return out
}

// finding describes what is slow in a series by its results that count.
func (s *series) finding(sy Syndrome, p Pattern, counts []*result, over, normal func(*result) int64) *finding {
	f := &finding{key: string(p) + "/" + s.comm.id, comm: s.comm, syndrome: sy, pattern: p, phase: "run", op: s.shape.op, confidence: 1 - math.Pow(4, -float64(len(counts)))}
	var added, usual []int64
	for _, r := range counts {
		if f.began == 0 {
			f.first, f.began = r.seq, r.end
		}
		f.last = r.seq
		added, usual = append(added, over(r)), append(usual, normal(r))
	}
	a, u := middle(added), middle(usual)
	f.effect = &Effect{AddedNS: a, Ratio: math.Round(100*(1+float64(a)/float64(max(1, u)))) / 100}
	return f
}

// locate names the connections of the slow transfers of a job by its delay matrix.
func (j *job) locate(slow map[*comm]*finding) (out []*finding) {
	for _, e := range j.explainCells() {
		var first *finding
		var comms []*comm
		for _, s := range e.cells {
			f := slow[s.key.c]
			if f == nil || s.counted() < counting {
				continue
			}
			if !slices.Contains(comms, s.key.c) {
				comms = append(comms, s.key.c)
			}
			if first == nil || f.before(first) {
				first = f
			}
		}
		if first == nil {
			continue
		}
		f := *first
		f.pattern, f.confidence, f.connections = e.pattern, max(f.confidence, 1-math.Pow(4, -counting)), e.bad
		f.key = "slow/" + string(e.pattern) + "/" + e.host
		f.ranks, f.nodes = e.members(f.comm)
		if e.from != nil {
			f.key += e.from.key
		}
		if e.to != nil {
			f.key += ">" + e.to.key
		}
		if e.pattern == Cell && len(f.ranks) == 2 {
			f.connection = &Connection{f.ranks[0], f.ranks[1]}
		}
		for _, h := range e.equivalent {
			ranks, _ := h.members(f.comm)
			f.equivalent = append(f.equivalent, Equivalent{h.pattern, ranks})
		}
		for _, c := range comms {
			f.touch(c, CommSlow)
		}
		out = append(out, &f)
	}
	comms := make([]*comm, 0, len(slow))
	for _, c := range j.order {
		if f := slow[c]; f != nil && f.confidence > 0 && !j.cleared(c) {
			comms = append(comms, c)
		}
	}
	if len(comms) == 0 {
		return out
	}
	if len(out) == 0 {
		f := slow[comms[0]]
		f.key = "slow/unlocated"
		f.confidence = min(f.confidence, 0.9)
		out = append(out, f)
	}
	for _, c := range comms {
		out[0].touch(c, CommSlow)
	}
	return out
}

// before says whether a slow communicator stands for another one with the same slow connections: one whose operations are of all ranks, and
// the one that takes longer.
func (f *finding) before(o *finding) bool {
	if pairwise(f.op) != pairwise(o.op) {
		return pairwise(o.op)
	}
	return f.effect.AddedNS > o.effect.AddedNS || f.effect.AddedNS == o.effect.AddedNS && f.comm.id < o.comm.id
}

// cleared says whether the senders of a communicator had no longer wire times than normal. Its operations then take longer
// because of the order in which the ranks come.
func (j *job) cleared(c *comm) bool {
	senders := map[int]bool{}
	for _, s := range j.cells {
		if s.key.c != c || !s.ready() || s.key.byClocks && j.hasWire(s.key) {
			continue
		}
		if s.counted() > 1 {
			return false
		}
		senders[s.from] = true
	}
	return len(senders) > 0 && len(senders) >= c.enough()
}

// members returns the ranks of a pattern in a communicator, and its nodes.
func (h *hypothesis) members(c *comm) (ranks []int, nodes []string) {
	add := func(want func(*process) bool) {
		for r, p := range c.members {
			if p != nil && want(p) {
				ranks = append(ranks, r)
				if !slices.Contains(nodes, p.place.Host) && p.place.Host != "" {
					nodes = append(nodes, p.place.Host)
				}
			}
		}
	}
	if h.from != nil {
		add(func(p *process) bool { return p == h.from })
	}
	if h.to != nil {
		add(func(p *process) bool { return p == h.to })
	}
	if h.host != "" {
		add(func(p *process) bool { return p.place.Host == h.host })
		nodes = []string{h.host}
	}
	return ranks, nodes
}

// diagnoseLate names the process for which the ranks of a series wait, if it is always the same few.
func (j *job) diagnoseLate(s *series, into map[string]*finding) {
	counts := s.counting(counting, func(r *result) bool { return r.waitOver > 0 })
	if counts == nil {
		return
	}
	last := map[int]int{}
	votes := map[*process]int{}
	for _, r := range counts {
		if len(r.late) <= max(1, s.comm.n/4) {
			for _, l := range r.late {
				last[l]++
			}
		}
		if r.cause.proc != nil {
			votes[r.cause.proc]++
		}
	}
	same := false
	for _, k := range last {
		same = same || k >= counting
	}
	if !same {
		return
	}
	for _, r := range counts {
		p := r.cause.proc
		if p == nil || votes[p] < counting-1 {
			continue
		}
		key := "late/" + p.place.Host
		f := s.finding(NonCommSlow, Chain, counts, func(r *result) int64 { return r.waitOver }, func(r *result) int64 { return r.transfer + r.wait - r.waitOver })
		f.key, f.comm, f.ranks = key, r.cause.comm, []int{r.cause.rank}
		f.confidence *= float64(votes[p]) / float64(len(counts))
		old := into[key]
		if old == nil {
			f.touch(s.comm, NonCommSlow)
			into[key] = f
			return
		}
		if old.comm == f.comm && !slices.Contains(old.ranks, f.ranks[0]) {
			old.ranks = append(old.ranks, f.ranks[0])
		}
		old.confidence = max(old.confidence, f.confidence)
		old.began = min(old.began, f.began)
		old.touch(f.comm, NonCommSlow)
		old.touch(s.comm, NonCommSlow)
		return
	}
}

// update makes diagnoses of what was found, and closes those that are over.
func (t *Tracker) update(j *job, found []*finding, at time.Time, fabric Fabric) {
	found = slices.DeleteFunc(found, func(f *finding) bool { d := j.open[f.key]; return d != nil && d.isNoiseTo(f) })
	still := map[string]bool{}
	for _, f := range found {
		still[f.key] = true
	}
	for _, f := range found {
		d := j.open[f.key]
		if d == nil {
			d = j.adopt(f, still)
		}
		if d == nil {
			d = &standing{Diagnosis: Diagnosis{DetectedAt: at.UTC(), BeganAt: time.Unix(0, f.began).UTC(), FirstSeq: f.first, ID: f.id(j)}}
		}
		j.open[f.key], d.pairs = d, f.connections
		if f.effect != nil {
			d.most = max(d.most, f.effect.AddedNS)
		}
		t.describe(&d.Diagnosis, f, fabric)
	}
	for key, d := range j.open {
		if !still[key] && j.calm(d) {
			d.Open = false
			delete(j.open, key)
			if j.closed = append(j.closed, d.Diagnosis); len(j.closed) > maxClosed {
				j.closed = j.closed[1:]
			}
		}
	}
	j.frozen = len(j.open) > 0
}

// standing is a diagnosis that is open, with the connections that it names.
type standing struct {
	Diagnosis
	pairs []pair
	most  int64 // the largest time that the fault added to an operation, in ns
}

// sameFault is the share of what a fault added at most, from which on an operation that counts may be of the same fault. What is less
// is noise, or another fault, which then has a diagnosis of its own.
const sameFault = 0.25

// scale returns the time that operations of the fault add at least, in ns.
func (d *standing) scale() int64 { return int64(sameFault * float64(d.most)) }

// isNoiseTo says whether a finding is far less than what the diagnosis is about.
func (d *standing) isNoiseTo(f *finding) bool { return f.effect != nil && f.effect.AddedNS < d.scale() }

// adopt returns the open diagnosis of which a finding knows more: of the same connections, or without any. Further ones of the
// same connections are a part of it and no longer stand by themselves.
func (j *job) adopt(f *finding, still map[string]bool) (first *standing) {
	if f.syndrome != CommSlow && f.syndrome != CommHang {
		return nil
	}
	keys := make([]string, 0, len(j.open))
	for k := range j.open {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(j.open[a].DetectedAt.Compare(j.open[b].DetectedAt), cmp.Compare(a, b))
	})
	for _, k := range keys {
		d := j.open[k]
		if still[k] || d.Syndrome != f.syndrome {
			continue
		}
		shares := len(d.pairs) == 0 || slices.ContainsFunc(d.pairs, func(p pair) bool { return slices.Contains(f.connections, p) })
		if !shares {
			continue
		}
		if first == nil {
			first = d
		}
		delete(j.open, k)
	}
	return first
}

// endSilent ends what communicators were in of which no record has come for a minute. Ranks that hang write none, unless they send
// beats: without these, open operations stay.
func (j *job) endSilent(cycle uint64) {
	for _, c := range j.order {
		if cycle-c.cycle != silentAfter+1 {
			continue
		}
		beating := false
		for _, b := range c.beats {
			beating = beating || b.at > b.first
		}
		if len(c.pending)+len(c.p2p) > 0 && !beating {
			continue
		}
		clear(c.pending)
		clear(c.p2p)
		for _, p := range c.pairs {
			p.sends, p.recvs = nil, nil
		}
		clear(c.edges)
		c.order = nil
		for _, s := range c.series {
			s.results, s.seqs = nil, nil
		}
		for k, s := range j.cells {
			if k.c == c {
				s.over = nil
			}
		}
	}
}

// calm says whether what a diagnosis names is over: few of the latest operations are slow or late on its scale.
func (j *job) calm(d *standing) bool {
	if d.Effect == nil {
		return true
	}
	for _, c := range j.order {
		for _, s := range c.series {
			if s.counting(recent-counting, func(r *result) bool { return max(r.transferOver, r.waitOver) > d.scale() }) != nil {
				return false
			}
		}
	}
	return true
}

// id returns the identifier of a diagnosis, which is the same for the same fault.
func (f *finding) id(j *job) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%d", j.name, f.comm.id, f.syndrome, f.key, f.first))
	return hex.EncodeToString(sum[:8])
}

// describe fills a diagnosis with what was found in this cycle.
func (t *Tracker) describe(d *Diagnosis, f *finding, fabric Fabric) {
	if d.Comm != f.comm.id || d.Op != f.op {
		d.FirstSeq = f.first // numbers of another kind of operation say nothing
	}
	d.Job = ""
	if t.opt.JobOf != nil {
		d.Job = t.opt.JobOf(f.comm.hosts(), d.BeganAt)
	}
	d.Comm, d.CommName, d.Syndrome, d.Pattern, d.Phase = f.comm.id, f.comm.name, f.syndrome, f.pattern, f.phase
	slices.Sort(f.ranks)
	if f.connection != nil {
		f.ranks = []int{f.connection.From, f.connection.To}
	}
	d.Ranks, d.Connection, d.Op, d.Open, d.Effect, d.Confidence = f.ranks, f.connection, f.op, true, f.effect, math.Round(f.confidence*1e4)/1e4
	d.LastSeq = max(f.last, f.first)
	d.Equivalent, d.Consequences = append([]Equivalent{}, f.equivalent...), append([]Consequence{}, f.touched...)
	d.Nodes = []string{}
	if f.nodes != nil {
		d.Nodes = f.nodes
	} else if f.pattern != Unlocated {
		for _, r := range f.ranks {
			if p := f.comm.members[r]; p != nil && p.place.Host != "" && !slices.Contains(d.Nodes, p.place.Host) {
				d.Nodes = append(d.Nodes, p.place.Host)
			}
		}
	}
	if f.connection != nil && len(f.connections) == 0 {
		if a, b := f.comm.members[f.connection.From], f.comm.members[f.connection.To]; a != nil && b != nil {
			f.connections = []pair{{a, b}}
		}
	}
	d.Isolate = Isolate{Nodes: []string{}, Links: []string{}}
	t.blame(d, f, fabric)
	d.Account = f.account()
	if f.pattern != Unlocated && f.pattern != Mismatch && f.pattern != Cell && d.Network.State != Guilty {
		d.Isolate.Nodes = append(d.Isolate.Nodes, d.Nodes...)
	}
	d.Summary, d.RecommendedAction = d.words()
}

// account returns the user who wrote all records of the communicators that a finding names, and of all others on their nodes. It is
// empty if there are several, or a record has none.
func (f *finding) account() string {
	hosts := map[string]bool{}
	involved := func(c *comm) bool {
		return c == f.comm || slices.ContainsFunc(f.touched, func(x Consequence) bool { return x.Comm == c.id })
	}
	for _, c := range f.comm.job.order {
		if involved(c) {
			for _, h := range c.hosts() {
				hosts[h] = true
			}
		}
	}
	all := writers{}
	for _, c := range f.comm.job.order {
		if involved(c) || slices.ContainsFunc(c.hosts(), func(h string) bool { return hosts[h] }) {
			if c.account.mixed {
				return ""
			}
			all.add(c.account.name)
		}
	}
	if all.mixed {
		return ""
	}
	return all.name
}

// hosts returns the nodes of a communicator, in the order of its ranks. The slice must not be changed.
func (c *comm) hosts() []string {
	known := 0
	for _, p := range c.members {
		known += b2i(p != nil)
	}
	if known == c.hostsOf {
		return c.hostNames
	}
	c.hostsOf, c.hostNames = known, nil
	seen := map[string]bool{"": true}
	for _, p := range c.members {
		if p != nil && !seen[p.place.Host] {
			seen[p.place.Host] = true
			c.hostNames = append(c.hostNames, p.place.Host)
		}
	}
	return c.hostNames
}

// words returns what the diagnosis says, and what to do.
func (d *Diagnosis) words() (summary, action string) {
	who := d.who()
	in := d.CommName
	if in == "" {
		in = d.Comm
	}
	effect := ""
	if d.Effect != nil {
		effect = fmt.Sprintf(" It takes %.2f times as long as it normally does.", d.Effect.Ratio)
	}
	switch d.Pattern {
	case Cell:
		who = fmt.Sprintf("the connection from rank %d to rank %d", d.Connection.From, d.Connection.To)
		if len(d.Nodes) == 2 {
			who += fmt.Sprintf(" (%s to %s)", d.Nodes[0], d.Nodes[1])
		}
	case Row, NodeOut:
		who = "what " + who + " sends"
	case Column, NodeIn:
		who = "what " + who + " receives"
	}
	switch {
	case d.Pattern == Mismatch:
		return fmt.Sprintf("%s %d of %s hangs: %s launched another operation than the others.", d.Op, d.FirstSeq, in, who), "Look at the program of the job: its ranks call different collectives."
	case d.Pattern == Absent && d.Phase == "init":
		return fmt.Sprintf("%s does not begin: %s never came.", in, who), "Look at the node's logs, and start the job without the node."
	case d.Pattern == Absent:
		return fmt.Sprintf("%s %d of %s hangs: %s did not launch it.", d.Op, d.FirstSeq, in, who), "Look at the process and its node, and start the job without the node."
	case d.Syndrome == NonCommHang:
		return fmt.Sprintf("%s %d of %s hangs: the GPU of %s has stopped.", d.Op, d.FirstSeq, in, who), "Look for errors of the GPU, and start the job without the node."
	case d.Syndrome == NonCommSlow:
		return fmt.Sprintf("%s of %s waits for %s, which comes late by its own work.%s", d.Op, in, who, effect), "Look at the node's GPU, processor and storage."
	case d.Pattern == Unlocated && d.Syndrome == CommHang:
		return fmt.Sprintf("%s %d of %s hangs in all of its ranks, and the records do not say where.", d.Op, d.FirstSeq, in), "Switch on the records of transfers (NCCL Inspector 4.3), and look at the fabric's verdicts."
	case d.Syndrome == CommHang:
		return fmt.Sprintf("%s %d of %s hangs: %s no longer moves data.", d.Op, d.FirstSeq, in, who), "Look at the links and NICs of the connection."
	case d.Pattern == Unlocated:
		return fmt.Sprintf("%s of %s moves data slowly, and the records do not say where.%s", d.Op, in, effect), "Switch on the records of transfers (NCCL Inspector 4.3), and look at the fabric's verdicts."
	}
	return fmt.Sprintf("%s of %s moves data slowly on %s.%s", d.Op, in, who, effect), "Look at the links and NICs of the connection."
}

func joinInts(v []int) string {
	var b []string
	for i, n := range v {
		if i == 8 {
			b = append(b, fmt.Sprintf("and %d more", len(v)-i))
			break
		}
		b = append(b, strconv.Itoa(n))
	}
	return strings.Join(b, ", ")
}

// report sums up all jobs.
func (t *Tracker) report() Report {
	r := t.reportOn(func(*comm) bool { return true }, func(*Diagnosis) bool { return true })
	r.Coverage.Operations, r.Coverage.Dropped = t.ops, t.dropped
	r.Records = RecordCounts{Read: t.read, Duplicate: t.double}
	return r
}

// reportOn sums up some communicators and diagnoses. The counts of records are not in it.
func (t *Tracker) reportOn(ofComm func(*comm) bool, ofDiagnosis func(*Diagnosis) bool) Report {
	r := Report{State: InsufficientState, Network: Insufficient, Diagnoses: []Diagnosis{}}
	judged, guilty, innocent := false, false, true
	for _, j := range t.order {
		for i := range j.closed {
			if d := &j.closed[i]; ofDiagnosis(d) {
				r.Diagnoses = append(r.Diagnoses, *d)
			}
		}
		for _, d := range j.open {
			if ofDiagnosis(&d.Diagnosis) {
				r.Diagnoses = append(r.Diagnoses, d.Diagnosis)
			}
		}
		for _, c := range j.order {
			if !ofComm(c) {
				continue
			}
			r.Coverage.Operations += c.ops
			r.Coverage.Communicators++
			r.Coverage.RanksExpected += c.n
			for _, s := range c.seen {
				r.Coverage.RanksSeen += b2i(s)
			}
			for _, s := range c.series {
				judged = judged || s.judged
			}
			if c.quiet() {
				r.Coverage.Unseen = append(r.Coverage.Unseen, "communicator "+c.label()+": its operations are in no record (captured graphs, copy engine, NVLS, symmetric memory or NVSHMEM)")
			}
		}
		if t.opt.Matrix {
			r.Matrix = append(r.Matrix, j.matrix()...)
		}
	}
	slices.SortFunc(r.Diagnoses, func(a, b Diagnosis) int {
		return cmp.Or(a.BeganAt.Compare(b.BeganAt), cmp.Compare(a.ID, b.ID))
	})
	r.Diagnoses = uniteGuilty(r.Diagnoses)
	for i := range r.Diagnoses {
		d := &r.Diagnoses[i]
		guilty = guilty || d.Network.State == Guilty
		innocent = innocent && d.Network.State == Innocent && d.Network.Coverage != nil
	}
	switch {
	case len(r.Diagnoses) > 0:
		r.State = Suspect
	case judged:
		r.State = Healthy
	}
	switch {
	case guilty:
		r.Network = Guilty
	case len(r.Diagnoses) > 0 && innocent:
		r.Network = Innocent
	}
	return r
}

func (c *comm) label() string {
	if c.name != "" {
		return c.name
	}
	return c.id
}

// quiet says whether nothing is known of what a communicator does, though its members are.
func (c *comm) quiet() bool {
	stood := 0
	for _, s := range c.series {
		stood += len(s.lastStart)
	}
	return !c.finished && len(c.pending) == 0 && len(c.p2p) == 0 && slices.ContainsFunc(c.members, func(p *process) bool { return p != nil }) && stood == 0
}

// Replay takes records in the order of their own times and looks once a second, as an analyzer beside the job would. It returns
// the last report; the times of detection in it are those of the records. Records are sorted in place.
func Replay(records []ccl.Record, o Options, fabric Fabric) Report {
	times := make(map[ccl.Record]int64, len(records))
	for _, r := range records {
		times[r] = TimeOf(r)
	}
	slices.SortStableFunc(records, func(a, b ccl.Record) int { return cmp.Compare(times[a], times[b]) })
	t := New(o)
	next := int64(0)
	rep := t.report()
	for _, r := range records {
		at := times[r]
		if at > 0 && next == 0 {
			next = at + int64(time.Second)
		}
		for ; at > 0 && at >= next; next += int64(time.Second) {
			if at-next > int64(time.Minute) {
				next = at // nothing happened in between
			}
			t.Cycle(time.Unix(0, next), fabric)
		}
		t.Add(r)
	}
	if next > 0 {
		end := time.Unix(0, max(t.now, o.Until.UnixNano()*int64(b2i(!o.Until.IsZero()))))
		rep = t.Cycle(end, fabric)
	}
	return rep
}

// TimeOf returns when a record would be read by a reader beside the job: when the operation ended or began. It is 0 without a time.
func TimeOf(r ccl.Record) int64 {
	switch r := r.(type) {
	case *ccl.Op:
		if r.EndNS.Known {
			return r.EndNS.NS
		}
		if d, ok := r.Duration(); ok {
			return r.StartNS.NS + d
		}
		return r.StartNS.NS
	case *ccl.Edge:
		if r.State == ccl.Open {
			return r.Since.NS
		}
		if r.EndNS.Known {
			return r.EndNS.NS
		}
		return r.StartNS.NS
	case *ccl.Beat:
		return r.AtNS.NS
	}
	return 0
}
