package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

	"github.com/graylink/graylink/analyzer/catalogue"
	"github.com/graylink/graylink/analyzer/workload"
)

const jobAnswer = `{"at":"2026-11-22T03:00:00Z","scope":"job_name:ml/train7","state":"STATE","coverage":{"links":1,"edges":1},"flows":40,"clean":38,"degraded":2,"why":"leaf1:up1--spine1:dn1 (corridor): flows that decide",
"job":"ml/train7","nodes":["h1","h3"],"nics":["h1/eth1","h3/eth1"],
"verdicts":[{"id":"x","element":"leaf1:up1--spine1:dn1","kind":"link","confidence":0.99,"scenario":"corridor","severity":"critical","summary":"It is slow.","recommended_action":"Look at it.","first_seen":"2026-11-22T02:59:00Z","blast_radius":{"nics":2,"edges":3},
"attribution":{"state":"found","summary":"Cause: congestion.","causes":[],"from":"2026-11-22T02:58:00Z","until":"2026-11-22T03:00:00Z"},"open":true,"opened_at":"2026-11-22T02:59:01Z","last_seen":"2026-11-22T03:00:00Z"}],
"before":[{"id":"y","element":"h1/eth1","kind":"nic","scenario":"bad_nic","first_seen":"2026-11-22T01:00:00Z","closed":"healed"}],
"peers":[{"job":"b","state":"innocent","shared_links":12},{"job":"c","state":"suspect","shared_links":3,"crosses_suspect":true}],"unknown_nodes":1}`

func runJob(args ...string) int {
	app, commands := kingpin.New("graylink", ""), map[string]command{}
	addJob(app, commands)
	return run(app, commands, args)
}

// TestJob checks the text of the answer, and the exit codes of the help text.
func TestJob(t *testing.T) {
	state, status := "suspect", http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/observe" {
			http.NotFound(w, r)
			return
		}
		if r.URL.Path != "/api/v1/jobs/ml/train7" {
			t.Errorf("asked %s", r.URL.Path)
		}
		w.WriteHeader(status)
		if status != http.StatusOK {
			_, _ = w.Write([]byte("no job runs\n"))
			return
		}
		_, _ = w.Write([]byte(strings.Replace(jobAnswer, "STATE", state, 1)))
	}))
	defer srv.Close()
	v, raw, err := fetchJob(t.Context(), srv.URL, "ml/train7")
	if err != nil || len(raw) == 0 {
		t.Fatal(err)
	}
	text := jobText(v, "")
	for _, want := range []string{
		"Job ml/train7 on 2 NICs: the network is suspect.", "evidence   leaf1:up1--spine1:dn1 (corridor): flows that decide", "SUSPECT  leaf1:up1--spine1:dn1", "why        Cause: congestion.", "since      2026-11-22T02:59:00Z",
		"h1/eth1 (bad_nic): healed", "b  12 links: clean: what they share is not at fault", "c  3 links: suspect as well; it crosses what is blamed, too", "1 nodes or NICs",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	for s, want := range map[string]int{"innocent": 0, "suspect": jobSuspect, "insufficient_evidence": jobUnclear} {
		state = s
		if code := runJob("job", "ml/train7", "--analyzer", srv.URL); code != want {
			t.Errorf("%s: exit code %d, want %d", s, code, want)
		}
	}
	status = http.StatusNotFound
	if _, _, err := fetchJob(t.Context(), srv.URL, "ml/train7"); err == nil || !strings.Contains(err.Error(), "404 Not Found: no job runs") {
		t.Errorf("%v", err)
	}
	if code := runJob("job", "ml/train7", "--analyzer", srv.URL); code != 1 {
		t.Errorf("no such job: exit code %d", code)
	}
	for _, bad := range []string{"127.0.0.1:9872", "ftp://x", "http://"} {
		if _, _, err := fetchJob(t.Context(), bad, "x"); err == nil || !strings.Contains(err.Error(), "want a URL") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestWhatAJobWaitsFor: the answer says whether the network is to blame and what is, and why that is unknown.
func TestWhatAJobWaitsFor(t *testing.T) {
	d := workload.Diagnosis{Open: true, Syndrome: workload.CommSlow, Effect: &workload.Effect{Ratio: 1.57}, Ranks: []int{3}, Nodes: []string{"h4"}, Summary: "AllReduce is slow."}
	guilty, innocent, unclear, over := d, d, d, d
	guilty.Network, guilty.Isolate.Links = workload.Network{State: workload.Guilty, Element: "leaf1:up1--spine1:dn1"}, []string{"leaf1:up1--spine1:dn1"}
	innocent.Network, innocent.Syndrome, innocent.Effect = workload.Network{State: workload.Innocent}, workload.NonCommHang, nil
	unclear.Network = workload.Network{State: workload.Insufficient, Reason: "clean probes do not cover the ways"}
	over.Open = false
	for want, r := range map[string]*workload.Report{
		"The job waits 1.6 times as long; network guilty, link leaf1:up1--spine1:dn1.\n": {Diagnoses: []workload.Diagnosis{guilty}},
		"The job hangs; network innocent, rank 3 on h4.\n":                               {Diagnoses: []workload.Diagnosis{innocent}},
		"it is unknown whether the network is to blame: clean probes do not":             {Diagnoses: []workload.Diagnosis{unclear}},
		"For no rank and no connection: 90 operations of 2 communicators.":               {State: workload.Healthy, Diagnoses: []workload.Diagnosis{over}, Coverage: workload.Coverage{Operations: 90, Communicators: 2}},
		"It is unknown for what": {State: workload.InsufficientState},
	} {
		if got := waitsText(r); !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	if got := waitsText(nil); got != "" {
		t.Errorf("%q", got)
	}
	v := jobReply{Collectives: &workload.Report{Diagnoses: []workload.Diagnosis{guilty}}}
	if got := jobText(v, ""); !strings.Contains(got, "  waits      The job waits 1.6 times") {
		t.Error(got)
	}
}

// TestRunningQueuePairs: the answer has the rate that the paths of the queue pairs allow, or why it is not known.
func TestRunningQueuePairs(t *testing.T) {
	const known = `{"job":"j1","reasons":[],"observed":{"job":"j1","qps":8,"known":8,"busbw_gbps":241.3,"planned_gbps":362,"hurt_by":[{"link":"leaf1:up2->spine2:dn1","capacity_gbps":362,"qps":{"j1":3,"j2":3}}]}}`
	for _, x := range []struct {
		answer string
		code   int
		want   []string
	}{
		{known, 200, []string{"rate       241.3 Gb/s by the paths of its queue pairs, and 362.0 Gb/s with the source ports of a plan\n", "j1 is held back by leaf1:up2->spine2:dn1 (362 Gb/s), which is full with queue pairs: 3 of j1, 3 of j2.\n"}},
		{`{"job":"j1","reasons":["a.","b.","c.","d."],"observed":{"job":"j1","qps":8,"assumed":"ring","at_most_gbps":362}}`, 200, []string{"at most 362.0 Gb/s by the paths of its queue pairs\n", "a ring in the order of its nodes is assumed", "c.\n", "--format json has the other reasons, 4 in all"}},
		{`{"job":"j1","reasons":["link l has no speed_gbps"]}`, 200, []string{"rate       unknown: link l has no speed_gbps\n"}},
		{`{"job":"j1","reasons":["The list of h1 was not read."],"observed":{"job":"j1"}}`, 200, []string{"  rate       unknown\n             The list of h1 was not read.\n"}},
		{strings.Replace(known, `"reasons"`, `"refused":"only loopback clients","age_seconds":754.4,"reasons"`, 1), 200, []string{"  rate       241.3 Gb/s", "             Observed 754 s ago. Nothing is observed anew: only loopback clients.\n"}},
		{`{"job":"j1","reasons":["The queue pairs of j1 have not been observed: a reason."],"refused":"a reason"}`, 200, []string{"rate       unknown: The queue pairs of j1 have not been observed: a reason.\n"}},
		{"no", 404, []string{"unknown: the analyzer has no agents that list queue pairs"}},
		{"busy", 503, []string{"unknown: 503 Service Unavailable: busy"}},
		{"[]", 200, []string{"unknown: cannot parse"}},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("job") != "j1" || r.URL.Query().Get("dscp") != "26" {
				t.Errorf("asked %s", r.URL)
			}
			w.WriteHeader(x.code)
			_, _ = w.Write([]byte(x.answer))
		}))
		r := fetchRunning(t.Context(), srv.URL, catalogue.Question{Job: "j1", DSCP: 26})
		srv.Close()
		text := r.text()
		for _, want := range x.want {
			if !strings.Contains(text, want) {
				t.Errorf("lacks %q:\n%s", want, text)
			}
		}
		all, err := r.addTo([]byte("{\"job\":\"j1\"}\n"))
		var both struct {
			Job     string
			Running *catalogue.Running
			Error   string `json:"running_error"`
		}
		if err := errors.Join(err, json.Unmarshal(all, &both)); err != nil || both.Job != "j1" || (both.Running == nil) == (both.Error == "") || (both.Error == "") != (r.err == nil) {
			t.Errorf("%s: %v", all, err)
		}
	}
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	if r := fetchRunning(t.Context(), srv.URL, catalogue.Question{Job: "j1"}); !strings.Contains(r.text(), "unknown: the analyzer does not answer") {
		t.Error(r.text())
	}
}
