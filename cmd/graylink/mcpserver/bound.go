package mcpserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// value is a value of JSON whose keys keep their order.
type value struct {
	scalar []byte // of a number, true, false or null
	text   string // of a text
	kind   kind
	keys   []string
	items  []value // of a list, or the values of the keys
}

type kind int

const (
	isScalar kind = iota
	isText
	isList
	isObject
)

// parseValue returns the value of a text of JSON.
func parseValue(b []byte) (value, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return readValue(d)
}

func readValue(d *json.Decoder) (value, error) {
	token, err := d.Token()
	if err != nil {
		return value{}, err
	}
	switch x := token.(type) {
	case string:
		return value{kind: isText, text: x}, nil
	case json.Delim:
		v := value{kind: isList}
		if x == '{' {
			v.kind = isObject
		}
		for d.More() {
			if v.kind == isObject {
				key, err := d.Token()
				if err != nil {
					return v, err
				}
				v.keys = append(v.keys, key.(string))
			}
			item, err := readValue(d)
			if err != nil {
				return v, err
			}
			v.items = append(v.items, item)
		}
		_, err := d.Token()
		return v, err
	}
	scalar, err := json.Marshal(token)
	return value{scalar: scalar}, err
}

// step is how many entries of a list, and how many bytes of a text, an answer keeps.
type step struct{ entries, text int }

// steps are tried in this order, until an answer fits.
var steps = []step{
	{math.MaxInt, math.MaxInt}, {500, 4000}, {200, 2000}, {100, 1000}, {50, 1000}, {30, 800}, {20, 600}, {15, 500}, {10, 400},
	{7, 300}, {5, 300}, {3, 200}, {2, 200}, {1, 100}, {0, 60},
}

// writer writes a value as far as a step allows, and notes what it leaves off by the place: the keys from the root on.
type writer struct {
	bytes.Buffer
	step
	totals  map[string]int    // of the lists that the caller has cut already
	entries map[string][2]int // that are left off, and all of them
	texts   map[string]int    // that are cut
	places  []string          // in the order in which they were met
}

// encodeBounded returns an answer as JSON that is no longer than limit as a JSON text within a message. What does not fit is left off:
// the last entries of lists, and the ends of long texts. The key left_off says what. totals are the lengths that lists had before the
// caller cut them.
func encodeBounded(answer any, limit int, totals map[string]int) (string, error) {
	b, err := json.Marshal(answer)
	if err != nil {
		return "", err
	}
	v, err := parseValue(b)
	if err != nil {
		return "", err
	}
	for _, s := range steps {
		w := &writer{step: s, totals: totals, entries: map[string][2]int{}, texts: map[string]int{}}
		w.write(&v, "")
		if all := w.leftOff(); len(all) > 0 {
			w.Truncate(w.Len() - 1)
			w.WriteString(`,"left_off":[`)
			for i, note := range all {
				if i > 0 {
					w.WriteByte(',')
				}
				w.writeText(note)
			}
			w.WriteString("]}")
		}
		text := w.String()
		if quoted, err := json.Marshal(text); err != nil || len(quoted) <= limit {
			return text, err
		}
	}
	return "", fmt.Errorf("the answer does not fit in %d bytes", limit)
}

// leftOff returns what was left off, in words.
func (w *writer) leftOff() (out []string) {
	for _, place := range w.places {
		if n := w.entries[place]; n[0] > 0 {
			out = append(out, fmt.Sprintf("%s: %d of %d entries", place, n[0], n[1]))
		}
		if n := w.texts[place]; n > 0 {
			out = append(out, fmt.Sprintf("%s: the ends of %d texts", place, n))
		}
	}
	return out
}

func (w *writer) note(place string) {
	if !slices.Contains(w.places, place) {
		w.places = append(w.places, place)
	}
}

func (w *writer) write(v *value, place string) {
	switch v.kind {
	case isScalar:
		w.Write(v.scalar)
	case isText:
		text := cutText(v.text, w.text)
		if text != v.text {
			w.note(place)
			w.texts[place]++
		}
		w.writeText(text)
	case isList:
		w.WriteByte('[')
		kept, total := min(len(v.items), w.step.entries), max(len(v.items), w.totals[place])
		if kept < total {
			w.note(place)
			n := w.entries[place]
			w.entries[place] = [2]int{n[0] + total - kept, n[1] + total}
		}
		for i := range kept {
			if i > 0 {
				w.WriteByte(',')
			}
			w.write(&v.items[i], place+"[]")
		}
		w.WriteByte(']')
	case isObject:
		w.WriteByte('{')
		for i, key := range v.keys {
			if i > 0 {
				w.WriteByte(',')
			}
			w.writeText(key)
			w.WriteByte(':')
			inner := key
			if place != "" {
				inner = place + "." + key
			}
			w.write(&v.items[i], inner)
		}
		w.WriteByte('}')
	}
}

// cutEnd marks the end of a text that was cut.
const cutEnd = "..."

// cutText returns the beginning of a text that has no more than limit bytes as JSON.
func cutText(text string, limit int) string {
	if len(text) <= limit/6 {
		return text
	}
	size := 0
	for i, r := range text {
		if size += sizeOf(r); size > limit {
			return text[:i] + cutEnd
		}
	}
	return text
}

// sizeOf returns the number of bytes of a rune as writeText writes it.
func sizeOf(r rune) int {
	switch {
	case r == '"' || r == '\\':
		return 2
	case unicode.IsPrint(r) && r != utf8.RuneError:
		return utf8.RuneLen(r)
	case r > 0xffff:
		return 12
	}
	return 6
}

// writeText writes a text as JSON. What is no printable character, such as a control character of a terminal or one that changes the
// direction of text, is escaped.
func (w *writer) writeText(text string) {
	w.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case unicode.IsPrint(r) && r != utf8.RuneError:
			w.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(w, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(w, `\u%04x`, r)
		}
	}
	w.WriteByte('"')
}

// quote returns a name for an error message.
func quote(name string) string { return strconv.Quote(cutText(name, 200)) }
