package daemon

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	config_util "github.com/prometheus/common/config"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/jobs"
	"github.com/graylink/graylink/analyzer/selection"
	"github.com/graylink/graylink/analyzer/steer"
	"github.com/graylink/graylink/internal/agentapi/client"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/window"
)

// Config is the analyzer's configuration file.
type Config struct {
	// TopologyFile is the topology file. Its name is relative to the configuration file, as those of all files in it are.
	TopologyFile string `yaml:"topology_file" schema:"required"`
	// Prometheus is the server that has the evidence.
	Prometheus Prometheus `yaml:"prometheus" schema:"required"`
	// Agents configures the agents of the nodes, which trace paths. Without it, paths come from switches alone.
	Agents *Agents `yaml:"agents"`
	// Switches configures the switches that report sightings. Without it, paths come from traces alone.
	Switches *Switches `yaml:"switches"`
	// InfiniBand configures the InfiniBand subnets, whose forwarding tables are read.
	InfiniBand []Subnet `yaml:"infiniband"`
	// Scope is the part of the fabric that this analyzer is responsible for. The default is the whole.
	Scope Scope `yaml:"scope"`
	// Evidence configures the times of the queries.
	Evidence Evidence `yaml:"evidence"`
	// History configures the past from which a start reads baselines.
	History History `yaml:"history"`
	// Maintenance configures the sources of maintenance windows.
	Maintenance Maintenance `yaml:"maintenance"`
	// Jobs configures the sources of placements.
	Jobs []Placements `yaml:"jobs"`
	// Collectives configures whether the analyzer follows what jobs wait for.
	Collectives Collectives `yaml:"collectives"`
	// Steering configures what is done about nodes that jobs wait for. The default is nothing.
	Steering steer.Settings `yaml:"steering"`
	// Asking configures the coordinator that grants temporary flows. Without it, nothing is asked.
	Asking *AgentPort `yaml:"asking"`
	// AuditReport is the audit.json of graylink audit, or the directory of its --output. The page and the API show the result. It is
	// read again when it changes.
	AuditReport string `yaml:"audit_report"`
	// PageNICs is the blast radius above which a verdict that affects no job is critical.
	PageNICs int `yaml:"page_above_nics" schema:"min=1"`
	// Queries replaces queries to Prometheus, by name.
	Queries map[string]string `yaml:"queries"`

	topology *fabric.Topology // of the scope
	whole    *fabric.Topology
	elements map[string]bool // of the scope, if it is not the whole
	settings evidence.Settings
	// hash is the hash of the file and of the topology file.
	hash string
}

// Endpoint represents a server and the configuration of its HTTP client, which has the keys of Prometheus.
type Endpoint struct {
	// URL is the base of the server's addresses, without credentials and parameters.
	URL    string                       `yaml:"url" schema:"form=url"`
	Client config_util.HTTPClientConfig `yaml:",inline"`
}

// Prometheus configures the server that has the evidence.
type Prometheus struct {
	Endpoint `yaml:",inline" schema:"required=url"`
	// ExternalURL is the address for browsers, for the page's links. The default is url.
	ExternalURL string `yaml:"external_url" schema:"form=url"`
	// Backend is how the server is queried: http, or remote_read, with which the analyzer reads series and evaluates queries
	// itself.
	Backend string `yaml:"backend" schema:"enum=http|remote_read"`
	// Timeout bounds the time of one query: 100ms to 5m.
	Timeout time.Duration `yaml:"timeout"`
	// MaxAnswer bounds the size of one response after decompression.
	MaxAnswer int64 `yaml:"max_answer_bytes" schema:"min=1048576"`
}

// Backends.
const (
	backendHTTP = "http"
	backendRead = "remote_read"
)

// Agents configures the agents, by a URL with "{node}" in it, or by a coordinator that has their addresses.
type Agents struct {
	Endpoint `yaml:",inline"`
	// Coordinator is the coordinator that has the addresses of the agents.
	Coordinator *Coordinator `yaml:"coordinator"`
}

// Coordinator configures the coordinator that has the addresses of the agents.
type Coordinator struct {
	Endpoint `yaml:",inline" schema:"required=url"`
}

// AgentPort configures how the analyzer reaches the coordinators where they accept agents, and the certificate that it shows
// them.
type AgentPort struct {
	// Address is where the coordinator accepts agents: host:port or unix:PATH.
	Address string `yaml:"address" schema:"required"`
	// StandbyAddresses are where other coordinators of the fleet accept agents. They are tried when this one does not lead.
	StandbyAddresses []string `yaml:"standby_addresses"`
	// ServerName is the name in its certificate. The default is the host of the address.
	ServerName string `yaml:"server_name"`
	// CAFile is the PEM file of the authorities that sign the coordinator's certificate.
	CAFile string `yaml:"ca_file" schema:"required"`
	// CertFile is the PEM file of the analyzer's certificate. The coordinator needs its name in --ask.clients for questions,
	// and in --maintenance.clients for windows.
	CertFile string `yaml:"cert_file" schema:"required"`
	// KeyFile is the PEM file of the certificate's key.
	KeyFile string `yaml:"key_file" schema:"required"`
}

func (a *AgentPort) files() pki.Files {
	return pki.Files{CA: a.CAFile, Cert: a.CertFile, Key: a.KeyFile}
}

// addresses returns those of all coordinators.
func (a *AgentPort) addresses() []string { return append([]string{a.Address}, a.StandbyAddresses...) }

// validate returns an error that names the key below that of the whole.
func (a *AgentPort) validate(whole string) error {
	for _, f := range []struct{ key, value string }{{"address", a.Address}, {"ca_file", a.CAFile}, {"cert_file", a.CertFile}, {"key_file", a.KeyFile}} {
		if f.value == "" {
			return keyErrorf(whole+"."+f.key, "a value is required")
		}
	}
	for i, address := range a.addresses() {
		if _, err := client.ServerNameFor(address, a.ServerName); err != nil {
			key := whole + ".address"
			if i > 0 {
				key = fmt.Sprintf("%s.standby_addresses[%d]", whole, i-1)
			}
			return keyErrorf(key, "%w", err)
		}
	}
	return nil
}

// Switches configures the agents of switches, by a URL with "{switch}" in it.
type Switches struct {
	Endpoint `yaml:",inline" schema:"required=url"`
	// Names are the switches that have an agent. Empty means all switches of the topology.
	Names []string `yaml:"names"`
	// StampPort is the UDP port of the reflectors.
	StampPort uint16 `yaml:"stamp_port"`
	// SourcePort is the UDP source port of flow 0.
	SourcePort uint16 `yaml:"stamp_source_port"`
}

// Maintenance configures the sources of maintenance windows, each of which may be absent.
type Maintenance struct {
	// File is a YAML file of windows, which is read again when it changes.
	File string `yaml:"file"`
	// Alertmanager is the server whose silences of elements are windows.
	Alertmanager *Server `yaml:"alertmanager"`
	// Kubernetes is the API server whose cordoned nodes are in maintenance.
	Kubernetes *Server `yaml:"kubernetes"`
	// Coordinator is the coordinator that keeps the windows of the API for all analyzers. Without it, each analyzer keeps its
	// own until it is restarted.
	Coordinator *AgentPort `yaml:"coordinator"`
}

// Collectives configures whether the analyzer follows what jobs wait for.
type Collectives struct {
	// Follow is set if the records of collective operations are read from the agents of all nodes.
	Follow bool `yaml:"follow"`
}

// Server configures a server that has maintenance windows or jobs.
type Server struct {
	Endpoint `yaml:",inline" schema:"required=url"`
}

// Placements configures one source of jobs: a file, Slurm's squeue, or Kubernetes.
type Placements struct {
	// File is a file of placements, which is read again when it changes.
	File string `yaml:"file"`
	// Format is the format of the file. The default is placement.
	Format string `yaml:"format" schema:"enum=placement|scontrol|squeue|kubernetes"`
	// Slurm runs Slurm's squeue.
	Slurm *Slurm `yaml:"slurm"`
	// Kubernetes is the API server whose pods of jobs are watched.
	Kubernetes *Server `yaml:"kubernetes"`
}

// Slurm configures a command that prints jobs as squeue does, and the time between two runs of it.
type Slurm struct {
	// Command is the program, which is searched for in PATH if it has no slash.
	Command string `yaml:"command"`
	// Every is the time between two runs: 1s to 1h.
	Every time.Duration `yaml:"every"`
}

// UnmarshalYAML sets defaults.
func (s *Slurm) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Slurm
	s.Command, s.Every = "squeue", 15*time.Second
	return unmarshal((*plain)(s))
}

// validate returns an error if the source is not exactly one, or is incomplete.
func (p *Placements) validate() error {
	sources := 0
	for _, given := range []bool{p.File != "", p.Slurm != nil, p.Kubernetes != nil} {
		if given {
			sources++
		}
	}
	switch {
	case sources != 1:
		return errors.New("one of file, slurm and kubernetes is required")
	case p.File == "" && p.Format != "":
		return errors.New("format belongs to a file")
	case p.File != "" && !slices.Contains(jobs.FormatNames(), p.Format):
		return fmt.Errorf("format %q: one of %s is expected", p.Format, strings.Join(jobs.FormatNames(), ", "))
	case p.Slurm != nil && p.Slurm.Command == "":
		return errors.New("slurm.command: a command is required")
	case p.Slurm != nil && (p.Slurm.Every < time.Second || p.Slurm.Every > time.Hour):
		return fmt.Errorf("slurm.every: %v: 1s to 1h0m0s are expected", p.Slurm.Every)
	}
	return nil
}

// Evidence configures the times of the queries. A value of 0 follows from the scrape interval.
type Evidence struct {
	// Profile is where the windows of flows come from: full, from the Prometheus server, or fleet, from the agents.
	Profile string `yaml:"profile" schema:"enum=full|fleet"`
	// Scrape is the scrape interval of /metrics/edges, 100ms to 5m. The analyzer runs one cycle in it.
	Scrape time.Duration `yaml:"scrape_interval"`
	// Ports is the scrape interval of switches and NICs, whose series show causes. The default is scrape_interval.
	Ports time.Duration `yaml:"ports_scrape_interval"`
	// Lag is the age of the window's end. A later scrape must exist. By default it is measured from how late samples arrive.
	Lag time.Duration `yaml:"lag"`
	// MaxLag is the upper bound of a measured lag. 0s means 10 s, or three scrape intervals if these are longer.
	MaxLag time.Duration `yaml:"max_lag"`
	// Delay is the window over which delays are measured.
	Delay time.Duration `yaml:"delay_window"`
	// Hard is the window over which hard losses are counted.
	Hard time.Duration `yaml:"hard_loss_window"`
	// Patience bounds the time of all queries of a cycle together.
	Patience time.Duration `yaml:"patience"`
	// Parallel is the number of concurrent queries.
	Parallel int `yaml:"parallel" schema:"min=1,max=64"`
	// Stall is the share of the window by which a probe loop may be late. Flows of one that is later are excluded.
	Stall float64 `yaml:"stall_ratio" schema:"min=0,max=1"`
	// DetailBelow is the number of directed flows below which every cycle queries all of them.
	DetailBelow int `yaml:"detail_always_below" schema:"min=1"`
	// MostEdges is the number of flows that a cycle queries in its second step.
	MostEdges int `yaml:"most_edges" schema:"min=100"`
	// Round is the time in which every flow is queried. 0s means a minute, or a millisecond a flow if that is longer.
	Round time.Duration `yaml:"round"`
}

// Profiles.
const (
	profileFull  = "full"
	profileFleet = "fleet"
)

// History configures the past from which a start reads baselines.
type History struct {
	// Span is the time that the windows cover, at most 24h. It ends in a calm time.
	Span time.Duration `yaml:"span"`
	// Search is how far before the start a calm time is searched for: 1m to 744h.
	Search time.Duration `yaml:"search"`
}

// DefaultConfig returns the values that hold where a file sets none.
func DefaultConfig() Config {
	two := selection.DefaultOptions()
	return Config{
		Prometheus: Prometheus{Endpoint: Endpoint{Client: config_util.DefaultHTTPClientConfig}, Backend: backendHTTP, Timeout: 5 * time.Second, MaxAnswer: 256 << 20},
		Evidence:   Evidence{Profile: profileFull, Scrape: time.Second, Parallel: 4, DetailBelow: two.MinFlows, MostEdges: two.MaxFlows, Round: two.Round},
		PageNICs:   incident.DefaultPageNICs,
		Steering:   steer.DefaultSettings(),
		History:    History{Span: 10 * time.Minute, Search: 24 * time.Hour},
	}
}

// UnmarshalYAML sets defaults. It takes a function, since decoding a node does not report unknown keys.
func (a *Agents) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Agents
	a.Client = config_util.DefaultHTTPClientConfig
	return unmarshal((*plain)(a))
}

// UnmarshalYAML sets defaults.
func (c *Coordinator) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Coordinator
	c.Client = config_util.DefaultHTTPClientConfig
	return unmarshal((*plain)(c))
}

// UnmarshalYAML sets defaults.
func (s *Switches) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Switches
	s.Client, s.StampPort, s.SourcePort = config_util.DefaultHTTPClientConfig, 862, 49152
	return unmarshal((*plain)(s))
}

// UnmarshalYAML sets defaults.
func (a *Server) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Server
	a.Client = config_util.DefaultHTTPClientConfig
	return unmarshal((*plain)(a))
}

// UnmarshalYAML sets defaults.
func (p *Placements) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Placements
	if err := unmarshal((*plain)(p)); err != nil {
		return err
	}
	if p.File != "" && p.Format == "" {
		p.Format = jobs.FormatPlacement
	}
	return nil
}

// keyError represents an error at a key of the file.
type keyError struct {
	key string // "a.b.c"
	err error
}

func (w *keyError) Error() string { return w.key + ": " + w.err.Error() }
func (w *keyError) Unwrap() error { return w.err }

func keyErrorf(key, format string, args ...any) error {
	return &keyError{key, fmt.Errorf(format, args...)}
}

// LoadConfig reads a configuration and the topology it names. An error names the file,
// the line and the key.
func LoadConfig(file string) (*Config, error) { return Host{}.LoadConfig(file) }

// ReadConfig reads a configuration with the host's defaults, and does not read its topology. Without a file, the defaults
// are all of it. The text is that of the file.
func (h Host) ReadConfig(file string) (c *Config, text []byte, err error) {
	if file != "" || h.Defaults == nil {
		if text, err = os.ReadFile(file); err != nil {
			return nil, nil, fmt.Errorf("configuration: %w", err)
		}
	}
	if c, err = h.parseConfig(text, filepath.Dir(file)); err != nil {
		return nil, nil, withLocation(file, text, err)
	}
	return c, text, nil
}

// LoadConfig reads a configuration as the function LoadConfig does, with the host's defaults.
func (h Host) LoadConfig(file string) (*Config, error) {
	c, b, err := h.ReadConfig(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	sum.Write(b)
	topology, err := os.ReadFile(c.TopologyFile)
	if err != nil {
		return nil, withLocation(file, b, keyErrorf("topology_file", "%w", err))
	}
	sum.Write(topology)
	c.hash = hex.EncodeToString(sum.Sum(nil)[:8])
	t, findings := fabric.ParseTopology(c.TopologyFile, topology)
	if err := findings.Err(); err != nil {
		return nil, err
	}
	c.topology = t
	if err := c.knowsSwitches(); err != nil {
		return nil, withLocation(file, b, err)
	}
	if err := c.applyScope(); err != nil {
		return nil, withLocation(file, b, err)
	}
	return c, nil
}

// parseConfig reads a configuration. Relative names of files in it are relative to dir.
func (h Host) parseConfig(b []byte, dir string) (*Config, error) {
	c := DefaultConfig()
	if h.Defaults != nil {
		h.Defaults(&c)
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("one document is expected")
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.TopologyFile = config_util.JoinDir(dir, c.TopologyFile)
	if c.AuditReport != "" {
		c.AuditReport = config_util.JoinDir(dir, c.AuditReport)
	}
	if c.Maintenance.File != "" {
		c.Maintenance.File = config_util.JoinDir(dir, c.Maintenance.File)
	}
	for i := range c.Jobs {
		j := &c.Jobs[i]
		j.File = config_util.JoinDir(dir, j.File)
		// A command without a directory is searched for in PATH.
		if s := j.Slurm; s != nil && strings.Contains(s.Command, "/") {
			s.Command = config_util.JoinDir(dir, s.Command)
		}
	}
	for _, e := range c.endpointsByKey() {
		e.Client.SetDirectory(dir)
	}
	for i := range c.InfiniBand {
		c.InfiniBand[i].setDirectory(dir)
	}
	c.Steering.SetDirectory(dir)
	for _, a := range c.agentPorts() {
		for _, f := range []*string{&a.CAFile, &a.CertFile, &a.KeyFile} {
			*f = config_util.JoinDir(dir, *f)
		}
	}
	return &c, nil
}

// agentPorts returns how coordinators are reached where they accept agents, by the key in the file.
func (c *Config) agentPorts() map[string]*AgentPort {
	out := map[string]*AgentPort{}
	if c.Asking != nil {
		out["asking"] = c.Asking
	}
	if c.Maintenance.Coordinator != nil {
		out["maintenance.coordinator"] = c.Maintenance.Coordinator
	}
	return out
}

// endpointsByKey returns all endpoints by their key in the file.
func (c *Config) endpointsByKey() map[string]*Endpoint {
	out := map[string]*Endpoint{"prometheus": &c.Prometheus.Endpoint}
	if c.Agents != nil {
		out["agents"] = &c.Agents.Endpoint
		if c.Agents.Coordinator != nil {
			out["agents.coordinator"] = &c.Agents.Coordinator.Endpoint
		}
	}
	if c.Switches != nil {
		out["switches"] = &c.Switches.Endpoint
	}
	if a := c.Maintenance.Alertmanager; a != nil {
		out["maintenance.alertmanager"] = &a.Endpoint
	}
	if k := c.Maintenance.Kubernetes; k != nil {
		out["maintenance.kubernetes"] = &k.Endpoint
	}
	for i := range c.Jobs {
		if k := c.Jobs[i].Kubernetes; k != nil {
			out[fmt.Sprintf("jobs[%d].kubernetes", i)] = &k.Endpoint
		}
	}
	return out
}

// certificates lists the files of certificates of all endpoints' connections. What stands in the configuration itself has
// the name of its file.
func (c *Config) certificates(file string) (out []pki.CertificateFile) {
	add := func(t *config_util.TLSConfig) {
		files := pki.FilesOf(t.CAFile, t.CertFile)
		for i, text := range []string{t.CA, t.Cert} {
			if text != "" {
				files[i].Name, files[i].Text = file, text
			}
		}
		out = append(out, files...)
	}
	for _, a := range c.agentPorts() {
		out = append(out, pki.FilesOf(a.CAFile, a.CertFile)...)
	}
	clients := c.Steering.Clients()
	for i := range c.InfiniBand {
		clients = append(clients, &c.InfiniBand[i].Client)
	}
	for _, e := range c.endpointsByKey() {
		clients = append(clients, &e.Client)
	}
	for _, client := range clients {
		add(&client.TLSConfig)
		if o := client.OAuth2; o != nil {
			add(&o.TLSConfig)
		}
	}
	return out
}

// urlPlaceholders holds the placeholder in the URL of an endpoint that stands for several servers.
var urlPlaceholders = map[string]string{"agents": "{node}", "switches": "{switch}"}

func (c *Config) validate() error {
	if c.TopologyFile == "" {
		return keyErrorf("topology_file", "a topology is required")
	}
	if c.Agents == nil && c.Switches == nil && len(c.InfiniBand) == 0 {
		return keyErrorf("agents", "agents, switches or infiniband are required: paths come from them")
	}
	if err := c.validateSubnets(); err != nil {
		return err
	}
	endpoints := c.endpointsByKey()
	for _, key := range slices.Sorted(maps.Keys(endpoints)) {
		if err := endpoints[key].validate(key, urlPlaceholders[key], key == "agents" && c.Agents.Coordinator != nil); err != nil {
			return err
		}
	}
	if b := c.Prometheus.Backend; b != backendHTTP && b != backendRead {
		return keyErrorf("prometheus.backend", "%q: %s or %s are expected", b, backendHTTP, backendRead)
	}
	if u := c.Prometheus.ExternalURL; u != "" {
		if _, err := evidence.ServerURL(u); err != nil {
			return keyErrorf("prometheus.external_url", "%w", err)
		}
	}
	if t := c.Prometheus.Timeout; t < 100*time.Millisecond || t > 5*time.Minute {
		return keyErrorf("prometheus.timeout", "%v: 100ms to 5m are expected", t)
	}
	if n := c.Prometheus.MaxAnswer; n < 1<<20 {
		return keyErrorf("prometheus.max_answer_bytes", "%d: at least %d are expected", n, 1<<20)
	}
	for i, j := range c.Jobs {
		if err := j.validate(); err != nil {
			return keyErrorf("jobs", "entry %d: %w", i+1, err)
		}
	}
	ports := c.agentPorts()
	for _, key := range slices.Sorted(maps.Keys(ports)) {
		if err := ports[key].validate(key); err != nil {
			return err
		}
	}
	if c.PageNICs < 1 {
		return keyErrorf("page_above_nics", "%d: at least 1 is expected", c.PageNICs)
	}
	if err := c.validateSteering(); err != nil {
		return err
	}
	if c.Collectives.Follow && c.Agents == nil {
		return keyErrorf("agents", "required by collectives.follow: the records come from the agents")
	}
	if err := c.Scope.validate(); err != nil {
		return err
	}
	if err := c.Evidence.validate(); err != nil {
		return err
	}
	if c.Evidence.Profile == profileFleet && c.Agents == nil {
		return keyErrorf("agents", "required by evidence.profile: %s, since the windows of flows come from the agents", profileFleet)
	}
	if h := c.History; h.Span < 10*c.Evidence.Scrape || h.Span > 24*time.Hour {
		return keyErrorf("history.span", "%v: %v to 24h0m0s are expected", h.Span, 10*c.Evidence.Scrape)
	}
	if h := c.History; h.Search < time.Minute || h.Search > 31*24*time.Hour {
		return keyErrorf("history.search", "%v: 1m0s to 744h0m0s are expected", h.Search)
	}
	c.settings = c.Evidence.evidenceSettings()
	c.settings.Past.Span, c.settings.Past.Search = c.History.Span, c.History.Search
	for _, name := range slices.Sorted(maps.Keys(c.Queries)) {
		if err := c.settings.CheckOverride(name, c.Queries[name]); err != nil {
			return &keyError{"queries." + name, err}
		}
	}
	c.settings.Override = c.Queries
	return nil
}

// validateSteering returns an error that names the key of steering that is wrong.
func (c *Config) validateSteering() error {
	err := c.Steering.Validate()
	var f *steer.FieldError
	if errors.As(err, &f) {
		return &keyError{"steering." + f.Field, f.Err}
	}
	if err == nil && c.Steering.Mode != steer.ModeOff && !c.Collectives.Follow {
		return keyErrorf("steering.mode", "%s needs collectives.follow: true, since it is about nodes that jobs wait for", c.Steering.Mode)
	}
	return err
}

func (e *Endpoint) validate(key, place string, elsewhere bool) error {
	switch {
	case elsewhere && e.URL != "":
		return keyErrorf(key+".url", "either this or coordinator is expected")
	case !elsewhere && e.URL == "":
		return keyErrorf(key+".url", "a URL is required")
	case !elsewhere && !strings.Contains(e.URL, place):
		return keyErrorf(key+".url", "%q: %s is expected in it", e.URL, place)
	}
	if !elsewhere {
		stand := e.URL
		if place != "" {
			stand = strings.ReplaceAll(e.URL, place, "x")
		}
		if _, err := evidence.ServerURL(stand); err != nil {
			return keyErrorf(key+".url", "%w", err)
		}
	}
	if err := e.Client.Validate(); err != nil {
		return keyErrorf(key, "%w", err)
	}
	return nil
}

func (e *Evidence) validate() error {
	for _, d := range []struct {
		key    string
		v      time.Duration
		or0    bool
		lo, hi time.Duration
	}{
		{"scrape_interval", e.Scrape, false, 100 * time.Millisecond, 5 * time.Minute},
		{"ports_scrape_interval", e.Ports, true, 100 * time.Millisecond, 5 * time.Minute},
		{"lag", e.Lag, true, e.Scrape, time.Hour},
		{"max_lag", e.MaxLag, true, e.Scrape, time.Hour},
		{"delay_window", e.Delay, true, e.Scrape, time.Hour},
		{"hard_loss_window", e.Hard, true, e.Scrape, time.Hour},
		{"patience", e.Patience, true, 100 * time.Millisecond, time.Hour},
	} {
		if unset := d.or0 && d.v == 0; !unset && (d.v < d.lo || d.v > d.hi) {
			return keyErrorf("evidence."+d.key, "%v: %v to %v are expected", d.v, d.lo, d.hi)
		}
	}
	switch {
	case e.Profile != profileFull && e.Profile != profileFleet:
		return keyErrorf("evidence.profile", "%q: %s or %s is expected", e.Profile, profileFull, profileFleet)
	case e.Profile == profileFleet && e.Scrape != time.Second:
		return keyErrorf("evidence.scrape_interval", "%v: profile %s needs %v, the length of the seconds of the agents", e.Scrape, profileFleet, time.Second)
	case e.Profile == profileFleet && (e.Delay != 0 && e.Delay != window.Span || e.Hard != 0 && e.Hard != time.Second):
		return keyErrorf("evidence", "delay_window and hard_loss_window cannot be set with profile %s: windows of the agents have %v, and count hard losses in the last second", profileFleet, window.Span)
	}
	if e.Parallel < 1 || e.Parallel > 64 {
		return keyErrorf("evidence.parallel", "%d: 1 to 64 are expected", e.Parallel)
	}
	if e.DetailBelow < 1 {
		return keyErrorf("evidence.detail_always_below", "%d: at least 1 is expected", e.DetailBelow)
	}
	if e.MostEdges < 100 {
		return keyErrorf("evidence.most_edges", "%d: at least 100 are expected", e.MostEdges)
	}
	if e.Round != 0 && (e.Round < 10*e.Scrape || e.Round > time.Hour) {
		return keyErrorf("evidence.round", "%v: %v to 1h0m0s are expected, or 0 for what suits the number of flows", e.Round, 10*e.Scrape)
	}
	if !(e.Stall >= 0 && e.Stall <= 1) {
		return keyErrorf("evidence.stall_ratio", "%v: 0 to 1 are expected", e.Stall)
	}
	return nil
}

// maxLag returns the upper bound of a measured lag.
func (e *Evidence) maxLag() time.Duration { return cmp.Or(e.MaxLag, max(10*time.Second, 3*e.Scrape)) }

func (e *Evidence) evidenceSettings() evidence.Settings {
	s := evidence.SettingsFor(e.Scrape)
	for _, d := range []struct {
		to *time.Duration
		v  time.Duration
	}{{&s.Lag, e.Lag}, {&s.Delay, e.Delay}, {&s.Hard, e.Hard}, {&s.Patience, e.Patience}} {
		if d.v != 0 {
			*d.to = d.v
		}
	}
	if e.Stall != 0 {
		s.Stall = e.Stall
	}
	s.Parallel = e.Parallel
	return s
}

// knowsSwitches returns an error if a configured switch is not in the topology. It fills in all switches if none is named.
func (c *Config) knowsSwitches() error {
	if c.Switches == nil {
		return nil
	}
	all := map[string]bool{}
	for i := range c.topology.Switches {
		all[c.topology.Switches[i].Name] = true
	}
	for _, name := range c.Switches.Names {
		if !all[name] {
			return keyErrorf("switches.names", "%q: the topology has no such switch", name)
		}
	}
	if len(c.Switches.Names) == 0 {
		c.Switches.Names = slices.Sorted(maps.Keys(all))
	}
	return nil
}

// Messages of the YAML library that name Go types, which are of no use to readers of configurations.
var (
	unknownKey = regexp.MustCompile(`line (\d+): field (\S+) not found in type \S+`)
	atLine     = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)`)
	notOfType  = regexp.MustCompile(`cannot unmarshal (.*) into (?:\*?\S*\.)?(\S+)$`)
)

// withLocation returns an error with the file and line that it is about.
func withLocation(file string, b []byte, err error) error {
	var w *keyError
	var types *yaml.TypeError
	var text string
	switch {
	case errors.As(err, &w):
		return fmt.Errorf("%s:%d: %w", file, lineOf(b, w.key), err)
	case errors.As(err, &types) && len(types.Errors) > 0:
		text = types.Errors[0]
	default:
		text = err.Error()
	}
	if m := unknownKey.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s:%s: %s: there is no such key here", file, m[1], m[2])
	}
	if m := atLine.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s:%s: %s", file, m[1], notOfType.ReplaceAllString(m[2], "$1, where $2 is expected"))
	}
	return fmt.Errorf("%s: %s", file, text)
}

// lineOf returns the line of a key such as a.b[0].c, or of the innermost existing key that would hold it.
func lineOf(b []byte, key string) int {
	var doc yaml.Node
	if yaml.Unmarshal(b, &doc) != nil || len(doc.Content) == 0 {
		return 1
	}
	n, line := doc.Content[0], 1
	for _, part := range strings.FieldsFunc(key, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		found := false
		if i, err := strconv.Atoi(part); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			n, line, found = n.Content[i], n.Content[i].Line, true
		}
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == part {
				n, line, found = n.Content[i+1], n.Content[i].Line, true
				break
			}
		}
		if !found {
			break
		}
	}
	return line
}
