package ufmreceiver

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/ufm"
)

// Config configures which UFM is read, and what of it.
type Config struct {
	// Endpoint is UFM's REST interface, https://HOST. If it is empty, only telemetry is read.
	Endpoint string `mapstructure:"endpoint"`
	Auth     Auth   `mapstructure:"auth"`
	TLS      TLS    `mapstructure:"tls"`
	// Interval is the time between readings of events, alarms and unhealthy ports.
	Interval time.Duration `mapstructure:"interval"`
	// InventoryInterval is the time between readings of systems, ports and links. Their points have the time of
	// the reading. Prometheus looks back for 5 minutes, so that longer intervals leave gaps.
	InventoryInterval time.Duration `mapstructure:"inventory_interval"`
	// Timezone is the time zone of UFM's clock, which its events do not contain.
	Timezone string `mapstructure:"timezone"`
	// StateFile stores over restarts which events and alarms were reported. If it is empty, what is listed at
	// the start counts as reported.
	StateFile string `mapstructure:"state_file"`
	// Remembered bounds the number of events that are remembered beyond those that UFM lists.
	Remembered int `mapstructure:"remembered_events"`
	// Subnet is the subnet's name in series of changes; empty means the endpoint's host.
	Subnet string `mapstructure:"subnet"`
	// Telemetry are the telemetry services.
	Telemetry []Telemetry `mapstructure:"telemetry"`
	// NumShards is the number of receivers that share the ports, of which this one reads Shard, 0 to
	// NumShards-1. Events and alarms are read by shard 0.
	NumShards int `mapstructure:"num_shards"`
	Shard     int `mapstructure:"shard"`
	// Columns declares columns of telemetry that are unknown, or known in another form.
	Columns map[string]ufm.DeclaredColumn `mapstructure:"columns"`
	// Optics sets the units of the power and bias of modules' lanes.
	Optics ufm.OpticsUnits `mapstructure:"optics"`
	// Timeout, Retries and MaxBody apply to one request.
	Timeout time.Duration `mapstructure:"timeout"`
	Retries int           `mapstructure:"retries"`
	MaxBody int64         `mapstructure:"max_body_bytes"`
}

// Auth names files with credentials.
type Auth struct {
	UsernameFile string `mapstructure:"username_file"`
	PasswordFile string `mapstructure:"password_file"`
	TokenFile    string `mapstructure:"token_file"`
	CertFile     string `mapstructure:"cert_file"`
	KeyFile      string `mapstructure:"key_file"`
}

// TLS configures which certificates are trusted.
type TLS struct {
	CAFile     string `mapstructure:"ca_file"`
	ServerName string `mapstructure:"server_name"`
	Insecure   bool   `mapstructure:"insecure_skip_verify"`
}

// Telemetry represents one telemetry service.
type Telemetry struct {
	// Endpoint is http://HOST:9001, without a path.
	Endpoint string `mapstructure:"endpoint"`
	// Path is the path of the document; its beginning determines the format.
	Path string `mapstructure:"path"`
	// Interval is the time between readings.
	Interval time.Duration `mapstructure:"interval"`
	TLS      TLS           `mapstructure:"tls"`
}

// targetName returns the service's name in series.
func (t *Telemetry) targetName() string {
	u, err := url.Parse(t.Endpoint)
	if err != nil {
		return t.Path // Validate refuses it
	}
	return u.Host + t.Path
}

// documentFormat returns the format of the path's document.
func (t *Telemetry) documentFormat() ufm.Format {
	path := strings.TrimPrefix(strings.TrimPrefix(t.Path, "/"), "labels/")
	switch {
	case strings.HasPrefix(path, "csv/"):
		return ufm.CSV
	case strings.HasPrefix(path, "json/"):
		return ufm.JSON
	}
	return ufm.Prometheus
}

func defaultConfig() *Config {
	return &Config{Interval: 30 * time.Second, InventoryInterval: 4 * time.Minute, Timezone: "UTC", Remembered: 20_000, NumShards: 1, Timeout: 30 * time.Second, Retries: 3, MaxBody: 1 << 30}
}

// restOptions returns the options of the REST interface's client.
func (c *Config) restOptions() ufm.Options {
	return ufm.Options{URL: c.Endpoint, UsernameFile: c.Auth.UsernameFile, PasswordFile: c.Auth.PasswordFile, TokenFile: c.Auth.TokenFile,
		CertFile: c.Auth.CertFile, KeyFile: c.Auth.KeyFile, CAFile: c.TLS.CAFile, ServerName: c.TLS.ServerName, Insecure: c.TLS.Insecure,
		Timeout: c.Timeout, Retries: c.Retries, MaxBody: c.MaxBody}
}

func (c *Config) telemetryOptions(t *Telemetry) ufm.Options {
	return ufm.Options{URL: t.Endpoint, CAFile: t.TLS.CAFile, ServerName: t.TLS.ServerName, Insecure: t.TLS.Insecure,
		Timeout: c.Timeout, Retries: c.Retries, MaxBody: c.MaxBody}
}

// certificates lists the files of certificates of all services.
func (c *Config) certificates() []pki.CertificateFile {
	files := pki.FilesOf(c.TLS.CAFile, c.Auth.CertFile)
	for i := range c.Telemetry {
		files = append(files, pki.FilesOf(c.Telemetry[i].TLS.CAFile, "")...)
	}
	return files
}

// Validate returns an error that names the first key with a wrong value.
func (c *Config) Validate() error {
	switch {
	case c.Endpoint == "" && len(c.Telemetry) == 0:
		return fmt.Errorf("endpoint, telemetry: one of them is expected")
	case c.Endpoint == "" && c.Auth != (Auth{}):
		return fmt.Errorf("auth: an endpoint is expected with it")
	case c.Endpoint != "" && c.Auth == (Auth{}):
		return fmt.Errorf("auth: files with credentials are expected: UFM's REST interface needs them")
	case c.NumShards < 1 || c.NumShards > 256:
		return fmt.Errorf("num_shards: %d: 1 to 256 are expected", c.NumShards)
	case c.Shard < 0 || c.Shard >= c.NumShards:
		return fmt.Errorf("shard: %d: 0 to %d are expected", c.Shard, c.NumShards-1)
	case c.Endpoint == "" && c.StateFile != "":
		return fmt.Errorf("state_file: an endpoint is expected with it")
	case c.StateFile != "" && !filepath.IsAbs(c.StateFile):
		return fmt.Errorf("state_file: %q: an absolute path is expected", c.StateFile)
	case c.Remembered < 1000 || c.Remembered > 1_000_000:
		return fmt.Errorf("remembered_events: %d: 1000 to 1000000 are expected", c.Remembered)
	case len(c.Subnet) > 128 || strings.ContainsFunc(c.Subnet, unicode.IsControl):
		return fmt.Errorf("subnet: %q: a name of 128 octets at most is expected", c.Subnet)
	case c.InventoryInterval < c.Interval:
		return fmt.Errorf("inventory_interval: %v: at least the interval, %v, is expected", c.InventoryInterval, c.Interval)
	}
	if err := validateInterval("interval", c.Interval); err != nil {
		return err
	}
	if _, err := time.LoadLocation(c.Timezone); err != nil || c.Timezone == "" {
		return fmt.Errorf("timezone: %q: a name as Europe/Oslo is expected", c.Timezone)
	}
	if o := c.restOptions(); c.Endpoint != "" {
		if err := o.Validate(); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for i := range c.Telemetry {
		t := &c.Telemetry[i]
		o := c.telemetryOptions(t)
		key := fmt.Sprintf("telemetry[%d]", i)
		if err := o.Validate(); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if err := validateInterval(key+": interval", t.Interval); err != nil {
			return err
		}
		if !strings.HasPrefix(t.Path, "/") || strings.ContainsAny(t.Path, "?#") {
			return fmt.Errorf("%s: path: %q: a path as /csv/metrics is expected, without query", key, t.Path)
		}
		if seen[t.targetName()] {
			return fmt.Errorf("%s: %s is there twice", key, t.targetName())
		}
		seen[t.targetName()] = true
	}
	_, err := ufm.NewTable(c.Columns, c.Optics)
	return err
}

func validateInterval(key string, d time.Duration) error {
	if d < 100*time.Millisecond || d > time.Hour {
		return fmt.Errorf("%s: %v: 100ms to 1h are expected", key, d)
	}
	return nil
}
