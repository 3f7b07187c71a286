package mcpserver

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestEncodeBounded: what fits is written unchanged, and what does not fit loses the ends of lists before those of texts.
func TestEncodeBounded(t *testing.T) {
	type answer struct {
		Z string     `json:"z"`
		A []string   `json:"a"`
		B [][]string `json:"b"`
		N *float64   `json:"n"`
	}
	number := 1.5e300
	small := answer{"\x00\u2028\"\\ä\U0001d11e\u202e\U000e0001", []string{"x", "y"}, [][]string{{"p"}, {}}, &number}
	text, err := encodeBounded(&small, 1000, nil)
	var back answer
	if err := json.Unmarshal([]byte(text), &back); err != nil || !reflect.DeepEqual(back, small) {
		t.Errorf("%s: %v: %+v", text, err, back)
	}
	if want := `{"z":"\u0000\u2028\"\\ä` + "\U0001d11e" + `\u202e\udb40\udc01","a":["x","y"],"b":[["p"],[]],"n":1.5e+300}`; err != nil || text != want {
		t.Errorf("%s, want %s, %v", text, want, err)
	}
	large := answer{Z: strings.Repeat("z", 900), A: strings.Split(strings.Repeat("word ", 999), " "), B: [][]string{{"p", "q"}, {"r"}}}
	for limit, want := range map[int][]string{
		100_000: {"b: 5 of 7 entries"},
		4000:    {"a: 800 of 1000 entries", "b: 5 of 7 entries"},
		1500:    {"a: 950 of 1000 entries", "b: 5 of 7 entries"},
		400:     {"z: the ends of 1 texts", "a: 997 of 1000 entries", "b: 5 of 7 entries"},
		300:     {"z: the ends of 1 texts", "a: 999 of 1000 entries", "b: 6 of 7 entries", "b[]: 1 of 2 entries"},
	} {
		text, err := encodeBounded(&large, limit, map[string]int{"b": 7})
		var got struct {
			LeftOff []string `json:"left_off"`
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got.LeftOff, want) {
			t.Errorf("%d: %v: %q, want %q", limit, err, got.LeftOff, want)
		}
		if quoted, _ := json.Marshal(text); err != nil || len(quoted) > limit {
			t.Errorf("%d: %d bytes, %v", limit, len(quoted), err)
		}
	}
	if _, err := encodeBounded(&large, 50, nil); err == nil || !strings.Contains(err.Error(), "50 bytes") {
		t.Errorf("nothing fits: %v", err)
	}
}

// FuzzEncodeBounded: any JSON is encoded within a bound or refused, is JSON again, and has no control characters.
func FuzzEncodeBounded(f *testing.F) {
	f.Add([]byte(`{"a":[1,2,{"b":"\u0000"}],"c":null}`), 100)
	f.Add([]byte(`{"a":"\ud800","\u202e":[[[]]]}`), 40)
	f.Fuzz(func(t *testing.T, b []byte, limit int) {
		if !json.Valid(b) || b[0] != '{' || len(b) > 1<<16 {
			return
		}
		text, err := encodeBounded(json.RawMessage(b), limit, nil)
		if err != nil {
			return
		}
		quoted, err := json.Marshal(text)
		if err != nil || len(quoted) > limit || !json.Valid([]byte(text)) {
			t.Errorf("%q: %d bytes, limit %d: %v", text, len(quoted), limit, err)
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u202e' }) {
			t.Errorf("%q", text)
		}
	})
}
