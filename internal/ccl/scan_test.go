package ccl

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzScanner compares what the scanner holds to be JSON with go-json-experiment.
func FuzzScanner(f *testing.F) {
	for _, text := range []string{`{"a":[1,-0.5e+3,true,null,{"b":"\u00e9\n"}],"c":""}`, `{}`, `[01]`, `{"a":1,}`, `[1,]`, "[\"\x01\"]", `["\ud800"]`, "[\"\xff\"]", `{"a" 1}`, "1\x00"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > maxDepth {
			return
		}
		s := scanner{}
		s.reset(text)
		s.skip()
		ours := s.end()
		if theirs := jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true)); (ours == nil) != theirs {
			t.Errorf("%q: %v, and jsontext says %t", text, ours, theirs)
		}
	})
}
