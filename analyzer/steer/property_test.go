package steer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/workload"
)

// done is an action that was done at a time.
type done struct {
	at            time.Time
	id, job, node string
}

// recorder is an actuator that keeps what it did, each order once, and ends the process now and then.
type recorder struct {
	rng *rand.Rand
	at  func() time.Time
	all map[string]done
	end context.CancelFunc // of the process
}

func (r *recorder) Name() string { return "webhook" }

func (r *recorder) Act(_ context.Context, o *Order) (string, error) {
	crash := r.rng.IntN(6)
	if crash == 0 {
		r.end()
		return "", errors.New("crash before the action")
	}
	if _, again := r.all[o.ID]; !again {
		r.all[o.ID] = done{r.at(), o.Diagnosis.ID, o.Diagnosis.Job, o.Node}
	}
	if crash == 1 {
		r.end()
		return "", errors.New("crash after the action")
	}
	return OutcomeDone, nil
}

// world makes random diagnoses: some begin, some end, some change.
type world struct {
	rng  *rand.Rand
	open []workload.Diagnosis
	next int
	s    Surroundings
}

const worldNodes, worldJobs = 64, 4

func newWorld(t *testing.T, rng *rand.Rand) *world {
	g := fabricOf(t, worldNodes)
	var all []jobs.Placement
	for j := range worldJobs { // of 4, 16, 32 and 48 nodes, which overlap
		all = append(all, jobs.Placement{Job: fmt.Sprintf("job%d", j), Nodes: nodeNames(1+j*4, []int{4, 20, 40, 60}[j])})
	}
	return &world{rng: rng, s: Surroundings{Graph: g, Jobs: placed(g, all...)}}
}

// step changes the diagnoses and returns them.
func (w *world) step(at time.Time) []workload.Diagnosis {
	for i := 0; i < len(w.open); i++ {
		if w.rng.IntN(5) == 0 {
			w.open = append(w.open[:i], w.open[i+1:]...)
			i--
		}
	}
	for range w.rng.IntN(3) {
		var nodes []string
		for range 1 + w.rng.IntN(2) {
			nodes = append(nodes, fmt.Sprintf("h%d", 1+w.rng.IntN(worldNodes)))
		}
		d := hang(fmt.Sprintf("d%d", w.next), fmt.Sprintf("job%d", w.rng.IntN(worldJobs)), nodes...)
		d.BeganAt, d.Confidence = at, 0.98+0.03*w.rng.Float64()
		if w.rng.IntN(3) > 0 {
			d.Confidence = 0.999
		}
		w.next++
		w.open = append(w.open, d)
	}
	w.s.Witnesses = w.s.Witnesses[:0]
	for _, node := range nodeNames(1, worldNodes) {
		if w.rng.IntN(4) > 0 {
			w.s.Witnesses = append(w.s.Witnesses, Witness{node, NICFinding, at})
		}
	}
	return w.open
}

// checkLimits fails the test if what was done exceeds a limit, counted anew from the times at which it was done.
func checkLimits(t *testing.T, seed uint64, all map[string]done) {
	t.Helper()
	size := map[string]int{"job0": 4, "job1": 16, "job2": 32, "job3": 48}
	for _, a := range all {
		inHour, ofJob, nodes := 0, 0, 0
		for _, b := range all {
			later := b.at.Sub(a.at)
			switch {
			case later < 0:
				continue
			case later < time.Hour:
				inHour++
			}
			if later < 24*time.Hour {
				if b.job == a.job {
					ofJob++
				}
				if b.node == a.node {
					nodes++
				}
			}
			if b.job == a.job && b.id != a.id && later < 10*time.Minute {
				t.Errorf("seed %d: %+v and %+v of one job within ten minutes", seed, a, b)
			}
			if b.id == a.id && later > resumeWithin {
				t.Errorf("seed %d: %+v and %+v of one diagnosis", seed, a, b)
			}
		}
		if inHour > 2 || float64(ofJob) > max(1, 0.0625*float64(size[a.job])) || nodes > 1 {
			t.Errorf("seed %d: from %+v on %d in an hour, %d of its job in a day, %d of its node", seed, a, inHour, ofJob, nodes)
		}
	}
}

// No sequence of random diagnoses, restarts and crashes exceeds a limit, or does something twice.
func TestRule5NoSequenceExceedsALimit(t *testing.T) {
	total := 0
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 16))
		w := newWorld(t, rng)
		now := noon
		r := &recorder{rng: rng, at: func() time.Time { return now }, all: map[string]done{}}
		settings := Settings{Mode: ModeAct, AuditFile: filepath.Join(t.TempDir(), "audit.jsonl"), Leader: leaderSole,
			Webhook: &WebhookSettings{Target: defaultTarget(), SecretFile: "unused"}}
		settings.Webhook.URL = "https://unused"
		var s *Steerer
		var ctx context.Context
		for range 150 {
			if s == nil || rng.IntN(20) == 0 || ctx.Err() != nil {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				var err error
				if s, err = New(settings, Options{}); err != nil {
					t.Fatal(err)
				}
				s.actuators = []Actuator{r}
				ctx, r.end = context.WithCancel(context.Background())
			}
			now = now.Add(time.Duration(1+rng.IntN(600)) * time.Second)
			if rng.IntN(3) > 0 { // a second cycle soon after, as they are
				now = now.Add(time.Second)
			}
			_, _ = s.Steer(ctx, now, w.step(now), w.s)
		}
		r.end()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		checkLimits(t, seed, r.all)
		total += len(r.all)
	}
	if total < 50 {
		t.Errorf("only %d actions were done", total)
	}
	t.Logf("%d actions", total)
}

// Two analyzers with a lease and random crashes together exceed no limit either.
func TestRule5TwoAnalyzersTogether(t *testing.T) {
	total := 0
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 17))
		w := newWorld(t, rng)
		place := newSite(t)
		place.settings.Kubernetes, place.settings.Slurm = nil, nil
		a, b, _, _, _, mono := analyzers(t, place)
		now := noon
		r := &recorder{rng: rng, at: func() time.Time { return now }, all: map[string]done{}}
		both := []*Steerer{a, b}
		for range 200 {
			step := time.Duration(1+rng.IntN(300)) * time.Second
			now, *mono = now.Add(step), *mono+step
			all := w.step(now)
			for _, i := range rng.Perm(2) {
				if rng.IntN(4) == 0 {
					continue // it is away
				}
				ctx, end := context.WithCancel(context.Background())
				r.end = end
				both[i].actuators = []Actuator{r}
				_, _ = both[i].Steer(ctx, now, all, w.s)
				end()
			}
		}
		checkLimits(t, seed, r.all)
		total += len(r.all)
	}
	if total < 20 {
		t.Errorf("only %d actions were done", total)
	}
	t.Logf("%d actions", total)
}
