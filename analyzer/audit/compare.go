package audit

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
)

// Change is an element of a check whose status is another than before.
type Change struct {
	Check   string `json:"check"`
	Element string `json:"element"`
	Before  Status `json:"before" schema:"enum=pass|warn|unknown|fail"`
	After   Status `json:"after" schema:"enum=pass|warn|unknown|fail"`
}

// Comparison says what changed since an earlier audit.
type Comparison struct {
	Before  Status   `json:"before" schema:"enum=pass|warn|unknown|fail"` // of the earlier audit
	After   Status   `json:"after" schema:"enum=pass|warn|unknown|fail"`
	Changes []Change `json:"changes"`
	// Incomplete is set if one of the audits does not list all elements, so that changes may be missing.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Compare returns what changed from an earlier audit to a later one of the same scope. The status of an element is the worst of its items. A
// check that one of them does not have is left out.
func Compare(before, after *Report) *Comparison {
	out := &Comparison{Before: before.Status, After: after.Status, Changes: []Change{}}
	for i := range after.Checks {
		a := &after.Checks[i]
		j := slices.IndexFunc(before.Checks, func(c Check) bool { return c.ID == a.ID })
		if j < 0 {
			continue
		}
		b := &before.Checks[j]
		out.Incomplete = out.Incomplete || a.Omitted > 0 || b.Omitted > 0
		old, now := statusByElement(b), statusByElement(a)
		var elements []string
		for _, m := range []map[string]Status{old, now} {
			for e := range m {
				elements = append(elements, e)
			}
		}
		slices.Sort(elements)
		for _, e := range slices.Compact(elements) {
			x, y := passUnlessListed(old, e), passUnlessListed(now, e)
			if x != y {
				out.Changes = append(out.Changes, Change{Check: a.ID, Element: e, Before: x, After: y})
			}
		}
	}
	return out
}

func passUnlessListed(m map[string]Status, element string) Status {
	if s, listed := m[element]; listed {
		return s
	}
	return Pass
}

func statusByElement(c *Check) map[string]Status {
	out := map[string]Status{}
	for _, i := range c.Items {
		out[i.Element] = worse(passUnlessListed(out, i.Element), i.Status)
	}
	return out
}

// maxReport bounds the size of a report that is read.
const maxReport = 64 << 20

// LoadReport reads the report of a file, as ReadReport does. Errors name the file.
func LoadReport(name string) (*Report, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r, err := ReadReport(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// ReadReport reads the file audit.json of an earlier audit. It fails if that has another version or an unknown status.
func ReadReport(in io.Reader) (*Report, error) {
	var r Report
	d := json.NewDecoder(io.LimitReader(in, maxReport))
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("invalid report of an audit: %w", err)
	}
	if r.Version != FormatVersion {
		return nil, fmt.Errorf("report of version %d: version %d is expected", r.Version, FormatVersion)
	}
	if _, known := severity[r.Status]; !known && r.Status != "" {
		return nil, fmt.Errorf("status: %q: pass, warn, fail or unknown is expected", r.Status)
	}
	for i := range r.Checks {
		c := &r.Checks[i]
		if _, known := severity[c.Status]; !known {
			return nil, fmt.Errorf("checks[%d].status: %q: pass, warn, fail or unknown is expected", i, c.Status)
		}
		for j := range c.Items {
			if _, known := severity[c.Items[j].Status]; !known {
				return nil, fmt.Errorf("checks[%d].items[%d].status: %q: pass, warn, fail or unknown is expected", i, j, c.Items[j].Status)
			}
		}
	}
	return &r, nil
}
