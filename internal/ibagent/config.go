package ibagent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/ibsample"
	"github.com/graylink/graylink/internal/ibsubnet"
)

// Config configures a process's part in the sampling of a fabric. Its keys are the same in a Collector's
// configuration and in a file of its own.
type Config struct {
	// Name is the name of this sampler. The default is the host's name.
	Name string `mapstructure:"name" yaml:"name"`
	// Device is the port of this host that sends the queries: "umad0", "mlx5_0", "mlx5_0.2" for its second port,
	// "ibsim:SOCKET/NODE" for a simulated fabric.
	Device string `mapstructure:"device" yaml:"device"`
	// Interval is the time between two ticks: 100ms to 1h.
	Interval time.Duration `mapstructure:"interval" yaml:"interval"`
	// Sample makes this process read ports itself.
	Sample bool `mapstructure:"sample" yaml:"sample"`
	// Delegator is the URL of the delegator in another process. If it is empty, this process is the delegator.
	Delegator string `mapstructure:"delegator" yaml:"delegator" schema:"form=url"`
	// Listen is the address on which the delegator listens for samplers of other processes. If it is empty,
	// there are none.
	Listen string `mapstructure:"listen" yaml:"listen"`
	// TLS names the PEM files by which delegator and samplers authenticate each other. Without them they
	// communicate over the loopback only.
	TLS TLS `mapstructure:"tls" yaml:"tls"`
	// Discovery is the interval between discoveries of the fabric.
	Discovery time.Duration `mapstructure:"discovery_interval" yaml:"discovery_interval"`
	// Forget is how long a port that the discovery no longer finds is still read, and its errors counted.
	Forget time.Duration `mapstructure:"forget_after" yaml:"forget_after"`
	// Redundancy is how many samplers read each port.
	Redundancy int `mapstructure:"redundancy" yaml:"redundancy" schema:"min=1,max=16"`
	// Metrics are names of MAD queries or of their fields; empty means all.
	Metrics []string `mapstructure:"metrics" yaml:"metrics"`
	// Assignments lists the ports that a sampler reads, by its name.
	Assignments map[string][]string `mapstructure:"assignments" yaml:"assignments"`
	// Window is the largest number of queries on their way; 0 means the transport's.
	Window int `mapstructure:"window" yaml:"window" schema:"min=0,max=4096"`
	// PerNode is the largest number of queries on their way to one node; 0 means the transport's.
	PerNode int `mapstructure:"window_per_node" yaml:"window_per_node" schema:"min=0,max=4096"`
	// Timeout bounds the time of one query: 1ms to 1m.
	Timeout time.Duration `mapstructure:"timeout" yaml:"timeout"`
	// Retries is the number of retries of one query.
	Retries int `mapstructure:"retries" yaml:"retries" schema:"min=0,max=16"`
	// SwitchBudget is the number of datagrams a second that a switch may be sent by this process, for its tables and its counters.
	// Tables are read less often where counters leave less than half of it; more counters than that are a warning. 0 means no limit.
	SwitchBudget int `mapstructure:"switch_budget" yaml:"switch_budget" schema:"min=0,max=100000"`
	// MKeyFile is a file with the subnet's management key in hexadecimal. If it is empty, there is none.
	MKeyFile string `mapstructure:"m_key_file" yaml:"m_key_file"`
	// Tables makes a delegator read the forwarding tables as well, and serve them to analyzers at listen.
	Tables bool `mapstructure:"tables" yaml:"tables"`
	// OpenSMLog is the log of OpenSM if it runs on this host. Its changes end the paths at once, and its traps are counted.
	OpenSMLog string `mapstructure:"opensm_log" yaml:"opensm_log"`
}

// TLS names the PEM files of a certificate and its authorities.
type TLS struct {
	// CA is the file of the authorities that sign the other side's certificate.
	CA string `mapstructure:"ca_file" yaml:"ca_file"`
	// Cert is the file of this process's certificate.
	Cert string `mapstructure:"cert_file" yaml:"cert_file"`
	// Key is the file of the certificate's key.
	Key string `mapstructure:"key_file" yaml:"key_file"`
	// Server is the name in the delegator's certificate; its host by default.
	Server string `mapstructure:"server_name" yaml:"server_name"`
}

// DefaultConfig returns the configuration of a process that is delegator and sampler.
func DefaultConfig() Config {
	return Config{Device: "umad0", Interval: time.Second, Sample: true, Discovery: 30 * time.Second, Forget: 10 * time.Minute, Redundancy: 1,
		Timeout: 100 * time.Millisecond, Retries: 2, SwitchBudget: ibsubnet.Budget}
}

// LoadConfig reads a configuration from a YAML file, on top of the defaults.
func LoadConfig(file string) (Config, error) {
	config := DefaultConfig()
	f, err := os.Open(file)
	if err != nil {
		return config, err
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return config, fmt.Errorf("%s: %w", file, err)
	}
	if err := config.Validate(); err != nil {
		return config, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}

// Validate returns an error that names the first key with a wrong value.
func (c *Config) Validate() error {
	wrong := func(key, format string, args ...any) error { return fmt.Errorf(key+": "+format, args...) }
	selection := ibsample.Selection(c.Metrics)
	switch delegates := c.Delegator == ""; {
	case c.Device == "" && (c.Sample || delegates):
		return wrong("device", "a port of this host is expected, as umad0")
	case strings.HasPrefix(c.Device, "ibsim:") && !strings.Contains(c.Device, "/"):
		return wrong("device", "%q: ibsim:SOCKET/NODE is expected", c.Device)
	case !delegates && !c.Sample:
		return wrong("sample", "true is expected of a process that is no delegator")
	case !delegates && c.Listen != "":
		return wrong("listen", "only a delegator listens, and delegator names another")
	case c.Interval < 100*time.Millisecond || c.Interval > time.Hour:
		return wrong("interval", "%v: 100ms to 1h are expected", c.Interval)
	case c.Discovery < c.Interval:
		return wrong("discovery_interval", "%v: at least the interval, %v, is expected", c.Discovery, c.Interval)
	case c.Forget < 0:
		return wrong("forget_after", "%v: 0 or more is expected", c.Forget)
	case c.Redundancy < 1 || c.Redundancy > 16:
		return wrong("redundancy", "%d: 1 to 16 samplers per port are expected", c.Redundancy)
	case c.Window < 0 || c.Window > 4096:
		return wrong("window", "%d: 0 to 4096 are expected", c.Window)
	case c.PerNode < 0 || c.PerNode > 4096:
		return wrong("window_per_node", "%d: 0 to 4096 are expected", c.PerNode)
	case c.Timeout < time.Millisecond || c.Timeout > time.Minute:
		return wrong("timeout", "%v: 1ms to 1m are expected", c.Timeout)
	case c.SwitchBudget < 0 || c.SwitchBudget > 100_000:
		return wrong("switch_budget", "%d: 0 to 100000 datagrams a second are expected", c.SwitchBudget)
	case c.OpenSMLog != "" && !c.Tables:
		return wrong("opensm_log", "it needs tables: true, which read the forwarding tables")
	case c.Tables && c.Listen == "":
		return wrong("tables", "it needs listen: analyzers read them there")
	case c.Retries < 0 || c.Retries > 16:
		return wrong("retries", "%d: 0 to 16 are expected", c.Retries)
	}
	if err := selection.Validate(); err != nil {
		return wrong("metrics", "%w", err)
	}
	for _, p := range c.assignmentPins() {
		if err := p.Validate(); err != nil {
			return wrong("assignments", "%w", err)
		}
	}
	return c.validateEndpoints()
}

// validateEndpoints validates how delegator and samplers connect.
func (c *Config) validateEndpoints() error {
	some, all := c.TLS.CA != "" || c.TLS.Cert != "" || c.TLS.Key != "", c.TLS.CA != "" && c.TLS.Cert != "" && c.TLS.Key != ""
	if some && !all {
		return errors.New("tls: ca_file, cert_file and key_file are expected together")
	}
	if c.Listen != "" {
		host, _, err := net.SplitHostPort(c.Listen)
		if err != nil {
			return fmt.Errorf("listen: host:port is expected: %w", err)
		}
		if !all && !isLoopback(host) {
			return fmt.Errorf("listen: %s: without tls, a loopback address is expected", c.Listen)
		}
	}
	if c.Delegator == "" {
		return nil
	}
	u, err := url.Parse(c.Delegator)
	switch {
	case err != nil:
		return fmt.Errorf("delegator: %w", err)
	case all && u.Scheme != "https":
		return fmt.Errorf("delegator: %s: an https URL is expected", c.Delegator)
	case !all && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return fmt.Errorf("delegator: %s: without tls, an http URL of a loopback address is expected", c.Delegator)
	case u.Host == "":
		return fmt.Errorf("delegator: %s: a host is expected", c.Delegator)
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// assignmentPins returns the assignments, sorted by the samplers' names.
func (c *Config) assignmentPins() (out []ibsample.Pin) {
	for _, sampler := range sortedKeys(c.Assignments) {
		for _, ports := range c.Assignments[sampler] {
			out = append(out, ibsample.Pin{Sampler: sampler, Ports: ports})
		}
	}
	return out
}
