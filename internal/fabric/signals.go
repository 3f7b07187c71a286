package fabric

import (
	"fmt"
	"math"
	"strconv"
)

// SignalReading holds what the in-band signals of the flows that cross an element say of it.
type SignalReading struct {
	Says SignalOpinion `json:"says"`
	// Port is the egress port that most tags name with a value of congestion. It is "" if there is none.
	Port string `json:"port,omitempty"`
	// NamedRatio is the share of the tags of one signal that name the port.
	NamedRatio float64 `json:"named_ratio,omitempty"`
	// AvailableRatio and HopDelay are the values that came with these tags. Nil means that they are unknown.
	AvailableRatio *Bounds `json:"available_ratio,omitempty"`
	HopDelay       *Bounds `json:"hop_delay_seconds,omitempty"`
	// Flows and Packets are the numbers of flows and of packets whose tags count.
	Flows   int   `json:"flows"`
	Packets int64 `json:"packets"`
	// Text is all of it in plain words.
	Text string `json:"text"`
}

// Bounds are the bounds of a value. Nil means that there is none.
type Bounds struct {
	Lower *float64 `json:"lower,omitempty"`
	Upper *float64 `json:"upper,omitempty"`
}

// SignalOpinion states whether in-band signals agree with a verdict.
type SignalOpinion string

// What in-band signals say about a verdict. SignalsSilent never means that there is no congestion.
const (
	SignalsAgree    SignalOpinion = "agrees"
	SignalsDisagree SignalOpinion = "disagrees"
	SignalsSilent   SignalOpinion = "silent"
)

// FormatShare writes the bounds of a share in percent.
func (b Bounds) FormatShare() string {
	return b.format(func(v float64) string { return strconv.FormatFloat(math.Round(v*1e6)/1e4, 'f', -1, 64) + " %" })
}

// FormatDelay writes the bounds of a delay in seconds with a unit.
func (b Bounds) FormatDelay() string {
	return b.format(formatSeconds)
}

// formatSeconds writes a time with three digits and the unit that suits it.
func formatSeconds(v float64) string {
	switch {
	case v < 1e-6:
		return fmt.Sprintf("%.3g ns", v*1e9)
	case v < 1e-3:
		return fmt.Sprintf("%.3g µs", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.3g ms", v*1e3)
	}
	return fmt.Sprintf("%.3g s", v)
}

// format writes bounds by a function that writes one value.
func (b Bounds) format(one func(float64) string) string {
	switch {
	case b.Lower == nil && b.Upper == nil:
		return "an unknown amount"
	case b.Lower == nil:
		return "less than " + one(*b.Upper)
	case b.Upper == nil:
		return one(*b.Lower) + " or more"
	}
	return one(*b.Lower) + " to " + one(*b.Upper)
}
