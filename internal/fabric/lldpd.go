package fabric

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// lldpNeighbour is the far end of an interface, as `lldpcli -f json show neighbors` of lldpd prints it (lldpcli(8)).
type lldpNeighbour struct {
	Chassis map[string]json.RawMessage // one, by the system's name
	Port    struct {
		ID struct {
			Type, Value string
		}
		Descr string
	}
}

// oneOrMore is a list of objects with one key each, which lldpcli prints as an object where the list has one element.
type oneOrMore []map[string]lldpNeighbour

// UnmarshalJSON implements json.Unmarshaler.
func (l *oneOrMore) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		return json.Unmarshal(text, (*[]map[string]lldpNeighbour)(l))
	}
	one := map[string]lldpNeighbour{}
	*l = oneOrMore{one}
	return json.Unmarshal(text, &one)
}

// portName returns the name of the neighbour's port: its identifier if that is a name, else its description, which is the
// name of the interface where lldpd runs.
func (n *lldpNeighbour) portName() string {
	if n.Port.ID.Type == "ifname" || n.Port.ID.Type == "local" && n.Port.Descr == "" {
		return n.Port.ID.Value
	}
	return n.Port.Descr
}

// ReadLLDPNeighbours makes a topology from the neighbours that the lldpd of each device has heard, by the name of the file
// with the output of `lldpcli -f json show neighbors`, which is the device's name and an extension. Devices whose name
// matches a shell pattern are switches. What cannot be used is a problem, and the rest is used.
func ReadLLDPNeighbours(files map[string][]byte, patterns []string) (*Topology, Problems, error) {
	var table bytes.Buffer
	rows := csv.NewWriter(&table)
	_ = rows.Write([]string{"a_device", "a_port", "b_device", "b_port"}) // a buffer takes everything
	origins := []Problem{{}, {}}                                         // file and interface of each line
	var problems Problems
	for _, file := range slices.Sorted(maps.Keys(files)) {
		device := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		var out struct {
			LLDP *struct{ Interface oneOrMore }
		}
		err := json.Unmarshal(files[file], &out)
		if err == nil && out.LLDP == nil {
			err = errors.New(`there is no "lldp"`)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: the output of lldpcli -f json show neighbors is expected: %w", file, err)
		}
		for _, found := range out.LLDP.Interface {
			for _, port := range slices.Sorted(maps.Keys(found)) {
				n := found[port]
				at := Problem{File: file, Field: port}
				switch names := slices.Collect(maps.Keys(n.Chassis)); {
				case len(names) != 1 || names[0] == "id":
					at.Message, at.Warning = "the neighbour has no name: it is left out", true
					problems = append(problems, at)
				case n.portName() == "":
					at.Message, at.Warning = fmt.Sprintf("%s does not name its port: it is left out", names[0]), true
					problems = append(problems, at)
				default:
					_ = rows.Write([]string{device, port, names[0], n.portName()})
					origins = append(origins, at)
				}
			}
		}
	}
	rows.Flush()
	t, more, err := ReadCableList("lldpd", &table, patterns)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range more {
		if p.Line > 1 && p.Line < len(origins) {
			p.File, p.Field = origins[p.Line].File, origins[p.Line].Field
		}
		// Both ends of a cable hear each other.
		if p.Line = 0; !p.Warning {
			problems = append(problems, p)
		}
	}
	return t, problems, nil
}
