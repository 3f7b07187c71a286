package jsonscan

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
		if bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > MaxDepth {
			return
		}
		s := Scanner{}
		s.Reset(text)
		s.Skip()
		ours := s.End()
		if theirs := jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true)); (ours == nil) != theirs {
			t.Errorf("%q: %v, and jsontext says %t", text, ours, theirs)
		}
	})
}
