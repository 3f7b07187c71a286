package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Criteria are what a fabric must meet to be accepted: the criteria file of graylink audit.
type Criteria struct {
	// Required are the checks without which the evidence does not suffice. A check that is not required and not measured does
	// not change the result.
	Required  []string          `yaml:"required,flow" json:"required" schema:"enum=A1|A2|A3|A4|A5|A6|A7|A8|A9|A9-mtu|A10|A11|A12|A13|A14"`
	Coverage  CoverageCriteria  `yaml:"coverage" json:"coverage"`
	Wiring    WiringCriteria    `yaml:"wiring" json:"wiring"`
	Loss      LossCriteria      `yaml:"loss" json:"loss"`
	Delay     DelayCriteria     `yaml:"delay" json:"delay"`
	Asymmetry AsymmetryCriteria `yaml:"asymmetry" json:"asymmetry"`
	Idle      IdleCriteria      `yaml:"idle" json:"idle"`
	ECMP      ECMPCriteria      `yaml:"ecmp" json:"ecmp"`
	Optics    OpticsCriteria    `yaml:"optics" json:"optics"`
	Drift     DriftCriteria     `yaml:"drift" json:"drift"`
	Ports     PortCriteria      `yaml:"ports" json:"ports"`
	Clocks    ClockCriteria     `yaml:"clocks" json:"clocks"`
	Hosts     HostCriteria      `yaml:"hosts" json:"hosts"`
	Bandwidth BandwidthCriteria `yaml:"bandwidth" json:"bandwidth"`
}

// CoverageCriteria are those of check A1.
type CoverageCriteria struct {
	// MinFlows is the number of flows with a known path that a link direction needs.
	MinFlows int `yaml:"min_flows" json:"min_flows" schema:"min=1,max=1000000"`
	// MinShare is the share of the link directions that must be covered.
	MinShare float64 `yaml:"min_share" json:"min_share" schema:"above=0,max=1"`
}

// WiringCriteria are those of check A2.
type WiringCriteria struct {
	// Chance is the probability below which it is no chance that all flows avoid a cable, which is missing then.
	Chance float64 `yaml:"chance" json:"chance" schema:"above=0,max=0.01"`
}

// LossCriteria are those of check A3.
type LossCriteria struct {
	// MaxRatio is the largest accepted share of lost packets of a link direction.
	MaxRatio float64 `yaml:"max_ratio" json:"max_ratio" schema:"above=0,max=1"`
	// Confidence is that of the one-sided bounds (Clopper and Pearson).
	Confidence float64 `yaml:"confidence" json:"confidence" schema:"min=0.5,max=0.9999"`
}

// DelayCriteria are those of check A4.
type DelayCriteria struct {
	// MaxAdded is the largest accepted difference between the median delay across a link direction and that of its kind.
	MaxAdded time.Duration `yaml:"max_added" json:"max_added_ns"`
	// MaxAddedTail is the same of the 99th percentile.
	MaxAddedTail time.Duration `yaml:"max_added_p99" json:"max_added_p99_ns"`
	// OutlierMADs is the number of median absolute deviations of its kind that a flow must differ by as well.
	OutlierMADs float64 `yaml:"outlier_mads" json:"outlier_mads" schema:"min=1,max=1000"`
	// MinMembers is the number of flows that a kind of paths needs to be compared.
	MinMembers int `yaml:"min_members" json:"min_members" schema:"min=3,max=1000000"`
}

// AsymmetryCriteria are those of check A5.
type AsymmetryCriteria struct {
	// MaxDifference is the largest accepted difference of the delays of both directions, beyond the bounds of the clocks.
	MaxDifference time.Duration `yaml:"max_difference" json:"max_difference_ns"`
}

// IdleCriteria are those of check A6.
type IdleCriteria struct {
	// MaxMarked is the largest share of the probes across a link direction that may be marked congestion experienced.
	MaxMarked float64 `yaml:"max_marked" json:"max_marked" schema:"min=0,max=1"`
	// MaxPauses is the largest number of pause frames of a port per second.
	MaxPauses float64 `yaml:"max_pauses_per_second" json:"max_pauses_per_second" schema:"min=0,max=1000000000"`
	// MaxDiscards is the largest number of packets that a port may discard during the audit.
	MaxDiscards float64 `yaml:"max_discards" json:"max_discards" schema:"min=0,max=1000000000"`
}

// ECMPCriteria are those of check A7.
type ECMPCriteria struct {
	// Significance is the probability of a false finding in the whole fabric.
	Significance float64 `yaml:"significance" json:"significance" schema:"above=0,max=0.5"`
	// MinFlows is the number of flows for each of the parallel links that a switch needs to be judged.
	MinFlows float64 `yaml:"min_flows" json:"min_flows" schema:"above=0,max=1000000"`
}

// OpticsCriteria are those of check A8.
type OpticsCriteria struct {
	// DarkDBM is the optical power in dBm below which a lane is dark.
	DarkDBM float64 `yaml:"dark_dbm" json:"dark_dbm" schema:"min=-60,max=0"`
	// MaxPreFECBER is the largest accepted ratio of bit errors before error correction.
	MaxPreFECBER float64 `yaml:"max_pre_fec_ber" json:"max_pre_fec_ber" schema:"above=0,max=1"`
	// MaxPowerDifference is by how many dB a lane may differ from the median of its module, and a module from that of its kind.
	MaxPowerDifference float64 `yaml:"max_power_difference_db" json:"max_power_difference_db" schema:"above=0,max=60"`
	// MaxBiasRatio is the largest ratio of a bias current to the median of its module or kind, and of the median to it.
	MaxBiasRatio float64 `yaml:"max_bias_ratio" json:"max_bias_ratio" schema:"above=1,max=1000"`
	// MaxTemperatureDifference is by how many degrees Celsius a module may be warmer than the median of its kind.
	MaxTemperatureDifference float64 `yaml:"max_temperature_difference_celsius" json:"max_temperature_difference_celsius" schema:"above=0,max=1000"`
	// OutlierMADs is the number of median absolute deviations of its kind that an outlier differs by as well.
	OutlierMADs float64 `yaml:"outlier_mads" json:"outlier_mads" schema:"min=1,max=1000"`
	// MinMembers is the number of modules that a kind needs to be compared.
	MinMembers int `yaml:"min_members" json:"min_members" schema:"min=3,max=1000000"`
}

// DriftCriteria are those of check A10.
type DriftCriteria struct {
	// MinMembers is the number of elements with a setting that a role needs to have a majority.
	MinMembers int `yaml:"min_members" json:"min_members" schema:"min=3,max=1000000"`
	// MinMajority is the share of them that have to have the same value.
	MinMajority float64 `yaml:"min_majority" json:"min_majority" schema:"above=0.5,max=1"`
}

// BandwidthCriteria are those of check A14.
type BandwidthCriteria struct {
	// MaxBelow is the largest share by which a run may be slower than the median of runs that are like it.
	MaxBelow float64 `yaml:"max_below" json:"max_below" schema:"above=0,max=1"`
	// OutlierMADs is the number of median absolute deviations that it has to be slower by as well.
	OutlierMADs float64 `yaml:"outlier_mads" json:"outlier_mads" schema:"min=1,max=1000"`
	// MinSizeBytes is the least size of messages that is judged. Smaller ones measure the latency.
	MinSizeBytes float64 `yaml:"min_size_bytes" json:"min_size_bytes" schema:"min=1,max=1000000000000"`
	// MinRuns is the number of runs that are compared with each other.
	MinRuns int `yaml:"min_runs" json:"min_runs" schema:"min=3,max=1000000"`
}

// PortCriteria are those of check A9-mtu.
type PortCriteria struct {
	// RoCEMTU is the active MTU of RoCE that is planned, in octets of payload: 256, 512, 1024, 2048 or 4096. If it is 0, the one that most NICs have.
	RoCEMTU int `yaml:"roce_mtu" json:"roce_mtu" schema:"min=0,max=4096"`
}

// ClockCriteria are those of check A11.
type ClockCriteria struct {
	// MaxBound is the largest accepted bound of the error of a clock.
	MaxBound time.Duration `yaml:"max_bound" json:"max_bound_ns"`
}

// HostCriteria are those of check A13.
type HostCriteria struct {
	// MaxExcluded is the largest share of the windows of a host that may be excluded because it was starved or silent.
	MaxExcluded float64 `yaml:"max_excluded" json:"max_excluded" schema:"min=0,max=1"`
}

// DefaultCriteria returns the criteria that hold without a file.
func DefaultCriteria() Criteria {
	return Criteria{
		Required:  []string{"A1", "A2", "A3", "A4", "A5", "A7", "A11", "A13"},
		Coverage:  CoverageCriteria{MinFlows: 1, MinShare: 1},
		Wiring:    WiringCriteria{Chance: 1e-6},
		Loss:      LossCriteria{MaxRatio: 1e-4, Confidence: 0.95},
		Delay:     DelayCriteria{MaxAdded: 5 * time.Microsecond, MaxAddedTail: 100 * time.Microsecond, OutlierMADs: 6, MinMembers: 6},
		Asymmetry: AsymmetryCriteria{MaxDifference: 10 * time.Microsecond},
		Idle:      IdleCriteria{MaxMarked: 0.001, MaxPauses: 1},
		ECMP:      ECMPCriteria{Significance: 0.001, MinFlows: 4},
		Clocks:    ClockCriteria{MaxBound: 20 * time.Microsecond},
		Optics: OpticsCriteria{DarkDBM: -25, MaxPreFECBER: 1e-4, MaxPowerDifference: 4, MaxBiasRatio: 2, MaxTemperatureDifference: 15,
			OutlierMADs: 6, MinMembers: 6},
		Drift:     DriftCriteria{MinMembers: 4, MinMajority: 0.7},
		Hosts:     HostCriteria{MaxExcluded: 0.1},
		Bandwidth: BandwidthCriteria{MaxBelow: 0.1, OutlierMADs: 6, MinSizeBytes: 65536, MinRuns: 4},
	}
}

// LoadCriteria reads a criteria file on top of the defaults. It fails if the file has unknown keys or wrong values.
func LoadCriteria(file string) (Criteria, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Criteria{}, err
	}
	return ParseCriteria(file, text)
}

// ParseCriteria reads the text of a criteria file on top of the defaults. The name stands in errors.
func ParseCriteria(name string, text []byte) (Criteria, error) {
	c := DefaultCriteria()
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// Validate returns an error that names the first key with a wrong value.
func (c *Criteria) Validate() error {
	for i, id := range c.Required {
		if !slices.Contains(ListChecks(), id) {
			return fmt.Errorf("required[%d]: %q: one of %s is expected", i, id, strings.Join(ListChecks(), ", "))
		}
	}
	if m := c.Ports.RoCEMTU; m != 0 && !slices.Contains(roceMTUs, m) {
		return fmt.Errorf("ports.roce_mtu: %d: one of 0, 256, 512, 1024, 2048 and 4096 is expected", m)
	}
	for _, x := range []struct {
		key       string
		value     float64
		above, to float64
		least     bool // whether the lower limit is a value that is accepted
	}{
		{"coverage.min_flows", float64(c.Coverage.MinFlows), 1, 1e6, true},
		{"coverage.min_share", c.Coverage.MinShare, 0, 1, false},
		{"wiring.chance", c.Wiring.Chance, 0, 0.01, false},
		{"loss.max_ratio", c.Loss.MaxRatio, 0, 1, false},
		{"loss.confidence", c.Loss.Confidence, 0.5, 0.9999, true},
		{"delay.max_added", c.Delay.MaxAdded.Seconds(), 0, 3600, false},
		{"delay.max_added_p99", c.Delay.MaxAddedTail.Seconds(), 0, 3600, false},
		{"delay.outlier_mads", c.Delay.OutlierMADs, 1, 1000, true},
		{"delay.min_members", float64(c.Delay.MinMembers), 3, 1e6, true},
		{"asymmetry.max_difference", c.Asymmetry.MaxDifference.Seconds(), 0, 3600, false},
		{"idle.max_marked", c.Idle.MaxMarked, 0, 1, true},
		{"idle.max_pauses_per_second", c.Idle.MaxPauses, 0, 1e9, true},
		{"idle.max_discards", c.Idle.MaxDiscards, 0, 1e9, true},
		{"ecmp.significance", c.ECMP.Significance, 0, 0.5, false},
		{"ecmp.min_flows", c.ECMP.MinFlows, 0, 1e6, false},
		{"clocks.max_bound", c.Clocks.MaxBound.Seconds(), 0, 3600, false},
		{"optics.dark_dbm", c.Optics.DarkDBM, -60, 0, true},
		{"optics.max_pre_fec_ber", c.Optics.MaxPreFECBER, 0, 1, false},
		{"optics.max_power_difference_db", c.Optics.MaxPowerDifference, 0, 60, false},
		{"optics.max_bias_ratio", c.Optics.MaxBiasRatio, 1, 1000, false},
		{"optics.max_temperature_difference_celsius", c.Optics.MaxTemperatureDifference, 0, 1000, false},
		{"optics.outlier_mads", c.Optics.OutlierMADs, 1, 1000, true},
		{"optics.min_members", float64(c.Optics.MinMembers), 3, 1e6, true},
		{"drift.min_members", float64(c.Drift.MinMembers), 3, 1e6, true},
		{"drift.min_majority", c.Drift.MinMajority, 0.5, 1, false},
		{"bandwidth.max_below", c.Bandwidth.MaxBelow, 0, 1, false},
		{"bandwidth.outlier_mads", c.Bandwidth.OutlierMADs, 1, 1000, true},
		{"bandwidth.min_size_bytes", c.Bandwidth.MinSizeBytes, 1, 1e12, true},
		{"bandwidth.min_runs", float64(c.Bandwidth.MinRuns), 3, 1e6, true},
		{"hosts.max_excluded", c.Hosts.MaxExcluded, 0, 1, true},
	} {
		if !(x.value > x.above || x.least && x.value == x.above) || x.value > x.to {
			least := "above"
			if x.least {
				least = "at least"
			}
			return fmt.Errorf("%s: %g: a value %s %g and at most %g is expected", x.key, x.value, least, x.above, x.to)
		}
	}
	return nil
}
