package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alecthomas/kingpin/v2"

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
	text := jobText(v)
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
	if got := jobText(v); !strings.Contains(got, "  waits      The job waits 1.6 times") {
		t.Error(got)
	}
}
