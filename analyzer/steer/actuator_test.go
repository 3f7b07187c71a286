package steer

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/steer/steertest"
	"github.com/graylink/graylink/analyzer/workload"
)

// order returns an order on node h1.
func order() *Order {
	d := hang("d1", "train", "h1")
	return &Order{ID: "d1/h1", At: noon, Target: "h1", Node: "h1", Witness: SilentAgent, Diagnosis: &d}
}

// actuator returns the actuator of a name.
func actuator(t *testing.T, w *site, name string) Actuator {
	t.Helper()
	s := w.open(t, nil)
	i := slices.IndexFunc(s.actuators, func(a Actuator) bool { return a.Name() == name })
	return s.actuators[i]
}

// Test vectors 1, 2, 3, 6 and 7 of RFC 4231, sections 4.2 to 4.8, for HMAC-SHA-256.
func TestHMACOfRFC4231(t *testing.T) {
	for _, v := range []struct{ key, data, want string }{
		{strings.Repeat("0b", 20), "4869205468657265", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
		{"4a656665", "7768617420646f2079612077616e7420666f72206e6f7468696e673f", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
		{strings.Repeat("aa", 20), strings.Repeat("dd", 50), "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
		{strings.Repeat("aa", 131), "54657374205573696e67204c6172676572205468616e20426c6f636b2d53697a65204b6579202d2048617368204b6579204669727374",
			"60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
	} {
		key, err := hex.DecodeString(v.key)
		if err != nil {
			t.Fatal(err)
		}
		data, err := hex.DecodeString(v.data)
		if err != nil {
			t.Fatal(err)
		}
		for cut := range len(data) + 1 { // in parts, as a signature has the time and the body
			if got := hex.EncodeToString(authenticate(key, data[:cut], data[cut:])); got != v.want {
				t.Fatalf("%s, want %s", got, v.want)
			}
		}
	}
}

// Failures that may pass are repeated twice, with the same identifier, a signature of the time of the attempt, and waits of one
// and two seconds.
func TestFailuresThatMayPassAreRepeated(t *testing.T) {
	for _, name := range []string{"kubernetes", "slurm", "webhook"} {
		for _, f := range []steertest.Fault{{Status: 500}, {Status: 503}, {Status: 429}, {Status: 409}, {Lost: true}} {
			w := newSite(t)
			server := w.server(name)
			server.AddFaults(f, f)
			got, err := actuator(t, w, name).Act(context.Background(), order())
			if got != OutcomeDone || err != nil {
				t.Errorf("%s, %+v: %s (%v), want done", name, f, got, err)
			}
			if want := []time.Duration{time.Second, 2 * time.Second}; !slices.Equal(w.waits, want) {
				t.Errorf("%s, %+v: waits %v, want %v", name, f, w.waits, want)
			}
			if f.Lost && name == "webhook" && w.hook.Repeats()["d1/h1"] != 2 {
				t.Errorf("repeats %v, want two with the same identifier", w.hook.Repeats())
			}
			server.AddFaults(f, f, f)
			o := order()
			o.Target, o.ID = "h2", "d2/h2"
			if got, err := actuator(t, w, name).Act(context.Background(), o); err == nil {
				t.Errorf("%s, three times %+v: %s, want an error", name, f, got)
			}
		}
	}
}

// A change whose answer was lost is recognized by the next attempt.
func TestALostAnswerIsNoFailure(t *testing.T) {
	for _, name := range []string{"kubernetes", "slurm"} {
		w := newSite(t)
		w.server(name).AddFaults(steertest.Fault{}, steertest.Fault{Lost: true})
		if got, err := actuator(t, w, name).Act(context.Background(), order()); got != OutcomeDone || err != nil {
			t.Errorf("%s: %s (%v), want done", name, got, err)
		}
		if n := len(w.server(name).Requests()); n != 3 {
			t.Errorf("%s: %d requests, want the change once, and the node read again", name, n)
		}
	}
}

// A server that does not answer is given up after the timeout, and tried again.
func TestASilentServerIsTriedAgain(t *testing.T) {
	w := newSite(t)
	w.settings.Webhook.Timeout = 500 * time.Millisecond
	w.hook.AddFaults(steertest.Fault{Hang: true})
	a := actuator(t, w, "webhook").(*webhook)
	a.wait = func(context.Context, time.Duration) { a.timeout = time.Minute } // the machine may be slow
	if got, err := a.Act(context.Background(), order()); got != OutcomeDone || err != nil {
		t.Errorf("%s (%v), want done", got, err)
	}
}

// server returns a server of the site by its name.
func (w *site) server(name string) *steertest.Server {
	return map[string]*steertest.Server{"kubernetes": &w.kube.Server, "slurm": &w.slurm.Server, "webhook": &w.hook.Server}[name]
}

// Answers that will not change are not repeated, and redirects are not followed.
func TestFailuresThatStayAreNotRepeated(t *testing.T) {
	for _, name := range []string{"kubernetes", "slurm", "webhook"} {
		for _, code := range []int{301, 307, 400, 401, 403, 404, 501} {
			w := newSite(t)
			server := w.server(name)
			server.AddFaults(steertest.Fault{Status: code})
			if got, err := actuator(t, w, name).Act(context.Background(), order()); err == nil || !strings.Contains(err.Error(), name+":") {
				t.Errorf("%s, %d: %s (%v), want an error that names the actuator", name, code, got, err)
			}
			if n := len(server.Requests()); n != 1 {
				t.Errorf("%s, %d: %d requests, want 1", name, code, n)
			}
		}
	}
}

func TestWebhookBodyAndSecret(t *testing.T) {
	w := newSite(t)
	if _, err := actuator(t, w, "webhook").Act(context.Background(), order()); err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(w.hook.Handled()["d1/h1"], &m); err != nil {
		t.Fatal(err)
	}
	if m["action"] != "isolate" || m["node"] != "h1" || m["job"] != "train" || m["witness"] != "silent_agent" || m["diagnosis"].(map[string]any)["id"] != "d1" {
		t.Errorf("body %v", m)
	}
	for secret, refused := range map[string]bool{"short": false, strings.Repeat("x", 32): true} {
		if err := os.WriteFile(w.settings.Webhook.SecretFile, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
		before := len(w.hook.Requests())
		_, err := actuator(t, w, "webhook").Act(context.Background(), order())
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("secret %q: %v, want an error without it", secret, err)
		}
		if sent := len(w.hook.Requests()) - before; (sent > 0) != refused {
			t.Errorf("secret %q: %d requests", secret, sent)
		}
	}
}

// A server whose certificate is not known gets no request.
func TestAForeignCertificateIsRefused(t *testing.T) {
	for _, name := range []string{"kubernetes", "slurm", "webhook"} {
		w := newSite(t)
		for _, target := range w.settings.targets() {
			target.Client.TLSConfig.CA = ""
		}
		if _, err := actuator(t, w, name).Act(context.Background(), order()); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v, want an error of the certificate", name, err)
		}
		w.untouched(t)
	}
}

// transport answers requests from a function, and keeps the last body that was sent.
type transport struct {
	answer func(r *http.Request) string
	sent   []string
	kind   string
}

func (tr *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if r.Method != http.MethodGet {
		tr.sent, tr.kind = append(tr.sent, string(b)), r.Header.Get("Content-Type")
	}
	return &http.Response{StatusCode: 200, Status: "200 OK", Header: http.Header{}, Request: r,
		Body: io.NopCloser(strings.NewReader(tr.answer(r)))}, nil
}

// over returns a server of an actuator over a transport.
func (tr *transport) over(name string) *server {
	return &server{name: name, client: &http.Client{Transport: tr}, base: "https://server", timeout: time.Minute, wait: func(context.Context, time.Duration) {}}
}

// kubectl cordon (k8s.io/kubectl v0.37.0, pkg/drain/cordon.go: PatchOrReplaceWithContext) makes a strategic merge patch of a Node
// and its copy with spec.unschedulable, which is {"spec":{"unschedulable":true}}. Ours also has the version, and what is left at
// the Node.
func TestPatchIsThatOfKubectl(t *testing.T) {
	tr := &transport{answer: func(*http.Request) string {
		return `{"kind":"Node","metadata":{"name":"h1","resourceVersion":"77","labels":{"a":"b"}},"spec":{"taints":[{"key":"gpu","effect":"NoSchedule","timeAdded":"2026-01-01T00:00:00Z"}]}}`
	}}
	if _, err := (&cordon{tr.over("kubernetes"), false}).Act(context.Background(), order()); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(tr.sent[0]), &got); err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(got["spec"])
	if meta := got["metadata"].(map[string]any); err != nil || string(spec) != `{"unschedulable":true}` || tr.kind != "application/strategic-merge-patch+json" ||
		meta["resourceVersion"] != "77" || len(got) != 2 || len(meta) != 2 {
		t.Errorf("patch %s of type %s", tr.sent[0], tr.kind)
	}
	if _, err := (&cordon{tr.over("kubernetes"), true}).Act(context.Background(), order()); err != nil {
		t.Fatal(err)
	}
	if want := `"taints":[{"key":"gpu","effect":"NoSchedule","timeAdded":"2026-01-01T00:00:00Z"},{"key":"graylink.io/steering","value":"suspect","effect":"NoSchedule"}]`; !strings.Contains(tr.sent[1], want) {
		t.Errorf("patch %s, want %s", tr.sent[1], want)
	}
}

func TestNodesThatOthersCordonedAreLeftAlone(t *testing.T) {
	for name, change := range map[string]func(n *steertest.Node){
		"cordoned": func(n *steertest.Node) { n.Unschedulable = true },
		"cordoned for another diagnosis": func(n *steertest.Node) {
			n.Unschedulable, n.Annotations = true, map[string]string{actionAnnotation: "d0/h1"}
		},
		"tainted by us": func(n *steertest.Node) { n.Taints = []map[string]any{{"key": taintKey, "effect": "NoSchedule"}} },
	} {
		w := newSite(t)
		w.kube.Change("h1", change)
		before := w.kube.Node("h1")
		got, err := actuator(t, w, "kubernetes").Act(context.Background(), order())
		if after := w.kube.Node("h1"); got != OutcomeLeftAlone || err != nil || after.Version != before.Version {
			t.Errorf("%s: %s (%v), version %d, was %d", name, got, err, after.Version, before.Version)
		}
	}
}

// The Node changes between its reading and the patch: once something else, once by somebody who cordons it.
func TestAConflictReadsTheNodeAgain(t *testing.T) {
	for _, cordoned := range []bool{false, true} {
		w := newSite(t)
		a := actuator(t, w, "kubernetes").(*cordon)
		inner, done := a.client.Transport, false
		a.client.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && !done {
				done = true
				w.kube.Change("h1", func(n *steertest.Node) { n.Unschedulable = cordoned })
			}
			return inner.RoundTrip(r)
		})
		want := OutcomeDone
		if cordoned {
			want = OutcomeLeftAlone
		}
		if got, err := a.Act(context.Background(), order()); got != want || err != nil {
			t.Errorf("cordoned by somebody %v: %s (%v), want %s", cordoned, got, err, want)
		}
		if own := w.kube.Node("h1").Annotations[actionAnnotation] != ""; own == cordoned {
			t.Errorf("cordoned by somebody %v, our annotation %v", cordoned, own)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A name that would be another path is refused, and nothing is sent.
func TestNodeNamesAreNoPaths(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "h1/status", "../secrets", "h1?x", "h%31", "h 1", "h1\n"} {
		w, o := newSite(t), order()
		o.Target = name
		for _, a := range []string{"kubernetes", "slurm"} {
			if got, err := actuator(t, w, a).Act(context.Background(), o); err == nil {
				t.Errorf("%s, node %q: %s, want an error", a, name, got)
			}
		}
		w.untouched(t)
	}
}

// Nodes that are drained, down or failed are left alone, as are those in any state that is not one of use. Reasons stay.
func TestSlurmNodesOutOfUseAreLeftAlone(t *testing.T) {
	used := []string{"ALLOCATED", "CLOUD", "COMPLETING", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "IDLE", "MIXED", "NOT_RESPONDING", "PLANNED", "RESERVED"}
	w := newSite(t)
	a := actuator(t, w, "slurm")
	for _, state := range append([]string{"", "A_STATE_OF_LATER"}, steertest.States...) {
		for _, reason := range []string{"", "bad DIMM, ann"} {
			set := []string{"IDLE", state}
			if state == "" {
				set = nil
			}
			w.slurm.Change("h1", set, reason)
			got, err := a.Act(context.Background(), order())
			want := OutcomeLeftAlone
			if slices.Contains(used, state) && reason == "" {
				want = OutcomeDone
			}
			n := w.slurm.Node("h1")
			if got != want || err != nil || want == OutcomeLeftAlone && (n.Reason != reason || !slices.Equal(n.State, set)) {
				t.Errorf("state %v, reason %q: %s (%v), now %+v; want %s", set, reason, got, err, n, want)
			}
		}
	}
	if f := w.slurm.Forbidden(); len(f) > 0 {
		t.Errorf("refused: %v", f)
	}
}

func TestSlurmVersionsAndErrors(t *testing.T) {
	for _, v := range slurmVersions {
		w := newSite(t)
		w.slurm = steertest.NewSlurm(t, v, "h1")
		headers := w.settings.Slurm.Client.HTTPHeaders
		w.settings.Slurm = &DrainSettings{Target: target(&w.slurm.Server), Version: v}
		w.settings.Slurm.Client.HTTPHeaders = headers
		a := actuator(t, w, "slurm")
		w.slurm.AddErrors("Access/permission denied")
		if got, err := a.Act(context.Background(), order()); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%s: %s (%v), want slurmrestd's error", v, got, err)
		}
		if got, err := a.Act(context.Background(), order()); got != OutcomeDone || err != nil || w.slurm.Updates() != 1 {
			t.Errorf("%s: %s (%v) after %d updates, want done by one", v, got, err, w.slurm.Updates())
		}
	}
}

// What a user wrote into a record does not control what is left at a node.
func TestReasonsArePrintable(t *testing.T) {
	o := order()
	o.Diagnosis = &workload.Diagnosis{Job: "tr\nain\x1b[31m", Summary: strings.Repeat("é\x00", 300)}
	r := o.reason()
	if len(r) != reasonLength || strings.ContainsFunc(r, func(c rune) bool { return c < ' ' || c > '~' }) {
		t.Errorf("%q", r)
	}
}

// Whatever a server answers, nothing is changed but by a patch with a version and by a drain of a node without a reason.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"kind":"Node","metadata":{"name":"h1","resourceVersion":"1","annotations":{"a":"b"}},"spec":{"taints":[{"key":"k"}]}}`))
	f.Add([]byte(`{"nodes":[{"name":"h1","state":["IDLE"],"reason":""}],"errors":[]}`))
	f.Add([]byte(`{"nodes":[{"name":"h1","state":["IDLE","DRAIN"],"reason":"graylink d1/h1: x"}],"errors":[{"error":"x","error_number":1}]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		tr := &transport{answer: func(*http.Request) string { return string(answer) }}
		_, _ = (&cordon{tr.over("kubernetes"), true}).Act(context.Background(), order())
		for _, sent := range tr.sent {
			if !json.Valid([]byte(sent)) || !strings.Contains(sent, `"resourceVersion":"`) {
				t.Errorf("answer %q: patch %s", answer, sent)
			}
		}
		tr.sent = nil
		_, _ = (&drain{tr.over("slurm"), "v0.0.43"}).Act(context.Background(), order())
		if len(tr.sent) > 0 && (!bytes.Contains(answer, []byte("h1")) && !bytes.Contains(answer, []byte(`\u`)) || len(tr.sent) > 1) {
			t.Errorf("answer %q: updates %v", answer, tr.sent)
		}
	})
}

// No content of an audit log ends the reader, and what it reads is what it would read of its own lines.
func FuzzAudit(f *testing.F) {
	f.Add([]byte(`{"kind":"decision","at":"2026-11-27T12:00:00Z","mode":"act","id":"d1","job":"j","node":"h1","decision":"act"}` + "\n"))
	f.Add([]byte(`{"kind":"result","id":"d1","node":"h1","outcome":"void"}` + "\n" + `{"kind":"dec` + "\n" + `{"kind":"torn"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := parseAudit("audit", b, ModeAct)
		if err != nil && !strings.HasPrefix(err.Error(), "audit:") {
			t.Errorf("%v, want the file and line", err)
		}
		seen := map[place]bool{}
		for _, a := range all {
			if at := (place{a.ID, a.Node}); seen[at] {
				t.Errorf("%+v is there twice", a)
			} else {
				seen[at] = true
			}
		}
	})
}
