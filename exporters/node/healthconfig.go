package node

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

// healthFile represents the file of --nic.config. Fields that it leaves out have the values of nichealth.Defaults.
type healthFile struct {
	Excluded     []string              `yaml:"excluded"`
	Management   []string              `yaml:"management"`
	ExpectedDown []string              `yaml:"expected_down"`
	GPU          string                `yaml:"gpu"`
	Products     []nichealth.Product   `yaml:"products"`
	Thresholds   []nichealth.Threshold `yaml:"thresholds"`
	Without      []string              `yaml:"without"`
	XmitWaitTick time.Duration         `yaml:"xmit_wait_tick"`
	Confirm      *time.Duration        `yaml:"confirm"`
	Stuck        *time.Duration        `yaml:"stuck"`
	Misses       *int                  `yaml:"misses"`
	Every        *time.Duration        `yaml:"every"`
	Counters     *time.Duration        `yaml:"counters_every"`
	GIDs         *time.Duration        `yaml:"gids_every"`
	Identity     *time.Duration        `yaml:"identity_every"`
	Log          klog.MatchConfig      `yaml:"log"`
	Patience     *time.Duration        `yaml:"patience"`
}

// DefaultHealth returns the options without a file. Counters are read less often than states, because they change slowly
// and reading them goes through the device's firmware.
func DefaultHealth() HealthOptions {
	return HealthOptions{Rules: nichealth.DefaultConfig(), Counters: 5 * time.Second, GIDs: 30 * time.Second, Identity: time.Minute, Patience: 500 * time.Millisecond, Log: LogKmsg, Ethtool: DefaultEthtool()}
}

// LoadHealth reads the file of --nic.config into options. An empty name reads nothing. Thresholds of the file replace
// those of the same code and add to the others. The key without removes rules by their codes.
func LoadHealth(file string, o *HealthOptions) error {
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return parseHealth(file, b, o)
}

func parseHealth(file string, b []byte, o *HealthOptions) error {
	var f healthFile
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", file, err)
	}
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
				return fmt.Errorf("%s: %s[%d]: a regular expression is expected: %w", file, x.name, i, err)
			}
			*x.to = append(*x.to, re)
		}
	}
	for _, x := range []struct {
		name string
		from *time.Duration
		to   *time.Duration
	}{{"confirm", f.Confirm, &o.Rules.Confirm}, {"stuck", f.Stuck, &o.Rules.Stuck}, {"every", f.Every, &o.Rules.Every}, {"counters_every", f.Counters, &o.Counters}, {"gids_every", f.GIDs, &o.GIDs},
		{"identity_every", f.Identity, &o.Identity}, {"patience", f.Patience, &o.Patience}} {
		if x.from == nil {
			continue
		}
		if *x.from < 10*time.Millisecond {
			return fmt.Errorf("%s: %s: 10ms or more is expected, not %s", file, x.name, *x.from)
		}
		*x.to = *x.from
	}
	if f.Misses != nil {
		o.Rules.Misses = *f.Misses
	}
	if f.XmitWaitTick != 0 {
		o.Rules.XmitWaitTick = f.XmitWaitTick
	}
	if f.GPU != "" {
		o.Rules.GPU = f.GPU
	}
	if f.Products != nil {
		o.Rules.Products = f.Products
	}
	for _, t := range f.Thresholds {
		if t.Code == "" {
			t.Code = t.Counter
		}
		o.Rules.Thresholds = append(withoutCode(o.Rules.Thresholds, t.Code), t)
	}
	for i, code := range f.Without {
		n := len(o.Rules.Thresholds)
		if o.Rules.Thresholds = withoutCode(o.Rules.Thresholds, code); len(o.Rules.Thresholds) == n {
			return fmt.Errorf("%s: without[%d]: the code of a rule is expected, not %q", file, i, code)
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
