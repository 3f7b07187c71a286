// Package decode makes samples of gNMI notifications, by the rules of a preset.
//
//  1. A leaf is identified by its path (prefix, update, and the members of a JSON value) without
//     origin and modules' names; the prefix' target is not part of it.
//  2. A value that its family cannot have is not a sample: it is counted, and absent.
//  3. A leaf without a rule is counted and left out.
//  4. A sample's time is its notification's, unless that is not within a day of now.
//  5. An atomic notification replaces what was beneath its prefix; deletes come
//     before updates (gNMI specification 2.1.1, 3.5.2.5).
//  6. Paths may be in the deprecated form, Path.element, where the values of keys are
//     elements of their own or stand in brackets.
package decode

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	jsoniter "github.com/json-iterator/go"
	"github.com/openconfig/gnmi/proto/gnmi"
	"github.com/openconfig/gnmic/pkg/api/path"

	"github.com/graylink/graylink/internal/gnmi/preset"
)

// Sink receives the content of notifications.
type Sink interface {
	// AddSample takes a value of a leaf, or its text if the leaf's kind has texts. identity and text must not
	// be kept after it returns.
	AddSample(l *preset.Leaf, identity []byte, c *preset.Captures, value float64, text string, at int64)
	// DeleteBeneath removes the leaves beneath a node whose captures match; an empty capture matches any.
	DeleteBeneath(n *preset.Node, c *preset.Captures)
}

// Counts counts what a decoder did.
type Counts struct {
	Updates          uint64 // updates of notifications
	Samples          uint64
	Unknown          uint64 // updates, or members of JSON values, without a rule
	BadValues        uint64 // values that their family cannot have
	Absent           uint64 // values that mean "not available": N/A, null, an empty text
	MissingKeys      uint64 // leaves without the keys that make their labels
	BadJSON          uint64 // values that are not valid JSON, or nested too deeply
	BadTimes         uint64 // notifications whose time is not within a day of now
	Deletes          uint64
	MalformedUpdates uint64 // updates without path or value
}

// Decoder decodes the notifications of one target. It is not safe for concurrent use.
type Decoder struct {
	Counts   Counts
	tree     *preset.Tree
	sink     Sink
	captures preset.Captures
	id       []byte
	iter     *jsoniter.Iterator
}

// New returns a decoder.
func New(tree *preset.Tree, sink Sink) *Decoder {
	return &Decoder{tree: tree, sink: sink, iter: jsoniter.NewIterator(jsoniter.ConfigDefault)}
}

// maxDepth bounds the depth of JSON values: the deepest known model has 9 levels.
const maxDepth = 32

// DecodeNotification decodes a notification. now is the receiver's time.
func (d *Decoder) DecodeNotification(n *gnmi.Notification, now time.Time) {
	at := n.GetTimestamp()
	if delta := now.UnixNano() - at; at <= 0 || delta > int64(24*time.Hour) || -delta > int64(24*time.Hour) {
		d.Counts.BadTimes++
		at = now.UnixNano()
	}
	d.captures = preset.Captures{}
	from := d.walkPath(d.tree.Root, n.GetPrefix())
	base := d.captures
	if n.GetAtomic() && from != nil {
		d.sink.DeleteBeneath(from, &d.captures)
	}
	for _, p := range n.GetDelete() {
		d.Counts.Deletes++
		d.captures = base
		if node := d.walkPath(from, p); node != nil {
			for i, c := range d.captures {
				if c == "*" {
					d.captures[i] = ""
				}
			}
			d.sink.DeleteBeneath(node, &d.captures)
		}
	}
	for _, u := range n.GetUpdate() {
		d.Counts.Updates++
		if u.GetVal() == nil && u.GetValue() == nil { //nolint:staticcheck // the deprecated form must be read
			d.Counts.MalformedUpdates++
			continue
		}
		d.captures = base
		node := d.walkPath(from, u.GetPath())
		if node == nil {
			d.Counts.Unknown++
			continue
		}
		if u.GetVal() == nil {
			d.decodeDeprecated(node, u.GetValue(), at) //nolint:staticcheck // as above
			continue
		}
		d.decodeValue(node, u.GetVal(), at)
	}
}

// walkPath follows a path from a node. It returns nil if no rule leads there.
func (d *Decoder) walkPath(n *preset.Node, p *gnmi.Path) *preset.Node {
	if n == nil || p == nil {
		return n
	}
	for _, e := range p.Elem {
		if n = n.FindChild(e.Name, &d.captures); n == nil {
			return nil
		}
		for _, k := range n.Keys {
			d.captures[k.Capture] = e.Key[k.Name]
		}
	}
	if len(p.Elem) > 0 || len(p.Element) == 0 { //nolint:staticcheck // Path.element is deprecated, and sent
		return n
	}
	return d.walkElements(n, p.Element) //nolint:staticcheck // as above
}

// walkElements follows a path of the deprecated form.
func (d *Decoder) walkElements(n *preset.Node, elements []string) *preset.Node {
	for i := 0; i < len(elements); i++ {
		e := elements[i]
		if strings.IndexByte(e, '[') > 0 {
			p, err := path.ParsePath(e)
			if err != nil || len(p.Elem) == 0 {
				return nil
			}
			if n = d.walkPath(n, p); n == nil {
				return nil
			}
			continue
		}
		if e == "" {
			continue // "/interfaces" split at its slashes
		}
		if n = n.FindChild(e, &d.captures); n == nil {
			return nil
		}
		last := ""
		for _, k := range n.Keys {
			if k.Name == last { // two rules with the same key
				d.captures[k.Capture] = elements[i]
				continue
			}
			if i+1 == len(elements) {
				return n
			}
			i++
			d.captures[k.Capture], last = elements[i], k.Name
		}
	}
	return n
}

// decodeDeprecated decodes a value of the form before TypedValue.
func (d *Decoder) decodeDeprecated(n *preset.Node, v *gnmi.Value, at int64) { //nolint:staticcheck // the deprecated form must be read
	switch v.GetType() {
	case gnmi.Encoding_JSON, gnmi.Encoding_JSON_IETF:
		d.decodeJSON(n, v.GetValue(), at)
	case gnmi.Encoding_ASCII:
		d.decodeLeaf(n, 0, string(v.GetValue()), true, at)
	default:
		d.Counts.BadValues++
	}
}

func (d *Decoder) decodeValue(n *preset.Node, v *gnmi.TypedValue, at int64) {
	switch x := v.GetValue().(type) {
	case *gnmi.TypedValue_UintVal:
		d.decodeLeaf(n, float64(x.UintVal), "", false, at)
	case *gnmi.TypedValue_IntVal:
		d.decodeLeaf(n, float64(x.IntVal), "", false, at)
	case *gnmi.TypedValue_DoubleVal:
		d.decodeLeaf(n, x.DoubleVal, "", false, at)
	case *gnmi.TypedValue_FloatVal: //nolint:staticcheck // deprecated, and sent
		d.decodeLeaf(n, float64(x.FloatVal), "", false, at) //nolint:staticcheck // as above
	case *gnmi.TypedValue_DecimalVal: //nolint:staticcheck // deprecated, and sent
		p := x.DecimalVal.GetPrecision() //nolint:staticcheck // as above
		if p > 18 {                      // RFC 7950 9.3.4
			d.Counts.BadValues++
			return
		}
		d.decodeLeaf(n, float64(x.DecimalVal.GetDigits())/math.Pow10(int(p)), "", false, at) //nolint:staticcheck // as above
	case *gnmi.TypedValue_StringVal:
		d.decodeLeaf(n, 0, x.StringVal, true, at)
	case *gnmi.TypedValue_AsciiVal:
		d.decodeLeaf(n, 0, x.AsciiVal, true, at)
	case *gnmi.TypedValue_BoolVal:
		d.decodeLeaf(n, 0, strconv.FormatBool(x.BoolVal), true, at)
	case *gnmi.TypedValue_JsonVal:
		d.decodeJSON(n, x.JsonVal, at)
	case *gnmi.TypedValue_JsonIetfVal:
		d.decodeJSON(n, x.JsonIetfVal, at)
	case *gnmi.TypedValue_LeaflistVal:
		// A list of one is its element; a longer one cannot be the value of a series.
		if list := x.LeaflistVal.GetElement(); len(list) == 1 {
			if _, nested := list[0].GetValue().(*gnmi.TypedValue_LeaflistVal); !nested {
				d.decodeValue(n, list[0], at)
				return
			}
		}
		d.Counts.BadValues++
	case *gnmi.TypedValue_BytesVal:
		// ieeefloat32 of openconfig-types.
		if len(x.BytesVal) == 4 {
			d.decodeLeaf(n, float64(math.Float32frombits(binary.BigEndian.Uint32(x.BytesVal))), "", false, at)
			return
		}
		d.Counts.BadValues++
	default: // proto_bytes and any have unknown schemas
		d.Counts.BadValues++
	}
}

// decodeLeaf adds the value of a leaf, a number or a text.
func (d *Decoder) decodeLeaf(n *preset.Node, number float64, text string, isText bool, at int64) {
	if len(n.Leaves) == 0 {
		d.Counts.Unknown++
		return
	}
	if isText {
		switch text {
		case "", "N/A", "n/a", "NA", "null":
			d.Counts.Absent++
			return
		}
	}
	known := false
	for _, l := range n.Leaves {
		var ok bool
		if d.id, ok = l.AppendIdentity(d.id[:0], &d.captures); !ok {
			continue
		}
		known = true
		v := 1.0
		if l.Family.Kind.IsText() {
			if !isText {
				text = strconv.FormatFloat(number, 'f', -1, 64)
			}
		} else if v, ok = l.Conv.ConvertValue(number, text, isText); !ok || l.Family.Kind == preset.Counter && v < 0 {
			d.Counts.BadValues++
			continue
		}
		d.Counts.Samples++
		d.sink.AddSample(l, d.id, &d.captures, v, text, at)
	}
	if !known {
		d.Counts.MissingKeys++
	}
}

// decodeJSON decodes a JSON value: a leaf, or a tree whose members are leaves.
func (d *Decoder) decodeJSON(n *preset.Node, b []byte, at int64) {
	d.iter.ResetBytes(b)
	d.iter.Error = nil
	d.decodeMember(d.iter, n, at, 0)
	if d.iter.Error != nil && d.iter.Error.Error() != "EOF" {
		d.Counts.BadJSON++
	}
}

func (d *Decoder) decodeMember(it *jsoniter.Iterator, n *preset.Node, at int64, depth int) {
	if depth > maxDepth {
		it.ReportError("json", "too deep")
		return
	}
	switch it.WhatIsNext() {
	case jsoniter.ObjectValue:
		if n.IsTerminal() {
			d.Counts.Unknown++
			it.Skip()
			return
		}
		saved := d.captures
		it.ReadObjectCB(func(it *jsoniter.Iterator, name string) bool {
			if child := n.FindChild(name, &d.captures); child != nil {
				d.decodeMember(it, child, at, depth+1)
			} else {
				d.Counts.Unknown++
				it.Skip()
			}
			d.captures = saved
			return it.Error == nil
		})
	case jsoniter.ArrayValue:
		d.decodeList(it, n, at, depth)
	case jsoniter.StringValue:
		if s := it.ReadString(); it.Error == nil {
			d.decodeLeaf(n, 0, s, true, at)
		}
	case jsoniter.NumberValue:
		if v := it.ReadFloat64(); it.Error == nil || it.Error.Error() == "EOF" {
			d.decodeLeaf(n, v, "", false, at)
		}
	case jsoniter.BoolValue:
		if v := it.ReadBool(); it.Error == nil || it.Error.Error() == "EOF" {
			d.decodeLeaf(n, 0, strconv.FormatBool(v), true, at)
		}
	case jsoniter.NilValue:
		it.ReadNil()
		d.Counts.Absent++
	default:
		it.ReportError("json", "no JSON value")
	}
}

// decodeList decodes a YANG list or leaf-list. The entries of a list have their keys among their members, at
// any place.
func (d *Decoder) decodeList(it *jsoniter.Iterator, n *preset.Node, at int64, depth int) {
	saved := d.captures
	for first := true; it.ReadArray(); first = false {
		if it.WhatIsNext() != jsoniter.ObjectValue {
			if first {
				d.decodeMember(it, n, at, depth+1) // [null] of an empty leaf, and leaf-lists of one
			} else {
				d.Counts.BadValues++
				it.Skip()
			}
			continue
		}
		entry := slices.Clone(it.SkipAndReturnBytes())
		if it.Error != nil {
			return
		}
		if len(n.Keys) > 0 {
			d.captureKeys(entry, n)
		}
		inner := jsoniter.ParseBytes(jsoniter.ConfigDefault, entry)
		d.decodeMember(inner, n, at, depth+1)
		if inner.Error != nil && inner.Error.Error() != "EOF" {
			it.ReportError("json", inner.Error.Error())
		}
		d.captures = saved
	}
}

// captureKeys reads the keys of a list's entry.
func (d *Decoder) captureKeys(entry []byte, n *preset.Node) {
	it := jsoniter.ParseBytes(jsoniter.ConfigDefault, entry)
	it.ReadObjectCB(func(it *jsoniter.Iterator, name string) bool {
		if i := strings.IndexByte(name, ':'); i >= 0 {
			name = name[i+1:]
		}
		for _, k := range n.Keys {
			if k.Name != name {
				continue
			}
			switch it.WhatIsNext() {
			case jsoniter.StringValue:
				s := it.ReadString()
				for _, k := range n.Keys {
					if k.Name == name {
						d.captures[k.Capture] = s
					}
				}
			case jsoniter.NumberValue:
				s := string(it.ReadNumber())
				for _, k := range n.Keys {
					if k.Name == name {
						d.captures[k.Capture] = s
					}
				}
			default:
				it.Skip()
			}
			return it.Error == nil
		}
		it.Skip()
		return it.Error == nil
	})
}
