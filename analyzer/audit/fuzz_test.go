package audit

import (
	"bytes"
	"testing"
)

// Whatever a criteria file has, it is refused, or has values that the checks can use.
func FuzzParseCriteria(f *testing.F) {
	f.Add([]byte("loss: {max_ratio: 0.0001, confidence: 0.95}\nrequired: [A1, A13]\n"))
	f.Add([]byte("delay: {max_added: 5us, outlier_mads: 1e3}\nclocks: {max_bound: 1h}\n"))
	f.Add([]byte("ecmp: {significance: .inf}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseCriteria("f", text)
		if err != nil {
			return
		}
		if c.Loss.MaxRatio <= 0 || c.Loss.Confidence >= 1 || c.Delay.MaxAdded <= 0 || c.Delay.MinMembers < 3 {
			t.Errorf("%+v is accepted", c)
		}
	})
}

// Whatever a report of an earlier audit has, it is refused, or can be compared and shown.
func FuzzReadReport(f *testing.F) {
	var b bytes.Buffer
	r := Run(NewRecorder(newSite(1, 2, 2, 1).g, start).Evidence(start, nil, nil), DefaultCriteria(), Scope{})
	if err := r.WriteJSON(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"version":1,"checks":[{"id":"A3","status":"fail","items":[{"element":"a--b","status":"fail","value":1e300}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		before, err := ReadReport(bytes.NewReader(text))
		if err != nil {
			return
		}
		before.Compared = Compare(before, &r)
		var out bytes.Buffer
		for _, err := range []error{before.WriteMarkdown(&out), before.WriteHTML(&out), before.WriteJUnit(&out)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}
