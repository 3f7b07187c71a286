package ccl

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits of a file that is read as a whole.
const (
	MaxDump   = 64 << 20  // bytes
	maxValues = 2_500_000 // values, of at most some hundred bytes each in memory
	maxDepth  = 32
)

// A tree is what a dump holds: nil, bool, int64, float64, string, *list or *dict. It may share parts, and a part may even
// contain itself, so whoever walks it bounds the steps.
type (
	list struct{ values []any }
	dict struct{ values map[string]any }
)

// errTooMany is the error of a dump with more values than are read.
var errTooMany = fmt.Errorf("more than %d values", maxValues)

// parseJSONTree reads one JSON value.
func parseJSONTree(text []byte) (any, error) {
	d := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	left := maxValues
	v, err := readJSONValue(d, &left, maxDepth)
	if err != nil {
		return nil, fmt.Errorf("after %d bytes: %w", d.InputOffset(), err)
	}
	return v, nil
}

// readJSONValue reads the next value. left is how many more may be read.
func readJSONValue(d *jsontext.Decoder, left *int, depth int) (any, error) {
	if *left--; *left < 0 {
		return nil, errTooMany
	}
	if depth == 0 {
		return nil, fmt.Errorf("more than %d levels", maxDepth)
	}
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch t.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return t.Bool(), nil
	case '"':
		return t.String(), nil
	case '0':
		if n, err := t.Int(); err == nil {
			return n, nil
		}
		f, err := t.Float()
		return f, err
	case '[':
		out := &list{}
		for d.PeekKind() != ']' {
			v, err := readJSONValue(d, left, depth-1)
			if err != nil {
				return nil, err
			}
			out.values = append(out.values, v)
		}
		_, err := d.ReadToken()
		return out, err
	case '{':
		out := &dict{values: map[string]any{}}
		for d.PeekKind() != '}' {
			name, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String()
			v, err := readJSONValue(d, left, depth-1)
			if err != nil {
				return nil, err
			}
			out.values[key] = v
		}
		_, err := d.ReadToken()
		return out, err
	}
	return nil, errors.New("no JSON value")
}

// field returns a value of a dictionary, or the zero value if there is none of that type.
func field[T any](d *dict, key string) (v T, ok bool) {
	if d == nil {
		return v, false
	}
	v, ok = d.values[key].(T)
	return v, ok
}

// valuesOf returns the values of a list, or none.
func valuesOf(v any) []any {
	if l, ok := v.(*list); ok {
		return l.values
	}
	return nil
}
