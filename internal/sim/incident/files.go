package incident

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/plainjson"
)

// The files of a case in its directory: a topology file, an observation file and
// what was wrong.
const (
	TopologyFile     = "topology.yaml"
	ObservationsFile = "observations.jsonl"
	TruthFile        = "truth.json"
)

// Write puts a case's three files into a directory, which it makes.
func (c *Case) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	topo, err := yaml.Marshal(c.Topology)
	if err != nil {
		return err
	}
	truth, err := json.MarshalIndent(c.Truth, "", "  ")
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	enc := plainjson.NewEncoder(&lines)
	for _, o := range c.Observations {
		if err := enc.Encode(o); err != nil {
			return err
		}
	}
	for name, text := range map[string][]byte{TopologyFile: topo, ObservationsFile: lines.Bytes(), TruthFile: append(truth, '\n')} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ReadCase reads a case that Write or a person wrote. Any line that cannot be used is an error: a case with gaps
// measures nothing.
func ReadCase(dir string) (*Case, error) {
	topo, found := fabric.LoadTopology(filepath.Join(dir, TopologyFile))
	if err := found.Err(); err != nil {
		return nil, err
	}
	c := &Case{Topology: topo}
	name := filepath.Join(dir, ObservationsFile)
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var bad []error
	err = fabric.ReadObservations(bufio.NewReader(f), func(_ int, o *fabric.Observation) error {
		c.Observations = append(c.Observations, o)
		return nil
	}, func(e fabric.LineError) {
		if len(bad) < 10 {
			bad = append(bad, fmt.Errorf("%s: %w", name, e))
		}
	})
	if err := errors.Join(append(bad, err)...); err != nil {
		return nil, err
	}
	name = filepath.Join(dir, TruthFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if c.Truth, err = ParseTruth(text); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// ParseTruth reads the text of a truth file.
func ParseTruth(text []byte) (Truth, error) {
	var t Truth
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		at := dec.InputOffset()
		var wrongType *json.UnmarshalTypeError
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &wrongType):
			at = wrongType.Offset
		case errors.As(err, &syntax):
			at = syntax.Offset
		}
		line := 1 + bytes.Count(text[:max(0, min(int(at), len(text)))], []byte("\n"))
		return Truth{}, fmt.Errorf("line %d: a JSON object of a truth file is expected: %w", line, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Truth{}, errors.New("one JSON object is expected, more follows")
	}
	if t.Windows < 1 {
		return Truth{}, fmt.Errorf("field \"windows\": %d, at least 1 is expected", t.Windows)
	}
	for i, f := range t.Faults {
		field := func(name string) string { return fmt.Sprintf("field \"faults[%d].%s\"", i, name) }
		if f.ID == "" || f.Kind == "" {
			return Truth{}, fmt.Errorf("%s: an element and its kind are expected", field("element"))
		}
		if f.Direction != "" {
			if _, err := fabric.ParseDirection(f.Direction); err != nil {
				return Truth{}, fmt.Errorf("%s: %w", field("direction"), err)
			}
		}
		if !slices.Contains(AllScenarios(), f.Scenario) {
			return Truth{}, fmt.Errorf("%s: %q is no scenario", field("scenario"), f.Scenario)
		}
		if f.First < 0 || f.Last < f.First || f.Last >= t.Windows {
			return Truth{}, fmt.Errorf("%s: windows %d to %d of %d", field("first_window"), f.First, f.Last, t.Windows)
		}
		for name, share := range map[string]float64{"loss_ratio": f.Loss, "ecn_ratio": f.ECN} {
			if !(share >= 0 && share <= 1) {
				return Truth{}, fmt.Errorf("%s: %v, 0 to 1 is expected", field(name), share)
			}
		}
	}
	return t, nil
}
