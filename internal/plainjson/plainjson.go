// Package plainjson writes JSON for terminals, files and programs, which need no HTML escapes.
package plainjson

import (
	"encoding/json"
	"io"
)

// NewEncoder returns an encoder that leaves <, > and & as they are: a link is named leaf1:up1->spine1:dn1 and not
// leaf1:up1-\u003espine1:dn1. What it writes must not be put into a page of HTML.
func NewEncoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e
}
