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

// configFile represents the file of --nic.config. Fields that it leaves out have the values of DefaultOptions.
type configFile struct {
	Excluded     []string              `yaml:"excluded"`
	Management   []string              `yaml:"management"`
	ExpectedDown []string              `yaml:"expected_down"`
	GPU          string                `yaml:"gpu"`
	Products     []nichealth.Product   `yaml:"products"`
	Thresholds   []nichealth.Threshold `yaml:"thresholds"`
	Without      []string              `yaml:"without"`
	XmitWaitTick time.Duration         `yaml:"xmit_wait_tick"`
	Misses       *int                  `yaml:"misses"`
	Log          klog.MatchConfig      `yaml:"log"`
	Times        configTimes           `yaml:",inline"`
}

// configTimes represents the durations of the file.
type configTimes struct {
	Confirm  *time.Duration `yaml:"confirm"`
	Stuck    *time.Duration `yaml:"stuck"`
	Every    *time.Duration `yaml:"every"`
	Counters *time.Duration `yaml:"counters_every"`
	GIDs     *time.Duration `yaml:"gids_every"`
	Identity *time.Duration `yaml:"identity_every"`
	Patience *time.Duration `yaml:"patience"`
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
	var f configFile
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
func (f *configFile) applyPatterns(o *Options) error {
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
func (t *configTimes) applyTimes(o *Options) error {
	for _, x := range []struct {
		name string
		from *time.Duration
		to   *time.Duration
	}{{"confirm", t.Confirm, &o.Rules.Confirm}, {"stuck", t.Stuck, &o.Rules.Stuck}, {"every", t.Every, &o.Rules.Every}, {"counters_every", t.Counters, &o.Counters}, {"gids_every", t.GIDs, &o.GIDs},
		{"identity_every", t.Identity, &o.Identity}, {"patience", t.Patience, &o.Patience}} {
		if x.from == nil {
			continue
		}
		if *x.from < 10*time.Millisecond {
			return fmt.Errorf("%s: 10ms or more is expected, not %s", x.name, *x.from)
		}
		*x.to = *x.from
	}
	return nil
}

// applyRules replaces what else the file has, and changes the thresholds by it.
func (f *configFile) applyRules(o *Options) error {
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
