//go:build all

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/workload"
)

// slower is how much longer operations take, as a line of the demo says it.
var slower = regexp.MustCompile(`waits [0-9]+\.[0-9] times as long`)

// TestDemoJob runs what make demo runs: a link that the job crosses is delayed, which the analyzer says with the link's name, and then
// a rank comes late, for which the network is innocent. It logs how much longer this takes than a demo without a job.
func TestDemoJob(t *testing.T) {
	need(t)
	run := func(args ...string) (stdout, stderr string, took time.Duration) {
		t.Helper()
		began := time.Now()
		stdout, stderr, code := graylink(t, append([]string{"demo", "--name", "e2e", "--web.listen-address", "127.0.0.1:0", "--format", "json", "--delay", "30ms"}, args...)...)
		took = time.Since(began)
		clean(t, "e2e")
		if code != 0 {
			t.Fatalf("exit code %d:\n%s", code, stderr)
		}
		return stdout, stderr, took
	}
	stdout, stderr, took := run("--job")
	out := outcomes(t, stdout)
	judge(t, out)
	if len(out) != 1 || out[0].Job == nil || !out[0].Job.IsCorrect() {
		t.Fatalf("%s%s", stdout, stderr)
	}
	link, job := out[0].Fault.Element, out[0].Job
	// The lines of the demo, in the order in which they were printed.
	lines := strings.Split(stderr, "\n")
	for _, want := range []string{
		"injecting a fault: delay at " + link + ", " + out[0].Fault.Direction + ", 30ms",
		"; network guilty, link " + link,
		fmt.Sprintf("making rank %d of job %s late by 80ms, on %s", job.LateRank, job.Name, job.LateNode),
		fmt.Sprintf("; network innocent, rank %d on %s", job.LateRank, job.LateNode),
	} {
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasSuffix(l, want) })
		if i < 0 {
			t.Fatalf("no line ends in %q, or not in this order:\n%s", want, stderr)
		}
		if strings.HasPrefix(want, "; ") && (!strings.Contains(lines[i], "job "+job.Name+" ") || !slower.MatchString(lines[i])) {
			t.Errorf("%q, want how much longer job %s waits", lines[i], job.Name)
		}
		lines = lines[i+1:]
	}
	for name, d := range map[string]*workload.Diagnosis{"the link": job.Link, "the late rank": job.Late} {
		if d.Job != job.Name || d.Effect == nil || d.Effect.Ratio <= 1 {
			t.Errorf("%s: job %q, %+v", name, d.Job, d.Effect)
		}
	}
	if n := job.Link.Network; n.Element != link || !slices.Equal(job.Link.Isolate.Links, []string{link}) {
		t.Errorf("%+v and %+v, want %s", n, job.Link.Isolate, link)
	}
	if d := job.Late; !slices.Equal(d.Ranks, []int{job.LateRank}) || !slices.Equal(d.Nodes, []string{job.LateNode}) {
		t.Errorf("ranks %v on %v, want %d on %s", d.Ranks, d.Nodes, job.LateRank, job.LateNode)
	}
	_, _, without := run()
	t.Logf("%.0f s with a job, %.0f s longer than without one; the link after %.1f s, the late rank after %.1f s", took.Seconds(), (took - without).Seconds(), *job.SecondsToLink, *job.SecondsToLate)
}
