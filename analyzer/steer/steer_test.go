package steer

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	config_util "github.com/prometheus/common/config"
	"k8s.io/client-go/rest"

	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/steer/steertest"
	"github.com/graylink/graylink/analyzer/workload"
	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/lease/leasetest"
)

// site has the servers of a site that steers, and settings that reach them.
type site struct {
	kube     *steertest.Kubernetes
	slurm    *steertest.Slurm
	hook     *steertest.Webhook
	settings Settings
	now      time.Time
	waits    []time.Duration // between attempts
}

// target returns how a server is reached, by its certificate.
func target(s *steertest.Server) Target {
	t := defaultTarget()
	t.URL = s.URL
	t.Client.TLSConfig.CA = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	return t
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir, w := t.TempDir(), &site{now: noon}
	w.kube = steertest.NewKubernetes(t, nodeNames(1, 40)...)
	w.slurm = steertest.NewSlurm(t, "v0.0.43", nodeNames(1, 40)...)
	w.hook = steertest.NewWebhook(t, func() int64 { return w.now.Unix() })
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(steertest.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.settings = Settings{Mode: ModeAct, AuditFile: filepath.Join(dir, "audit.jsonl"), Leader: leaderSole,
		Kubernetes: &CordonSettings{Target: target(&w.kube.Server)},
		Slurm:      &DrainSettings{Target: target(&w.slurm.Server), Version: "v0.0.43"},
		Webhook:    &WebhookSettings{Target: target(&w.hook.Server), SecretFile: secret}}
	w.settings.Slurm.Client.HTTPHeaders = &config_util.Headers{Headers: map[string]config_util.Header{
		"X-Slurm-User-Token": {Secrets: []config_util.Secret{steertest.Token}}}}
	return w
}

// open returns a Steerer of the site, as a process that starts has it.
func (w *site) open(t *testing.T, leader Leader) *Steerer {
	t.Helper()
	s, err := New(w.settings, Options{Leader: leader, Now: func() time.Time { return w.now },
		Wait: func(_ context.Context, d time.Duration) { w.waits = append(w.waits, d) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// cycle lets a Steerer decide about the scene, a second later than before.
func (w *site) cycle(t *testing.T, s *Steerer, c *scene) []Decision {
	t.Helper()
	got, err := w.try(s, c)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (w *site) try(s *Steerer, c *scene) ([]Decision, error) {
	w.now = w.now.Add(time.Second)
	return s.Steer(context.Background(), w.now, c.now.Diagnoses, c.s)
}

// untouched fails the test if anything was done.
func (w *site) untouched(t *testing.T) {
	t.Helper()
	for name, s := range map[string]*steertest.Server{"kubernetes": &w.kube.Server, "slurm": &w.slurm.Server, "webhook": &w.hook.Server} {
		if all := s.Requests(); len(all) > 0 {
			t.Errorf("%s was sent %v, want nothing", name, all)
		}
	}
}

// log returns the audit log.
func (w *site) log(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(w.settings.AuditFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRule1OffDoesNothing(t *testing.T) {
	w := newSite(t)
	w.settings.Mode = DefaultSettings().Mode
	s := w.open(t, nil)
	for range 3 {
		if got := w.cycle(t, s, accepted(t)); len(got) > 0 {
			t.Errorf("%+v, want no decisions", got)
		}
	}
	w.untouched(t)
	if _, err := os.Stat(w.settings.AuditFile); !os.IsNotExist(err) {
		t.Errorf("there is an audit log: %v", err)
	}
}

// A dry run writes what would be done once, and keeps the limits as if it had been done.
func TestRule1DryRunOnlyWrites(t *testing.T) {
	w := newSite(t)
	w.settings.Mode = ModeDryRun
	s, c := w.open(t, nil), accepted(t)
	w.cycle(t, s, c)
	if got := w.cycle(t, s, c); got[0].Result != DryRun {
		t.Fatalf("%+v, want dry_run", got)
	}
	if got := w.cycle(t, s, c); got[0].Reason != AlreadyActed {
		t.Errorf("%+v, want already_acted", got)
	}
	w.untouched(t)
	if n := strings.Count(w.log(t), `"decision":"dry_run"`); n != 1 {
		t.Errorf("%d dry runs in the log, want 1:\n%s", n, w.log(t))
	}
	// What was a dry run does not count when it is acted.
	s.Close()
	w.settings.Mode = ModeAct
	s = w.open(t, nil)
	w.cycle(t, s, c)
	if got := w.cycle(t, s, c); got[0].Result != Act {
		t.Errorf("%+v, want act", got)
	}
}

// All three actuators act once, the audit log has it before and after, and a restart changes nothing.
func TestRule4OnceOverRestarts(t *testing.T) {
	w := newSite(t)
	c := accepted(t)
	for range 3 {
		s := w.open(t, nil)
		for range 3 {
			w.cycle(t, s, c)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.kube.Node("h1"); !n.Unschedulable || n.Version != 2 || n.Annotations[actionAnnotation] != "d1/h1" {
		t.Errorf("Node %+v, want it cordoned by one patch", n)
	}
	if n := w.slurm.Node("h1"); !slices.Contains(n.State, "DRAIN") || w.slurm.Updates() != 1 || !strings.HasPrefix(n.Reason, "graylink d1/h1: job train") {
		t.Errorf("node %+v after %d updates, want it drained by one", n, w.slurm.Updates())
	}
	if h := w.hook.Handled(); len(h) != 1 || h["d1/h1"] == nil || len(w.hook.Repeats()) > 0 {
		t.Errorf("the webhook has %d actions and repeats %v, want one", len(h), w.hook.Repeats())
	}
	for name, s := range map[string]*steertest.Server{"kubernetes": &w.kube.Server, "slurm": &w.slurm.Server, "webhook": &w.hook.Server} {
		if f := s.Forbidden(); len(f) > 0 {
			t.Errorf("%s refused %v", name, f)
		}
	}
	lines := strings.Split(strings.TrimSpace(w.log(t)), "\n")
	if !strings.Contains(lines[1], `"decision":"act"`) || !strings.Contains(lines[2], `"outcome":"done"`) {
		t.Errorf("audit log:\n%s", w.log(t))
	}
	if info, err := os.Stat(w.settings.AuditFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v (%v), want 0600", info.Mode(), err)
	}
}

// hooked is an actuator that runs a function before the next one acts.
type hooked struct {
	Actuator
	before func(ctx context.Context, o *Order) error
}

func (h *hooked) Act(ctx context.Context, o *Order) (string, error) {
	if err := h.before(ctx, o); err != nil {
		return "", err
	}
	return h.Actuator.Act(ctx, o)
}

// The decision is on the disk when the first actuator begins.
func TestRule3TheDecisionIsWrittenBefore(t *testing.T) {
	w := newSite(t)
	s, c, seen := w.open(t, nil), accepted(t), ""
	s.actuators[0] = &hooked{s.actuators[0], func(context.Context, *Order) error { seen = w.log(t); return nil }}
	w.cycle(t, s, c)
	w.cycle(t, s, c)
	if !strings.Contains(seen, `"decision":"act"`) {
		t.Errorf("audit log at the time of the action:\n%s", seen)
	}
}

func TestRule3WithoutAuditLogNothingIsDone(t *testing.T) {
	for name, damage := range map[string]func(w *site) error{
		"a directory":  func(w *site) error { return os.Mkdir(w.settings.AuditFile, 0o700) },
		"no directory": func(w *site) error { w.settings.AuditFile += "/missing/audit"; return nil },
		"a line of no meaning": func(w *site) error {
			return os.WriteFile(w.settings.AuditFile, []byte("garbage\n{\"kind\":\"result\"}\n"), 0o600)
		},
		"too large": func(w *site) error {
			err := os.WriteFile(w.settings.AuditFile, nil, 0o600)
			return errors.Join(err, os.Truncate(w.settings.AuditFile, maxAudit+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := newSite(t), accepted(t)
			if err := damage(w); err != nil {
				t.Fatal(err)
			}
			s := w.open(t, nil)
			for range 3 {
				got, err := w.try(s, c)
				if err == nil || !strings.Contains(err.Error(), filepath.Base(w.settings.AuditFile)) {
					t.Errorf("%v, want an error that names the file", err)
				}
				if got[0].Result != Refuse {
					t.Errorf("%+v, want a refusal", got)
				}
			}
			if got, _ := w.try(s, c); got[0].Reason != AuditUnavailable {
				t.Errorf("%+v, want audit_unavailable", got)
			}
			w.untouched(t)
		})
	}
}

// A second process with the same audit log does nothing until the first one ends.
func TestRule4TwoProcessesDoNotShareAnAuditLog(t *testing.T) {
	w, c := newSite(t), accepted(t)
	a, b := w.open(t, nil), w.open(t, nil)
	w.cycle(t, a, c)
	for range 2 {
		if got, err := w.try(b, c); err == nil || got[0].Result != Refuse {
			t.Errorf("%+v (%v), want a refusal", got, err)
		}
	}
	w.untouched(t)
	a.Close()
	if got := w.cycle(t, b, c); got[0].Result != Act {
		t.Errorf("%+v, want act", got)
	}
}

// crash lets the first actuator end the process before or after it acts.
func crash(s *Steerer, after bool) context.Context {
	ctx, end := context.WithCancel(context.Background())
	first := s.actuators[0]
	s.actuators[0] = &hooked{first, func(_ context.Context, o *Order) error {
		if after {
			if _, err := first.Act(context.Background(), o); err != nil {
				return err
			}
		}
		end()
		return errors.New("crash")
	}}
	return ctx
}

// After a crash between the log and the action, or between the action and its result, the action is done once.
func TestRule4CrashBetweenLogAndAction(t *testing.T) {
	for _, after := range []bool{false, true} {
		w, c := newSite(t), accepted(t)
		s := w.open(t, nil)
		w.cycle(t, s, c)
		w.now = w.now.Add(time.Second)
		if _, err := s.Steer(crash(s, after), w.now, c.now.Diagnoses, c.s); err == nil {
			t.Fatal("no error of a process that ends")
		}
		if strings.Contains(w.log(t), kindResult) {
			t.Errorf("a result was written:\n%s", w.log(t))
		}
		s.Close()
		s = w.open(t, nil)
		w.cycle(t, s, c) // not confirmed by this process yet
		if got := w.cycle(t, s, c); got[0].Result != Act || !got[0].Resumed {
			t.Errorf("%+v, want the action continued", got)
		}
		if got := w.cycle(t, s, c); got[0].Reason != AlreadyActed {
			t.Errorf("%+v, want already_acted", got)
		}
		if n := w.kube.Node("h1"); n.Version != 2 || w.slurm.Updates() != 1 || len(w.hook.Handled()) != 1 {
			t.Errorf("crash after the action %v: Node %+v, %d drains, %d webhooks; want one each", after, n, w.slurm.Updates(), len(w.hook.Handled()))
		}
	}
}

// A line that was not written whole is no error, and what it would have said was not done.
func TestRule3AHalfLineAtTheEnd(t *testing.T) {
	w, c := newSite(t), accepted(t)
	s := w.open(t, nil)
	w.cycle(t, s, c)
	w.cycle(t, s, c)
	s.Close()
	whole := w.log(t)
	act := strings.Index(whole, "\n") + 1 // of the line that decides to act
	for cut := act; cut < act+strings.Index(whole[act:], "\n"); cut += 7 {
		if err := os.WriteFile(w.settings.AuditFile, []byte(whole[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second one reads what the first one wrote after the half line
			s := w.open(t, nil)
			w.cycle(t, s, c)
			s.Close()
		}
		if cut > act && strings.Count(w.log(t), kindTorn) != 1 {
			t.Fatalf("cut at %d: the half line is not marked:\n%s", cut, w.log(t))
		}
		if all, err := (&audit{w.settings.AuditFile}).read(ModeAct); err != nil || len(all) > 0 {
			t.Errorf("cut at %d: actions %v (%v), want none", cut, all, err)
		}
	}
}

// fakeLeader is a Leader by a variable.
type fakeLeader struct {
	leads     bool
	err       error
	recordErr error
}

func (l *fakeLeader) Lead(context.Context) (bool, []Action, bool, error) {
	return l.leads, nil, true, l.err
}
func (l *fakeLeader) Record(context.Context, []Action) error { return l.recordErr }

func TestRule4OnlyTheLeaderActs(t *testing.T) {
	for _, test := range []struct {
		leader fakeLeader
		want   Reason
	}{{fakeLeader{}, NotLeader}, {fakeLeader{leads: true, err: errors.New("away")}, LeaderUnknown}} {
		w, c := newSite(t), accepted(t)
		s := w.open(t, &test.leader)
		for range 3 {
			_, _ = w.try(s, c)
		}
		if got, _ := w.try(s, c); got[0].Reason != test.want {
			t.Errorf("%+v, want %s", got, test.want)
		}
		w.untouched(t)
		if n := s.Counts().Refusals[test.want]; n != 1 {
			t.Errorf("%s is counted %d times, want once", test.want, n)
		}
	}
}

// An action that cannot be recorded for the other analyzers is not begun, and may be begun later.
func TestRule4AnActionThatIsNotRecordedIsVoid(t *testing.T) {
	w, c := newSite(t), accepted(t)
	l := &fakeLeader{leads: true, recordErr: errNotLeader}
	s := w.open(t, l)
	w.cycle(t, s, c)
	if _, err := w.try(s, c); !errors.Is(err, errNotLeader) {
		t.Fatalf("%v, want %v", err, errNotLeader)
	}
	w.untouched(t)
	if all, err := s.audit.read(ModeAct); err != nil || len(all) > 0 {
		t.Errorf("actions %v (%v), want none", all, err)
	}
	l.recordErr = nil
	if got := w.cycle(t, s, c); got[0].Result != Act || got[0].Resumed {
		t.Errorf("%+v, want act", got)
	}
}

// analyzers returns two analyzers of a site with a lease and an audit log each.
func analyzers(t *testing.T, w *site) (a, b *Steerer, la, lb *LeaseLeader, server *leasetest.Server, mono *time.Duration) {
	t.Helper()
	server, mono = leasetest.NewServer(t), new(time.Duration)
	api, err := kubeapi.New(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	newOne := func(name string) (*Steerer, *LeaseLeader) {
		w.settings.AuditFile = filepath.Join(t.TempDir(), "audit.jsonl")
		l := NewLeaseLeader(api, "graylink", "coordinator", name, func() time.Duration { return *mono })
		return w.open(t, l), l
	}
	a, la = newOne("a")
	b, lb = newOne("b")
	return a, b, la, lb, server, mono
}

// Two analyzers see the same diagnosis in the same cycles. One acts. When it dies in the middle of the next action, the other
// one completes that, and keeps the limits that both together have used.
func TestRule4OneAnalyzerOfTwo(t *testing.T) {
	w, c := newSite(t), accepted(t)
	a, b, _, _, server, mono := analyzers(t, w)
	acts := 0
	for range 6 {
		w.now, *mono = w.now.Add(time.Second), *mono+time.Second
		var wg sync.WaitGroup
		results := make([][]Decision, 2)
		for i, s := range []*Steerer{a, b} {
			wg.Go(func() { results[i], _ = s.Steer(context.Background(), w.now, c.now.Diagnoses, c.s) })
		}
		wg.Wait()
		for _, all := range results {
			if all[0].Result == Act {
				acts++
			}
		}
	}
	if n := w.kube.Node("h1"); acts != 1 || n.Version != 2 || w.slurm.Updates() != 1 || len(w.hook.Handled()) != 1 || len(w.hook.Repeats()) > 0 {
		t.Fatalf("%d actions, Node %+v, %d drains, %d webhooks; want one each", acts, n, w.slurm.Updates(), len(w.hook.Handled()))
	}
	leader, other := a, b
	if server.Lease()["spec"].(map[string]any)["holderIdentity"] == "b" {
		leader, other = b, a
	}
	next := accepted(t) // of another job
	next.both(func(d *workload.Diagnosis) { *d = hang("d2", "other", "h9") })
	next.s.Witnesses = []Witness{{"h9", KernelFinding, noon}}
	w.cycle(t, leader, next)
	w.now = w.now.Add(time.Second)
	if _, err := leader.Steer(crash(leader, true), w.now, next.now.Diagnoses, next.s); err == nil {
		t.Fatal("no error of a process that ends")
	}
	resumed := 0
	for range 20 {
		*mono += time.Second
		got, err := w.try(other, next)
		if err != nil {
			t.Fatal(err)
		}
		if got[0].Resumed {
			resumed++
		}
	}
	if n := w.kube.Node("h9"); resumed != 1 || n.Version != 2 || w.slurm.Updates() != 2 || len(w.hook.Handled()) != 2 {
		t.Errorf("continued %d times, Node %+v, %d drains, %d webhooks; want d2 done once", resumed, n, w.slurm.Updates(), len(w.hook.Handled()))
	}
	third := accepted(t) // it is the third node of the hour, of which other's own log has one
	third.both(func(d *workload.Diagnosis) { *d = hang("d3", "third", "h20") })
	third.s.Jobs = placed(third.s.Graph, jobs.Placement{Job: "third", Nodes: nodeNames(20, 30)})
	third.s.Witnesses = []Witness{{"h20", SilentAgent, w.now}}
	w.cycle(t, other, third)
	if got := w.cycle(t, other, third); got[0].Reason != HourLimit {
		t.Errorf("%+v, want hour_limit", got)
	}
}

// A leader that was cut off between its decision and the record of it does nothing when another one has taken over.
func TestRule4ALeaderThatLostTheLeaseDoesNothing(t *testing.T) {
	w, c := newSite(t), accepted(t)
	a, b, _, lb, server, mono := analyzers(t, w)
	w.cycle(t, a, c)
	w.cycle(t, b, c)
	reads := 0
	base := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if reads++; reads == 3 { // a has decided, and records it
			server.Config.Handler = base
			for range 7 {
				*mono += time.Second
				if leads, _, _, err := lb.Lead(context.Background()); err != nil {
					t.Error(err)
				} else if leads {
					break
				}
			}
		}
		base.ServeHTTP(rw, r)
	})
	if _, err := w.try(a, c); !errors.Is(err, errNotLeader) {
		t.Errorf("%v, want %v", err, errNotLeader)
	}
	w.untouched(t)
	if got := w.cycle(t, b, c); got[0].Result != Act {
		t.Errorf("%+v, want the new leader to act", got)
	}
	if w.slurm.Updates() != 1 {
		t.Errorf("%d drains, want 1", w.slurm.Updates())
	}
}

// An own action that no leader has recorded was never begun, unless it is done.
func TestMergedActions(t *testing.T) {
	act := func(id string, done bool) Action { return Action{At: noon, ID: id, Job: "j", Node: "h1", Done: done} }
	own := []Action{act("lost", false), act("kept", true), act("shared", true)}
	recorded := []Action{act("theirs", false), act("shared", false)}
	if got, want := merge(own, recorded, true), []Action{act("theirs", false), act("shared", true), act("kept", true)}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := merge(own, nil, false); !slices.Equal(got, own) {
		t.Errorf("%v, want %v", got, own)
	}
}

func TestCountsHaveEveryResultFromTheStart(t *testing.T) {
	w := newSite(t)
	s, c := w.open(t, nil), accepted(t)
	if n := s.Counts(); len(n.Decisions) != 3 || len(n.Refusals) != len(Reasons()) || len(n.Outcomes) != 3 {
		t.Errorf("%+v", n)
	}
	for range 5 {
		w.cycle(t, s, c)
	}
	n := s.Counts()
	if n.Decisions[Act] != 1 || n.Decisions[Refuse] != 2 || n.Refusals[NotConfirmed] != 1 || n.Refusals[AlreadyActed] != 1 {
		t.Errorf("%+v", n)
	}
	for _, name := range []string{"kubernetes", "slurm", "webhook"} {
		if n.Outcomes[name][OutcomeDone] != 1 {
			t.Errorf("%s: %v, want done once", name, n.Outcomes[name])
		}
	}
}

// What a thousand diagnoses of one cycle are refused for is written in one step.
func TestAThousandDecisionsAreWritten(t *testing.T) {
	w, c := newSite(t), accepted(t)
	for i := range 999 {
		c.now.Diagnoses = append(c.now.Diagnoses, hang(fmt.Sprintf("x%d", i), "forged", "h1"))
	}
	s := w.open(t, nil)
	w.cycle(t, s, c)
	w.cycle(t, s, c)
	w.cycle(t, s, c)
	if n := strings.Count(w.log(t), `"kind":"decision"`); n != 2*999+3 {
		t.Errorf("%d decisions in the log, want two of each forged one, and not_confirmed, act and already_acted", n)
	}
	if len(w.hook.Handled()) != 1 {
		t.Errorf("%d actions, want 1", len(w.hook.Handled()))
	}
}
