package audit

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// failedReport returns a report with an element of every status, and with what would break a page if it were not escaped.
func failedReport() *Report {
	s := newSite(1, 4, 4, 8)
	up, _ := s.fabricLink(0)
	s.loss[up] = 0.01
	s.stalled[s.g.Topo.Nodes[3].Name] = true
	before := newSite(1, 4, 4, 8).audit()
	r := s.audit()
	r.Compared = Compare(&before, &r)
	r.Checks[0].addItem(Item{Element: "<script>alert(1)</script>|x", Status: Warn, Text: "a \"text\" & more"})
	r.Checks[1].Required, r.Checks[1].Status = false, Unknown
	return &r
}

func TestReportIsReadAsItWasWritten(t *testing.T) {
	r := failedReport()
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	got, err := ReadReport(&b)
	if err != nil {
		t.Fatal(err)
	}
	got.Start, got.End = r.Start, r.End // other representations of the same zone
	if !reflect.DeepEqual(got, r) {
		t.Errorf("%+v was read, want %+v", got, r)
	}
	for _, text := range []string{"", "{}", `{"version":9}`, `{"version":1,"checks":[{"status":"good"}]}`, `{"version":1,"checks":[{"status":"pass","items":[{"status":""}]}]}`} {
		if _, err := ReadReport(strings.NewReader(text)); err == nil {
			t.Errorf("%q is read as a report", text)
		}
	}
}

func TestFormatsHaveWhatFailed(t *testing.T) {
	r := failedReport()
	failed := failedElements(r)
	if len(failed) == 0 {
		t.Fatal("nothing failed")
	}
	var md, page, junit bytes.Buffer
	for _, err := range []error{r.WriteMarkdown(&md), r.WriteHTML(&page), r.WriteJUnit(&junit)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	link := ""
	for _, i := range r.Checks[2].Items {
		if i.Status == Fail {
			link = i.Element
		}
	}
	for name, text := range map[string]string{"Markdown": md.String(), "HTML": page.String(), "JUnit": junit.String()} {
		if link == "" || !strings.Contains(text, link) {
			t.Errorf("%s lacks %q", name, link)
		}
		if strings.Contains(text, "<script>") {
			t.Errorf("%s has an element that is not escaped", name)
		}
	}
	for _, outside := range []string{"http://", "https://", "src=", "@import", "url("} {
		if strings.Contains(page.String(), outside) {
			t.Errorf("the page has %q, so that it may need another file", outside)
		}
	}
	var suite junitSuite
	if err := xml.Unmarshal(junit.Bytes(), &suite); err != nil {
		t.Fatal(err)
	}
	if suite.Tests != len(r.Checks) || suite.Failures != 1 || suite.Skipped != 7 || suite.Errors < 1 {
		t.Errorf("%d tests, %d failures, %d skipped, %d errors", suite.Tests, suite.Failures, suite.Skipped, suite.Errors)
	}
}

// The page shows few failed elements at once, and hides many. Elements without a direction or value have no text for it.
func TestPageShowsFewElementsAtOnce(t *testing.T) {
	value := 0.5
	for n, open := range map[int]bool{1: true, maxOpenItems: true, maxOpenItems + 1: false} {
		c := Check{ID: "A8", Status: Fail}
		for i := range n {
			c.Items = append(c.Items, Item{Element: fmt.Sprintf("sw:%d", i), Status: Fail})
		}
		r := Report{Status: Fail, Checks: []Check{c, {ID: "A3", Status: Fail, Items: []Item{{Element: "a--b", Direction: "a->b", Value: &value, Status: Fail}}}}}
		var b bytes.Buffer
		if err := r.WriteHTML(&b); err != nil {
			t.Fatal(err)
		}
		shown := 1 // A3
		if open {
			shown = 2
		}
		if text := b.String(); strings.Count(text, "<details open>") != shown || strings.Count(text, ">Direction</th>") != 1 || !strings.Contains(text, "a → b") || strings.Count(text, ">unknown</td>") != 4 {
			t.Errorf("%d elements, open %v:\n%s", n, open, text)
		}
	}
}

// A report in which much failed has a page of less than 5 MB.
func TestLargePageIsBounded(t *testing.T) {
	r := failedReport()
	for i := range r.Checks {
		for n := range 3 * maxItems {
			r.Checks[i].addItem(Item{Element: fmt.Sprintf("a-p%d-leaf%d:up%d--a-p%d-spine%d:dn%d", n, n, n, n, n, n), Direction: fmt.Sprintf("a-p%d-leaf%d:up%d->a-p%d-spine%d:dn%d", n, n, n, n, n, n),
				Status: Unknown, Text: "0 flows with a known path cross it; at least 1 are expected, and the text of such an element may be rather long."})
		}
		r.Checks[i].finish()
		if c := &r.Checks[i]; len(c.Items) != maxItems || c.Omitted < maxItems || c.Items[0].Status != Fail && i == 2 {
			t.Errorf("%s lists %d items, omits %d, and begins with %s", c.ID, len(c.Items), c.Omitted, c.Items[0].Status)
		}
	}
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil || b.Len() > 5<<20 {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
	t.Logf("%d bytes", b.Len())
}
