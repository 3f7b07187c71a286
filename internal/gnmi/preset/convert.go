package preset

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Conversion converts a leaf's value to its family's. Number takes numbers, and texts that are numbers; Text,
// if there is one, takes texts first. Both return false for a value that is not a valid sample.
type Conversion struct {
	Help   string
	Number func(float64) (float64, bool)
	Text   func(string) (float64, bool)
}

func scaleBy(factor float64) func(float64) (float64, bool) {
	return func(v float64) (float64, bool) { return v * factor, true }
}

// dbmToWatts converts a power in dBm; minus infinity means no light, 0 W. More than 100 dBm, which is 10 MW, is
// refused.
func dbmToWatts(dbm float64) (float64, bool) { return math.Pow(10, dbm/10) / 1000, dbm < 100 }

// Conversions lists the conversions by name. The one without a name leaves a number unchanged.
var Conversions = map[string]Conversion{
	"":             {Help: "Unchanged.", Number: scaleBy(1)},
	"dbm":          {Help: "From dBm to watts.", Number: dbmToWatts, Text: parseDarkness},
	"centidbm":     {Help: "From 0.01 dBm to watts.", Number: func(v float64) (float64, bool) { return dbmToWatts(v / 100) }, Text: parseDarkness},
	"microseconds": {Help: "From us to seconds.", Number: scaleBy(1e-6)},
	"milliamperes": {Help: "From mA to amperes.", Number: scaleBy(1e-3)},
	"percent":      {Help: "From percent to a ratio.", Number: scaleBy(1e-2)},
	"megabits":     {Help: "From Mbit/s to octets per second.", Number: scaleBy(1e6 / 8)},
	"speed":        {Help: "From the name of a rate, SPEED_400GB or 400G, to octets per second.", Text: parseSpeed},
	"up":           {Help: "From the name of a state to 1 (up) or 0.", Text: parseUpState},
	"established":  {Help: "From the name of a state of BGP to 1 (established) or 0.", Text: parseBGPState},
	"bfd":          {Help: "From the name of a state of BFD to 1 (up) or 0.", Text: parseBFDState},
	"ber":          {Help: "Unchanged; a ratio from 0 to 1.", Number: func(v float64) (float64, bool) { return v, v >= 0 && v <= 1 }},
}

func conversionNames() string {
	return strings.Join(slices.DeleteFunc(slices.Sorted(maps.Keys(Conversions)), func(s string) bool { return s == "" }), ", ")
}

// parseDarkness parses the texts for no light: every monitor has its own floor, below which it reports minus
// infinity. Other texts are numbers or invalid.
func parseDarkness(s string) (float64, bool) {
	switch strings.ToLower(s) {
	case "-inf", "-infinity":
		return 0, true
	}
	return 0, false
}

// parseUpState parses the states of openconfig-interfaces, SONiC and SR Linux. UNKNOWN and other texts are not
// samples, because absent is not down.
func parseUpState(s string) (float64, bool) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		s = s[i+1:]
	}
	switch strings.ToUpper(s) {
	case "UP", "ENABLE", "ENABLED", "TRUE":
		return 1, true
	case "DOWN", "TESTING", "DORMANT", "NOT_PRESENT", "LOWER_LAYER_DOWN", "DISABLE", "DISABLED", "FALSE", "EMPTY":
		return 0, true
	}
	return 0, false
}

// parseBGPState parses the states of openconfig-bgp and FRR. Other texts are not samples.
func parseBGPState(s string) (float64, bool) {
	switch strings.ToUpper(s) {
	case "ESTABLISHED":
		return 1, true
	case "IDLE", "CONNECT", "ACTIVE", "OPENSENT", "OPENCONFIRM":
		return 0, true
	}
	return 0, false
}

// parseBFDState parses the states of openconfig-bfd and SONiC, which are those of RFC 5880. Other texts are not samples.
func parseBFDState(s string) (float64, bool) {
	switch strings.ToUpper(s) {
	case "UP":
		return 1, true
	case "DOWN", "INIT", "ADMIN_DOWN":
		return 0, true
	}
	return 0, false
}

// parseSpeed parses ETHERNET_SPEED of openconfig-if-ethernet, with or without its module, and the short form of
// SR Linux.
func parseSpeed(s string) (float64, bool) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		s = s[i+1:]
	}
	s = strings.TrimSuffix(strings.TrimPrefix(strings.ToUpper(s), "SPEED_"), "B")
	factor := 0.0
	switch {
	case strings.HasSuffix(s, "G"):
		factor = 1e9 / 8
	case strings.HasSuffix(s, "M"):
		factor = 1e6 / 8
	case strings.HasSuffix(s, "T"):
		factor = 1e12 / 8
	default:
		return 0, false
	}
	v, err := strconv.ParseFloat(s[:len(s)-1], 64)
	if err != nil || !(v > 0 && v < 1e6) {
		return 0, false
	}
	return v * factor, true
}

// ConvertValue converts a number or, if isText, a text. It returns false if the value is not a sample.
func (c Conversion) ConvertValue(number float64, text string, isText bool) (float64, bool) {
	if isText {
		if c.Text != nil {
			if v, ok := c.Text(text); ok {
				return v, true
			}
		}
		if c.Number == nil {
			return 0, false
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return 0, false
		}
		number = v
	}
	if c.Number == nil || math.IsNaN(number) || math.IsInf(number, 0) {
		return 0, false
	}
	v, ok := c.Number(number)
	return v, ok && !math.IsNaN(v) && !math.IsInf(v, 0)
}
