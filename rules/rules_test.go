package rules

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"

	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/test/drift"
)

// promtool runs Debian's promtool, which is of the oldest Prometheus that the rules support.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		testneeds.Missing(t, "promtool (Debian package prometheus)")
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	out, err := filepath.Glob(pattern)
	if err != nil || len(out) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(out), err)
	}
	return out
}

// load reads the rules with the library of the newest Prometheus.
func load(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	for _, file := range files(t, "*.rules.yaml") {
		groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		for _, err := range errs {
			t.Error(err)
		}
		if groups == nil {
			t.FailNow()
		}
		for _, g := range groups.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// mostRules is the number of rules that Mimir accepts in one group by default (ruler_max_rules_per_rule_group, 2.17).
const mostRules = 20

// TestGroupsAreSmall checks that no group has more rules than distributed engines accept.
func TestGroupsAreSmall(t *testing.T) {
	for _, file := range files(t, "*.rules.yaml") {
		groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, g := range groups.Groups {
			if len(g.Rules) > mostRules {
				t.Errorf("%s: group %s has %d rules, and %d are accepted", file, g.Name, len(g.Rules), mostRules)
			}
		}
	}
}

func TestPromtool(t *testing.T) {
	promtool(t, append([]string{"check", "rules", "--lint=all", "--lint-fatal"}, files(t, "*.rules.yaml")...)...)
	promtool(t, append([]string{"test", "rules"}, files(t, "*_test.yaml")...)...)
}

// TestEveryAlertFiresAndDoesNot checks that promtool's tests have a time at which each alert fires and one at which it
// does not.
func TestEveryAlertFiresAndDoesNot(t *testing.T) {
	var tests bytes.Buffer
	for _, file := range files(t, "*_test.yaml") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(b)
	}
	for _, r := range load(t) {
		if r.Alert == "" {
			continue
		}
		name, severity := regexp.QuoteMeta(r.Alert), r.Labels["severity"]
		if !regexp.MustCompile(`alertname: ` + name + `\n\s+exp_alerts:\n(?:\s+(?:- exp_labels|exp_annotations|summary|description|runbook_url|verdict_url).*\n)*?\s+- exp_labels: .*severity: ` + severity).Match(tests.Bytes()) {
			t.Errorf("%s with severity %s fires in no test", r.Alert, severity)
		}
		if !regexp.MustCompile(`alertname: ` + name + `\n\s+exp_alerts: \[\]`).Match(tests.Bytes()) {
			t.Errorf("%s stays silent in no test", r.Alert)
		}
	}
}

var inText = regexp.MustCompile(`(?:fabric|graylink)_[a-z_]+`)

// TestSeriesExist checks that every series that a rule queries is exposed by the code or recorded by a rule.
func TestSeriesExist(t *testing.T) {
	known, err := drift.ExposedSeries("..")
	if err != nil {
		t.Fatal(err)
	}
	rules := load(t)
	for _, r := range rules {
		known[r.Record] = true
	}
	for _, r := range rules {
		asked, err := drift.QueriedSeries(r.Expr)
		if err != nil {
			t.Error(err)
		}
		for _, text := range r.Annotations {
			asked = append(asked, inText.FindAllString(text, -1)...)
		}
		for _, name := range asked {
			if !known[name] {
				t.Errorf("%s%s queries %s, which nothing exposes", r.Record, r.Alert, name)
			}
		}
	}
}

// TestEveryAlertHasItsTexts checks that every alert has a severity, a sort, a summary, a description and a runbook that
// states what the alert means, what to look at, what to do and how to silence it.
func TestEveryAlertHasItsTexts(t *testing.T) {
	index, err := os.ReadFile("../docs/runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, r := range load(t) {
		if r.Alert == "" {
			continue
		}
		names[r.Alert] = true
		for _, l := range []string{"severity", "graylink"} {
			if r.Labels[l] == "" {
				t.Errorf("%s has no label %s", r.Alert, l)
			}
		}
		for _, a := range []string{"summary", "description"} {
			if r.Annotations[a] == "" {
				t.Errorf("%s has no %s", r.Alert, a)
			}
		}
		if want := "/docs/runbooks/" + r.Alert + ".md"; !strings.Contains(r.Annotations["runbook_url"], want) {
			t.Errorf("%s: runbook_url %q, want one with %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		book, err := os.ReadFile("../docs/runbooks/" + r.Alert + ".md")
		if err != nil {
			t.Error(err)
			continue
		}
		for _, part := range []string{"# " + r.Alert + "\n", "**Means**", "**Look first**", "**Do**", "**Silence**"} {
			if !strings.Contains(string(book), part) {
				t.Errorf("the runbook of %s lacks %q", r.Alert, part)
			}
		}
		if !strings.Contains(string(index), "("+r.Alert+".md)") {
			t.Errorf("docs/runbooks/README.md does not list %s", r.Alert)
		}
	}
	for _, file := range files(t, "../docs/runbooks/*.md") {
		if name := strings.TrimSuffix(filepath.Base(file), ".md"); name != "README" && !names[name] {
			t.Errorf("%s is about no alert", file)
		}
	}
}

// TestEveryKindAndScenario checks that an element of each kind makes exactly one of the alerts by verdicts fire, and
// that each scenario has a section in a runbook of these alerts.
func TestEveryKindAndScenario(t *testing.T) {
	kinds, err := drift.StringConstants("../internal/fabric/verdict.go", "Kind")
	if err != nil || len(kinds) < 11 {
		t.Fatalf("kinds %v, %v", kinds, err)
	}
	scenarios, err := drift.StringConstants("../internal/fabric/verdict.go", "Scenario")
	if err != nil || len(scenarios) < 14 {
		t.Fatalf("scenarios %v, %v", scenarios, err)
	}
	books := ""
	for _, kind := range kinds {
		var named []string
		for _, r := range load(t) {
			if r.Labels["graylink"] != "verdict" || r.Labels["severity"] != "warning" {
				continue
			}
			m := regexp.MustCompile(`fabric:suspect:score\{kind(=~|!~|=)"([^"]*)"\}`).FindStringSubmatch(r.Expr)
			if m == nil {
				t.Fatalf("%s: no kind in %s", r.Alert, r.Expr)
			}
			if regexp.MustCompile("^(?:"+m[2]+")$").MatchString(kind) != (m[1] == "!~") {
				named = append(named, r.Alert)
			}
		}
		if len(named) != 1 {
			t.Errorf("kind %s: alerts %v, want one", kind, named)
			continue
		}
		b, err := os.ReadFile("../docs/runbooks/" + named[0] + ".md")
		if err != nil {
			t.Fatal(err)
		}
		books += string(b)
	}
	for _, s := range scenarios {
		if !strings.Contains(books, "\n## "+s+"\n") {
			t.Errorf("no runbook has a section on scenario %s", s)
		}
	}
}

// TestTwoAnalyzersAreOne checks that no alert by a verdict keeps a label that distinguishes replicas or shards.
func TestTwoAnalyzersAreOne(t *testing.T) {
	for _, r := range load(t) {
		if r.Labels["graylink"] == "verdict" && strings.Contains(r.Expr, "fabric_suspect_score") {
			t.Errorf("%s reads fabric_suspect_score itself, and not fabric:suspect:score", r.Alert)
		}
		if r.Record == "fabric:suspect:score" && !strings.HasPrefix(strings.TrimSpace(r.Expr), "max without (instance, replica, shard)") {
			t.Errorf("%s keeps replicas or shards apart: %s", r.Record, r.Expr)
		}
	}
}

// TestDelaysOfHistograms checks quantiles of native histograms, for which promtool 2.42 has no notation, summed over
// flows, NICs and leaves.
func TestDelaysOfHistograms(t *testing.T) {
	const labels = `side="source", leaf="leaf1", class="", plane="a", timestamp="kernel"`
	const near, far = `{{schema:4 count:0 sum:0 offset:-286 buckets:[0]}}+{{schema:4 count:100 sum:0.0004 offset:-286 buckets:[100]}}x10`,
		`{{schema:4 count:0 sum:0 offset:-222 buckets:[0]}}+{{schema:4 count:300 sum:0.0192 offset:-222 buckets:[300]}}x10`
	// Schema 4, 100 probes a second: bucket -286 is around 4 us, -222 around 64 us.
	const data = `load 1s
  fabric_nic_owd_seconds{nic="h1/eth1", ` + labels + `} ` + near + `
  fabric_nic_owd_seconds{nic="h1/eth2", ` + labels + `} ` + far + `
  fabric_leaf_pair_owd_seconds{peer_leaf="leaf2", tier="2", ` + labels + `} ` + near + `
  fabric_leaf_pair_owd_seconds{peer_leaf="leaf3", tier="2", ` + labels + `} ` + far + `
`
	db := promqltest.LoadedStorage(t, data)
	defer db.Close()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	for _, tt := range []struct {
		record string
		where  string
		us     float64
	}{
		{"fabric:nic_owd_seconds:p50_2s", `nic="h1/eth1"`, 4},
		{"fabric:nic_owd_seconds:p99_2s", `nic="h1/eth2"`, 64},
		{"fabric:leafpair_owd_seconds:p50_2s", `peer_leaf="leaf2"`, 4},
		{"fabric:leafpair_owd_seconds:p99_2s", `peer_leaf="leaf3"`, 64},
		{"fabric:tier_owd_seconds:p50_2s", `plane="a"`, 64},
	} {
		expr, parts := "", []string{}
		for _, r := range load(t) {
			if strings.HasSuffix(r.Record, ":rate_2s") { // recorded for the rules after it
				parts = append(parts, r.Record, "("+r.Expr+")")
			}
			if r.Record == tt.record {
				expr = r.Expr
			}
		}
		expr = strings.NewReplacer(parts...).Replace(expr)
		q, err := engine.NewInstantQuery(t.Context(), db, nil, expr, time.Unix(8, 0))
		if err != nil {
			t.Errorf("%s: %v", tt.record, err)
			continue
		}
		v, err := q.Exec(t.Context()).Vector()
		if err != nil {
			t.Errorf("%s: %v", tt.record, err)
		}
		found := false
		for _, s := range v {
			if strings.Contains(s.Metric.String(), tt.where) {
				found = true
				if us := s.F * 1e6; us < tt.us*0.95 || us > tt.us*1.05 {
					t.Errorf("%s of %s: %.1f us, want about %.0f", tt.record, s.Metric, us, tt.us)
				}
			}
		}
		if !found {
			t.Errorf("%s: nothing with %s in %v", tt.record, tt.where, v)
		}
		q.Close()
	}
}
