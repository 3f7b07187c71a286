package health

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/klog"
	"github.com/graylink/graylink/internal/nichealth"
)

// File represents the file of --nic.config. Fields that it leaves out have the values of DefaultFile.
type File struct {
	// Excluded are regular expressions of devices and interfaces that are left out of everything.
	Excluded []string `yaml:"excluded"`
	// Management are regular expressions of devices and interfaces that have series, but no events.
	Management []string `yaml:"management"`
	// ExpectedDown are regular expressions of devices and interfaces whose ports may be down.
	ExpectedDown []string `yaml:"expected_down"`
	// GPU is the name of the node's GPU product. The default is the name that NVIDIA's driver reports.
	GPU string `yaml:"gpu"`
	// Products are the expected ports by GPU product.
	Products []nichealth.Product `yaml:"products"`
	// Thresholds are rules of counters. They replace those of the same code and add to the others.
	Thresholds []nichealth.Threshold `yaml:"thresholds"`
	// Without are the codes of rules that are removed.
	Without []string `yaml:"without"`
	// XmitWaitTick is the length of a tick of port_xmit_wait, by which waiting is judged as a share of time.
	XmitWaitTick time.Duration `yaml:"xmit_wait_tick"`
	// Misses is the number of polls in a row that do not find a device that has disappeared.
	Misses *int `yaml:"misses" schema:"min=1"`
	// Log changes the patterns of the kernel's log.
	Log   klog.MatchConfig `yaml:"log"`
	Times FileTimes        `yaml:",inline"`
}

// FileTimes represents the durations of the file. Each is at least 10ms.
type FileTimes struct {
	// Confirm is how long a port is read again before its bad state is an event.
	Confirm *time.Duration `yaml:"confirm"`
	// Stuck is how long a port may stay in a passing state.
	Stuck *time.Duration `yaml:"stuck"`
	// Every is the time between two readings of states.
	Every *time.Duration `yaml:"every"`
	// Counters is the time between two readings of counters.
	Counters *time.Duration `yaml:"counters_every"`
	// GIDs is the time between two readings of GID tables.
	GIDs *time.Duration `yaml:"gids_every"`
	// Identity is the time between two readings of types, firmware and PCI links.
	Identity *time.Duration `yaml:"identity_every"`
	// Patience bounds the time of one reading.
	Patience *time.Duration `yaml:"patience"`
}

// DefaultFile returns the file that changes nothing.
func DefaultFile() File {
	o := DefaultOptions()
	f := File{Misses: &o.Rules.Misses, Log: klog.MatchConfig{PerMinute: klog.DefaultPerMinute}}
	for _, re := range o.Rules.Excluded {
		f.Excluded = append(f.Excluded, re.String())
	}
	for _, x := range f.Times.values(&o) {
		*x.from = x.to
	}
	return f
}

// timeValue represents a duration of the file, and the option that it sets.
type timeValue struct {
	name string
	from **time.Duration
	to   *time.Duration
}

func (t *FileTimes) values(o *Options) []timeValue {
	return []timeValue{{"confirm", &t.Confirm, &o.Rules.Confirm}, {"stuck", &t.Stuck, &o.Rules.Stuck}, {"every", &t.Every, &o.Rules.Every},
		{"counters_every", &t.Counters, &o.Counters}, {"gids_every", &t.GIDs, &o.GIDs}, {"identity_every", &t.Identity, &o.Identity}, {"patience", &t.Patience, &o.Patience}}
}

// DefaultOptions returns the options without a file. Counters are read less often than states, because they change
// slowly and reading them goes through the device's firmware.
func DefaultOptions() Options {
	return Options{Rules: nichealth.DefaultConfig(), Counters: 5 * time.Second, GIDs: 30 * time.Second, Identity: time.Minute, Patience: 500 * time.Millisecond, Log: LogKmsg, Ethtool: DefaultEthtool()}
}

// LoadOptions reads the file of --nic.config into options. An empty name reads nothing. Thresholds of the file replace
// those of the same code and add to the others. The key without removes rules by their codes.
func LoadOptions(file string, o *Options) error {
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return parseOptions(file, b, o)
}

func parseOptions(file string, b []byte, o *Options) error {
	var f File
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, apply := range []func(*Options) error{f.applyPatterns, f.Times.applyTimes, f.applyRules} {
		if err := apply(o); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	o.Patterns = f.Log
	if err := o.Patterns.Validate(); err != nil {
		return fmt.Errorf("%s: log: %w", file, err)
	}
	if err := o.Rules.Validate(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// applyPatterns replaces the lists of names that the file has.
func (f *File) applyPatterns(o *Options) error {
	for _, x := range []struct {
		name string
		from []string
		to   *[]*regexp.Regexp
	}{{"excluded", f.Excluded, &o.Rules.Excluded}, {"management", f.Management, &o.Rules.Management}, {"expected_down", f.ExpectedDown, &o.Rules.ExpectedDown}} {
		if x.from == nil {
			continue
		}
		*x.to = nil
		for i, s := range x.from {
			re, err := regexp.Compile(s)
			if err != nil {
				return fmt.Errorf("%s[%d]: a regular expression is expected: %w", x.name, i, err)
			}
			*x.to = append(*x.to, re)
		}
	}
	return nil
}

// applyTimes replaces the durations that the file has.
func (t *FileTimes) applyTimes(o *Options) error {
	for _, x := range t.values(o) {
		given := *x.from
		if given == nil {
			continue
		}
		if *given < 10*time.Millisecond {
			return fmt.Errorf("%s: 10ms or more is expected, not %s", x.name, *given)
		}
		*x.to = *given
	}
	return nil
}

// applyRules replaces what else the file has, and changes the thresholds by it.
func (f *File) applyRules(o *Options) error {
	c := &o.Rules
	if f.Misses != nil {
		c.Misses = *f.Misses
	}
	if f.XmitWaitTick != 0 {
		c.XmitWaitTick = f.XmitWaitTick
	}
	if f.GPU != "" {
		c.GPU = f.GPU
	}
	if f.Products != nil {
		c.Products = f.Products
	}
	for _, t := range f.Thresholds {
		if t.Code == "" {
			t.Code = t.Counter
		}
		c.Thresholds = append(withoutCode(c.Thresholds, t.Code), t)
	}
	for i, code := range f.Without {
		n := len(c.Thresholds)
		if c.Thresholds = withoutCode(c.Thresholds, code); len(c.Thresholds) == n {
			return fmt.Errorf("without[%d]: the code of a rule is expected, not %q", i, code)
		}
	}
	return nil
}

func withoutCode(ts []nichealth.Threshold, code string) (out []nichealth.Threshold) {
	for _, t := range ts {
		if t.Code != code {
			out = append(out, t)
		}
	}
	return out
}

// GPUProduct returns the model of the node's first GPU from NVIDIA's driver in procfs, or "" if there is none.
func GPUProduct(proc string) string {
	if proc == "" {
		proc = "/proc"
	}
	files, err := filepath.Glob(filepath.Join(proc, "driver/nvidia/gpus/*/information"))
	if err != nil {
		return ""
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
			if k, v, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(k) == "Model" {
				return strings.TrimSpace(v)
			}
		}
	}
	return ""
}
