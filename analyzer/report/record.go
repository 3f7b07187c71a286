package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/graylink/graylink/analyzer/display"
	"github.com/graylink/graylink/internal/plainjson"
)

// record lists every field of the verdict, as the API has it.
func (c *composer) record() Section {
	s := Section{ID: "record", Title: "The verdict's record"}
	t := &Table{Caption: "All fields of the verdict", Columns: []string{"field", "value"}}
	var b bytes.Buffer
	if err := plainjson.NewEncoder(&b).Encode(&c.r.Verdict); err != nil {
		s.Blocks = append(s.Blocks, Block{Text: err.Error()})
		return s
	}
	d := json.NewDecoder(&b)
	d.UseNumber()
	err := flatten(d, "", func(name, value string) {
		if len(t.Rows) >= c.bound(maxRecord) {
			t.LeftOut++
			return
		}
		t.Rows = append(t.Rows, []Cell{code(name), {Text: display.ShortenMiddle(value, c.bound(maxRecordText)), Code: true}})
	})
	if err != nil {
		s.Blocks = append(s.Blocks, Block{Text: err.Error()})
	}
	s.Blocks = append(s.Blocks, Block{Folded: "record-table", Table: t})
	return s
}

// flatten calls take with each number, text and truth value of the next JSON value, and with the keys that lead to it.
func flatten(d *json.Decoder, name string, take func(name, value string)) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	delim, nested := token.(json.Delim)
	if !nested {
		switch v := token.(type) {
		case nil:
		case string:
			take(name, v)
		default:
			take(name, fmt.Sprint(v))
		}
		return nil
	}
	for i := 0; d.More(); i++ {
		inner := name + "[" + strconv.Itoa(i) + "]"
		if delim == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			inner = fmt.Sprint(key)
			if name != "" {
				inner = name + "." + inner
			}
		}
		if err := flatten(d, inner, take); err != nil {
			return err
		}
	}
	_, err = d.Token() // the end
	return err
}
