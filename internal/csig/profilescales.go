package csig

import (
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// signalKeys are the keys of scales: the signals' numbers.
var signalKeys = []string{"0", "1", "2", "3"}

// readScales calls read for each signal of a format's scales. It fails for a format without EtherType.
func (r *profileReader) readScales(e entry, read func(Signal, entry) error) error {
	if f := formatNamed(e.name); r.profile.EtherTypes.Of(f) == 0 {
		return r.wrong(e.key, e.field, "%v tags have no EtherType: ethertypes.%v is expected", f, f)
	}
	entries, err := r.readMapping(e.value, e.field, signalKeys)
	if err != nil {
		return err
	}
	for _, i := range entries {
		if err := read(Signal(i.name[0]-'0'), i); err != nil {
			return err
		}
	}
	return nil
}

// readTables reads the scales of compact tags.
func (r *profileReader) readTables(e entry) error {
	return r.readScales(e, func(s Signal, i entry) (err error) {
		entries, err := r.readMapping(i.value, i.field, []string{"edges", "codes"})
		if err != nil {
			return err
		}
		if len(entries) != 1 {
			return r.wrong(i.key, i.field, "either edges or codes is expected")
		}
		if entries[0].name == "edges" {
			r.profile.Tables[s], err = r.readEdges(entries[0], s)
		} else {
			r.profile.Tables[s], err = r.readCodes(entries[0], s)
		}
		return err
	})
}

// readList returns the items of a list, of which there are 1 to 32.
func (r *profileReader) readList(e entry) ([]*yaml.Node, error) {
	if e.value.Kind != yaml.SequenceNode || len(e.value.Content) == 0 || len(e.value.Content) > maxEdges {
		return nil, r.wrong(e.value, e.field, "a list of 1 to %d is expected", maxEdges)
	}
	return e.value.Content, nil
}

// checkEdge returns an error for a first edge that is not 0, and for one that is not above the last one.
func (r *profileReader) checkEdge(n *yaml.Node, field string, edges []uint64, v uint64) error {
	if len(edges) == 0 && v != 0 {
		return r.wrong(n, field, "%s: 0 is expected as the first edge, so that every value has a code", quote(n.Value))
	}
	if len(edges) > 0 && v <= edges[len(edges)-1] {
		return r.wrong(n, field, "%s: more than the edge before it is expected", quote(n.Value))
	}
	return nil
}

// readEdges reads a table whose codes are 0, 1, 2 and so on.
func (r *profileReader) readEdges(e entry, s Signal) (*Table, error) {
	items, err := r.readList(e)
	if err != nil {
		return nil, err
	}
	var edges []uint64
	for i, n := range items {
		n, field := resolveAlias(n), fmt.Sprintf("%s[%d]", e.field, i)
		v, err := r.readValue(n, field, s)
		if err == nil {
			err = r.checkEdge(n, field, edges, v)
		}
		if err != nil {
			return nil, err
		}
		edges = append(edges, v)
	}
	return NewTable(edges...), nil
}

// readCodes reads a table with the values of each code: from min on, and below max. The last one has no max.
func (r *profileReader) readCodes(e entry, s Signal) (*Table, error) {
	items, err := r.readList(e)
	if err != nil {
		return nil, err
	}
	t := &Table{}
	var last *uint64 // max of the code before
	for i, n := range items {
		field := fmt.Sprintf("%s[%d]", e.field, i)
		entries, err := r.readMapping(n, field, []string{"code", "min", "max"})
		if err != nil {
			return nil, err
		}
		given := map[string]entry{}
		for _, k := range entries {
			given[k.name] = k
		}
		for _, key := range []string{"code", "min"} {
			if given[key].value == nil {
				return nil, r.wrong(n, joinField(field, key), "is missing")
			}
		}
		code, err := r.readNumber(given["code"].value, given["code"].field, 0, maxEdges-1)
		if err != nil {
			return nil, err
		}
		if i > 0 && uint8(code) <= t.Codes[i-1] {
			return nil, r.wrong(given["code"].value, given["code"].field, "%d: more than the code before it is expected, since devices compare codes", code)
		}
		least, err := r.readValue(given["min"].value, given["min"].field, s)
		if err == nil {
			err = r.checkEdge(given["min"].value, given["min"].field, t.Edges, least)
		}
		if err != nil {
			return nil, err
		}
		if last != nil && *last != least {
			return nil, r.wrong(given["min"].value, given["min"].field, "%s: the max of the code before it is expected, so that every value has one code", quote(given["min"].value.Value))
		}
		end := given["max"]
		if isLast := i == len(items)-1; isLast != (end.value == nil) {
			if isLast {
				return nil, r.wrong(end.value, end.field, "is not expected: the last code has no upper end")
			}
			return nil, r.wrong(n, joinField(field, "max"), "is missing: only the last code has no upper end")
		} else if !isLast {
			most, err := r.readValue(end.value, end.field, s)
			if err != nil {
				return nil, err
			}
			last = &most
		}
		t.Edges, t.Codes = append(t.Edges, least), append(t.Codes, uint8(code))
	}
	return t, nil
}

// readSteps reads the scales of wide tags.
func (r *profileReader) readSteps(e entry) error {
	return r.readScales(e, func(s Signal, i entry) error {
		entries, err := r.readMapping(i.value, i.field, []string{"base", "step"})
		if err != nil {
			return err
		}
		steps, step := &Steps{}, i.key
		for _, k := range entries {
			v, err := r.readValue(k.value, k.field, s)
			if err != nil {
				return err
			}
			if k.name == "base" {
				steps.Base = v
			} else {
				steps.Step, step = v, k.value
			}
		}
		if steps.Step == 0 {
			return r.wrong(step, joinField(i.field, "step"), "a positive step is expected")
		}
		if err := steps.Validate(); err != nil {
			return r.wrong(step, i.field, "%v", err)
		}
		r.profile.Steps[s] = steps
		return nil
	})
}

// checkPort returns an error for what cannot be the name of a port.
func (r *profileReader) checkPort(n *yaml.Node, field, port string) error {
	if at := strings.IndexByte(port, ':'); n.Kind != yaml.ScalarNode || at <= 0 || at == len(port)-1 || strings.ContainsAny(port[:at], "/ \t\n") {
		return r.wrong(n, field, "%s: a port is expected, such as leaf1:up1", quote(port))
	}
	return nil
}

// readLocators reads the locators of ports by format.
func (r *profileReader) readLocators(e entry) error {
	return r.readByFormat(e, func(f Format, i entry) error {
		ports, err := r.readMapping(i.value, i.field, nil)
		if err != nil {
			return err
		}
		owners := map[uint16]string{}
		for _, port := range ports {
			if err := r.checkPort(port.key, i.field, port.name); err != nil {
				return err
			}
			v, err := r.readNumber(port.value, port.field, 1, uint64(f.MaxLocator()))
			if err != nil {
				return err
			}
			if owner := owners[uint16(v)]; owner != "" && f == Wide {
				return r.wrong(port.value, port.field, "%d is that of %s as well: a number for this port alone is expected", v, owner)
			}
			owners[uint16(v)] = port.name
			r.profile.locatorsOf(f)[port.name] = uint16(v)
		}
		return nil
	})
}

// readDown reads the locators that report ports to be down, which no port may have besides.
func (r *profileReader) readDown(e entry) error {
	return r.readByFormat(e, func(f Format, i entry) error {
		entries, err := r.readMapping(i.value, i.field, nil)
		if err != nil {
			return err
		}
		owners := map[uint16]string{}
		for port, l := range r.profile.locatorsOf(f) {
			if first := owners[l]; first == "" || port < first {
				owners[l] = port
			}
		}
		for _, k := range entries {
			v, err := r.readNumber(resolveAlias(k.key), i.field, 1, uint64(f.MaxLocator()))
			if err != nil {
				return err
			}
			if owner := owners[uint16(v)]; owner != "" {
				return r.wrong(k.key, k.field, "%d is the locator of %s: another number is expected", v, owner)
			}
			if r.profile.downOf(f)[uint16(v)] != "" {
				return r.wrong(k.key, k.field, "is given twice")
			}
			if err := r.checkPort(k.value, k.field, k.value.Value); err != nil {
				return err
			}
			r.profile.downOf(f)[uint16(v)] = k.value.Value
		}
		return nil
	})
}

// readByFormat calls read for what is given for each format. It fails for a format without EtherType.
func (r *profileReader) readByFormat(e entry, read func(Format, entry) error) error {
	entries, err := r.readMapping(e.value, e.field, formatKeys)
	if err != nil {
		return err
	}
	for _, i := range entries {
		f := formatNamed(i.name)
		if r.profile.EtherTypes.Of(f) == 0 {
			return r.wrong(i.key, i.field, "%v tags have no EtherType: ethertypes.%v is expected", f, f)
		}
		if err := read(f, i); err != nil {
			return err
		}
	}
	return nil
}
