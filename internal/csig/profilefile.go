package csig

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// FieldError is what is wrong with a field of a profile.
type FieldError struct {
	File  string
	Line  int    // 0 if it is not known
	Field string // "" for the whole file
	Want  string // what is wrong, and what is expected
}

func (e *FieldError) Error() string {
	s := e.File + ":"
	if e.Line > 0 {
		s += strconv.Itoa(e.Line) + ":"
	}
	if e.Field != "" {
		s += " " + e.Field + ":"
	}
	return s + " " + e.Want
}

// LoadProfile reads the file of a profile. The error names the file, the line and the field.
func LoadProfile(file string) (*Profile, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the profile: %w", err)
	}
	return ParseProfile(file, data)
}

// ParseProfile reads the text of a profile (YAML). The name stands in errors, which are of type FieldError.
func ParseProfile(name string, data []byte) (*Profile, error) {
	r := &profileReader{file: name, profile: &Profile{
		CompactLocators: map[string]uint16{}, WideLocators: map[string]uint16{}, CompactDown: map[uint16]string{}, WideDown: map[uint16]string{},
	}}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, r.syntaxError(err)
	}
	if len(doc.Content) == 0 {
		return nil, &FieldError{File: name, Line: 1, Want: "the file is empty: a mapping with " + strings.Join(profileKeys, ", ") + " is expected"}
	}
	if err := r.readProfile(resolveAlias(doc.Content[0])); err != nil {
		return nil, err
	}
	return r.profile, nil
}

// profileReader reads a profile from its YAML nodes.
type profileReader struct {
	file    string
	profile *Profile
}

// wrong returns the error of a field.
func (r *profileReader) wrong(n *yaml.Node, field, format string, args ...any) error {
	return &FieldError{File: r.file, Line: n.Line, Field: field, Want: fmt.Sprintf(format, args...)}
}

// syntaxError returns the error of a text that is not YAML.
func (r *profileReader) syntaxError(err error) error {
	text := strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ")
	e := &FieldError{File: r.file, Want: "not YAML: " + text}
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if number, what, ok := strings.Cut(rest, ": "); ok {
			if line, err := strconv.Atoi(number); err == nil {
				e.Line, e.Want = line, "not YAML: "+what
			}
		}
	}
	return e
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// quote returns the beginning of a text from a file, in quotes.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return strconv.Quote(s)
}

// joinField returns the path of a key within a field.
func joinField(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// entry is a key of a mapping with its value.
type entry struct {
	field      string // path
	name       string
	key, value *yaml.Node
}

// readMapping returns the entries of a mapping, in the order of the file. It fails for what is no mapping, a key that is
// given twice, and with known keys for any other.
func (r *profileReader) readMapping(n *yaml.Node, field string, known []string) ([]entry, error) {
	if n = resolveAlias(n); n.Kind != yaml.MappingNode {
		want := "a mapping"
		if len(known) > 0 {
			want += " with " + strings.Join(known, ", ")
		}
		return nil, r.wrong(n, field, "%s is expected", want)
	}
	var out []entry
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := resolveAlias(n.Content[i])
		at := joinField(field, k.Value)
		switch {
		case k.Kind != yaml.ScalarNode:
			return nil, r.wrong(n.Content[i], field, "a text is expected as the key")
		case len(known) > 0 && !slices.Contains(known, k.Value):
			return nil, r.wrong(n.Content[i], field, "unknown field %s: one of %s is expected", quote(k.Value), strings.Join(known, ", "))
		case seen[k.Value]:
			return nil, r.wrong(n.Content[i], at, "is given twice")
		}
		seen[k.Value] = true
		out = append(out, entry{at, k.Value, n.Content[i], resolveAlias(n.Content[i+1])})
	}
	return out, nil
}

// profileKeys are the keys of a profile.
var profileKeys = []string{"ethertypes", "interval", "fastest_gbps", "compact", "wide", "dnu", "locators", "down"}

// formatKeys are the keys of what is given for each format.
var formatKeys = []string{"compact", "wide"}

// formatNamed returns the format of one of formatKeys.
func formatNamed(name string) Format {
	if name == "compact" {
		return Compact
	}
	return Wide
}

// readProfile reads the whole file.
func (r *profileReader) readProfile(root *yaml.Node) error {
	entries, err := r.readMapping(root, "", profileKeys)
	if err != nil {
		return err
	}
	given := map[string]entry{}
	for _, e := range entries {
		given[e.name] = e
	}
	for _, key := range []string{"ethertypes", "interval"} {
		if _, ok := given[key]; !ok {
			return r.wrong(root, key, "is missing")
		}
	}
	p := r.profile
	readers := []struct {
		key  string
		read func(entry) error
	}{{"ethertypes", r.readTypes}, {"interval", r.readIntervals}, {"fastest_gbps", r.readFastest}, {"compact", r.readTables}, {"wide", r.readSteps},
		{"dnu", r.readBit}, {"locators", r.readLocators}, {"down", r.readDown}}
	for _, next := range readers {
		if e, ok := given[next.key]; ok {
			if err := next.read(e); err != nil {
				return err
			}
		}
	}
	for s := range Signal(Signals) {
		if p.EtherTypes.Compact != 0 && p.Tables[s] == nil {
			if s == Bandwidth && p.Fastest == 0 {
				return r.wrong(root, "fastest_gbps", "is missing: the speed of the fastest port is expected, or edges of compact.0")
			}
			p.Tables[s] = defaultTable(s, p.Fastest)
		}
		if p.EtherTypes.Wide != 0 && p.Steps[s] == nil {
			p.Steps[s] = defaultSteps(s)
		}
	}
	return nil
}

// readNumber reads a whole number within bounds, decimal or with 0x.
func (r *profileReader) readNumber(n *yaml.Node, field string, least, most uint64) (uint64, error) {
	v, err := strconv.ParseUint(n.Value, 0, 64)
	if n.Kind != yaml.ScalarNode || err != nil || v < least || v > most {
		return 0, r.wrong(n, field, "%s: a whole number from %d to %d is expected", quote(n.Value), least, most)
	}
	return v, nil
}

func (r *profileReader) readTypes(e entry) error {
	formats, err := r.readMapping(e.value, e.field, formatKeys)
	if err != nil {
		return err
	}
	for _, f := range formats {
		v, err := strconv.ParseUint(f.value.Value, 0, 16)
		if f.value.Kind != yaml.ScalarNode || err != nil {
			return r.wrong(f.value, f.field, "%s: an EtherType is expected, such as 0x88b5", quote(f.value.Value))
		}
		if err := checkType(uint16(v)); err != nil {
			return r.wrong(f.value, f.field, "%v", err)
		}
		if formatNamed(f.name) == Compact {
			r.profile.EtherTypes.Compact = uint16(v)
		} else {
			r.profile.EtherTypes.Wide = uint16(v)
		}
	}
	if err := r.profile.EtherTypes.Validate(); err != nil {
		return r.wrong(e.key, e.field, "%v", err)
	}
	return nil
}

// checkInterval returns an error for a window that neither the draft's slides ("Timers") nor SAI 1.18 have.
func checkInterval(d time.Duration) error {
	for _, unit := range []time.Duration{time.Nanosecond, time.Microsecond, time.Millisecond} {
		if n := d / unit; d%unit == 0 && n%128 == 0 && n >= 128 && n <= 1024 {
			return nil
		}
	}
	for t := 100 * time.Nanosecond; t <= 100*time.Millisecond; t *= 10 {
		if d == t {
			return nil
		}
	}
	return errors.New("one of 100ns, 1us, 10us, 100us, 1ms, 10ms, 100ms, or 128 to 1024 in steps of 128 with ns, us or ms is expected")
}

func (r *profileReader) readInterval(n *yaml.Node, field string) (time.Duration, error) {
	d, err := time.ParseDuration(n.Value)
	if n.Kind == yaml.ScalarNode && err == nil {
		err = checkInterval(d)
	} else {
		err = errors.New("a duration such as 100us is expected")
	}
	if err != nil {
		return 0, r.wrong(n, field, "%s: %v", quote(n.Value), err)
	}
	return d, nil
}

// readIntervals reads one duration, or one within a site and one between sites.
func (r *profileReader) readIntervals(e entry) (err error) {
	p := r.profile
	if e.value.Kind == yaml.ScalarNode {
		p.DC, err = r.readInterval(e.value, e.field)
		p.WAN = p.DC
		return err
	}
	entries, err := r.readMapping(e.value, e.field, []string{"dc", "wan"})
	if err != nil {
		return err
	}
	for _, i := range entries {
		d, err := r.readInterval(i.value, i.field)
		if err != nil {
			return err
		}
		if i.name == "dc" {
			p.DC = d
		} else {
			p.WAN = d
		}
	}
	if p.DC == 0 {
		return r.wrong(e.key, e.field+".dc", "is missing")
	}
	if p.WAN == 0 {
		p.WAN = p.DC
	}
	return nil
}

// maxRate bounds the speeds and rates of a profile in bit/s.
const maxRate = 1_000_000_000_000_000

func (r *profileReader) readFastest(e entry) error {
	v, err := parseDecimal(e.value.Value, 9)
	if e.value.Kind != yaml.ScalarNode || err != nil || v == 0 || v > maxRate {
		return r.wrong(e.value, e.field, "%s: a positive number of gigabits per second is expected", quote(e.value.Value))
	}
	// The default edges are whole percents of it.
	if v < 100 {
		return r.wrong(e.value, e.field, "%s: at least 100 bit/s are expected", quote(e.value.Value))
	}
	r.profile.Fastest = v
	return nil
}

func (r *profileReader) readBit(e entry) error {
	b, ok := parseBit(e.value.Value)
	if e.value.Kind != yaml.ScalarNode || !ok {
		return r.wrong(e.value, e.field, "%s: none, r or res0 to res7 is expected", quote(e.value.Value))
	}
	if b != (Bit{}) && r.profile.EtherTypes.Of(b.Format) == 0 {
		return r.wrong(e.value, e.field, "%s is a bit of %v tags, which have no EtherType: ethertypes.%v is expected", b, b.Format, b.Format)
	}
	r.profile.DoNotUpdate = b
	return nil
}

// parseDecimal reads a number without a sign and an exponent, and returns it times ten to a power. It fails if the result is
// not a whole number.
func parseDecimal(s string, power int) (uint64, error) {
	whole, fraction, dot := strings.Cut(s, ".")
	fraction = strings.TrimRight(fraction, "0")
	if whole == "" || dot && fraction == "" && strings.HasSuffix(s, ".") || len(fraction) > power {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(whole+fraction+strings.Repeat("0", power-len(fraction)), 10, 64)
}

// rateUnits are the powers of ten of the units of rates.
var rateUnits = map[byte]int{'k': 3, 'M': 6, 'G': 9, 'T': 12}

// parseValue reads a value of a signal: bit/s such as 400G, percent such as 12.5, or a duration such as 250ns.
func parseValue(s Signal, text string) (uint64, error) {
	switch s {
	case Bandwidth:
		power, number := 0, text
		if text != "" {
			if p, ok := rateUnits[text[len(text)-1]]; ok {
				power, number = p, text[:len(text)-1]
			}
		}
		if v, err := parseDecimal(number, power); err == nil && v <= maxRate {
			return v, nil
		}
		return 0, errors.New("bits per second are expected, such as 4000000 or 400G, at most 1000T")
	case Share:
		if v, err := parseDecimal(text, 4); err == nil && v <= Million {
			return v, nil
		}
		return 0, errors.New("percent are expected, such as 12.5, with at most four decimals")
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 && d <= time.Hour {
		return uint64(d.Nanoseconds()), nil
	}
	return 0, errors.New("a duration of at most an hour is expected, such as 250ns")
}

func (r *profileReader) readValue(n *yaml.Node, field string, s Signal) (uint64, error) {
	v, err := parseValue(s, n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		if err == nil {
			err = errors.New("a single value is expected")
		}
		return 0, r.wrong(n, field, "%s: %v", quote(n.Value), err)
	}
	return v, nil
}
