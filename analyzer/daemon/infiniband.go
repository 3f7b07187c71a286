package daemon

import (
	"fmt"
	"time"

	config_util "github.com/prometheus/common/config"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/analyzer/tracing"
	"github.com/graylink/graylink/internal/ibsubnet"
)

// Sources of a subnet.
const (
	sourceDevice = "device"
	sourceAgent  = "agent"
	sourceUFM    = "ufm"
	sourceFiles  = "files"
)

// Subnet configures where the forwarding tables of an InfiniBand subnet are read.
type Subnet struct {
	// Name is the name of the subnet.
	Name string `yaml:"subnet" schema:"required"`
	// Source is where the tables are read: device, a port of this host; agent, "graylink ib serve" or the Collector's receiver
	// on another host; files; or ufm, UFM's inventory with the tables of lfts_file.
	Source string `yaml:"source" schema:"required,enum=device|agent|ufm|files"`
	// Device is the port of this host: umad0, mlx5_0, or mlx5_0.2 for its second port.
	Device string `yaml:"device"`
	// MKeyFile is a file with the management key of the subnet in hexadecimal.
	MKeyFile string `yaml:"m_key_file"`
	// Timeout bounds the time of one attempt of a query of a device: 1ms to 1m.
	Timeout time.Duration `yaml:"timeout"`
	// URLs are the base URLs of agents. The first that answers is used until it does not.
	URLs []string `yaml:"urls" schema:"form=url"`
	// NetDiscover is the output file of ibnetdiscover.
	NetDiscover string `yaml:"ibnetdiscover_file"`
	// LFTs is the output file of dump_lfts.
	LFTs string `yaml:"lfts_file"`
	// Adaptive is the output file ibdiagnet2.far of ibdiagnet, for any source: where switches with adaptive routing choose between ports.
	Adaptive string `yaml:"adaptive_file"`
	// OpenSMLog is the log of OpenSM, if it runs on this host. The changes that it reports end the paths at once.
	OpenSMLog string `yaml:"opensm_log"`
	// StaleAfter is the age from which paths are stale if nothing confirms them any more. Verdicts do not rest on them then. The
	// default is 10 seconds for devices and agents, 1 minute for ufm and 15 minutes for files.
	StaleAfter time.Duration `yaml:"stale_after"`
	// UFM is the UFM whose events end the paths, for any source. Source ufm reads its inventory as well.
	UFM    *UFM                         `yaml:"ufm"`
	Client config_util.HTTPClientConfig `yaml:",inline"`
}

// UnmarshalYAML sets defaults.
func (s *Subnet) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Subnet
	s.Client, s.Timeout = config_util.DefaultHTTPClientConfig, 200*time.Millisecond
	return unmarshal((*plain)(s))
}

// validate returns an error that names the key below that of the subnet.
func (s *Subnet) validate(key string) error {
	given := map[string]bool{"device": s.Device != "", "m_key_file": s.MKeyFile != "", "urls": len(s.URLs) > 0, "ibnetdiscover_file": s.NetDiscover != "", "lfts_file": s.LFTs != "", "opensm_log": s.OpenSMLog != "", "ufm": s.UFM != nil}
	var need, may []string
	switch s.Source {
	case sourceDevice:
		need, may = []string{"device"}, []string{"m_key_file", "opensm_log", "ufm"}
	case sourceAgent:
		need, may = []string{"urls"}, []string{"ufm"}
	case sourceUFM:
		need, may = []string{"ufm"}, []string{"lfts_file"}
	case sourceFiles:
		need, may = []string{"ibnetdiscover_file", "lfts_file"}, []string{"opensm_log", "ufm"}
	default:
		return keyErrorf(key+".source", "%q: %s, %s, %s or %s is expected", s.Source, sourceDevice, sourceAgent, sourceUFM, sourceFiles)
	}
	if s.Name == "" {
		return keyErrorf(key+".subnet", "a name is required")
	}
	for _, k := range need {
		if !given[k] {
			return keyErrorf(key+"."+k, "required by source: %s", s.Source)
		}
		delete(given, k)
	}
	for _, k := range may {
		delete(given, k)
	}
	for _, k := range []string{"device", "m_key_file", "urls", "ibnetdiscover_file", "lfts_file", "opensm_log"} {
		if given[k] {
			return keyErrorf(key+"."+k, "it does not belong to source: %s", s.Source)
		}
	}
	if s.Timeout < time.Millisecond || s.Timeout > time.Minute {
		return keyErrorf(key+".timeout", "%v: 1ms to 1m0s are expected", s.Timeout)
	}
	if s.StaleAfter < 0 || s.StaleAfter > 24*time.Hour {
		return keyErrorf(key+".stale_after", "%v: 0s to 24h0m0s are expected", s.StaleAfter)
	}
	for i, u := range s.URLs {
		if _, err := evidence.ServerURL(u); err != nil {
			return keyErrorf(fmt.Sprintf("%s.urls[%d]", key, i), "%w", err)
		}
	}
	if err := s.Client.Validate(); err != nil {
		return keyErrorf(key, "%w", err)
	}
	if s.UFM == nil {
		return nil
	}
	return s.UFM.validate(key + ".ufm")
}

// validateSubnets returns an error that names the first key that is wrong.
func (c *Config) validateSubnets() error {
	names := map[string]bool{}
	for i := range c.InfiniBand {
		s := &c.InfiniBand[i]
		key := fmt.Sprintf("infiniband[%d]", i)
		if err := s.validate(key); err != nil {
			return err
		}
		if names[s.Name] {
			return keyErrorf(key+".subnet", "%q: another subnet has this name", s.Name)
		}
		names[s.Name] = true
	}
	return nil
}

// setDirectory makes relative names of files relative to dir.
func (s *Subnet) setDirectory(dir string) {
	files := []*string{&s.MKeyFile, &s.NetDiscover, &s.LFTs, &s.Adaptive, &s.OpenSMLog}
	if s.UFM != nil {
		files = append(files, s.UFM.files()...)
	}
	for _, f := range files {
		if *f != "" {
			*f = config_util.JoinDir(dir, *f)
		}
	}
	s.Client.SetDirectory(dir)
}

// newSource returns the source of the subnet, with the choices of its switches. Nothing is opened yet.
func (s *Subnet) newSource(host Host) (ibsubnet.Source, error) {
	source, err := s.newTableSource(host)
	if err == nil && s.Adaptive != "" {
		source = &ibsubnet.Adaptive{Source: source, File: s.Adaptive, Writing: ibsubnet.LongestWriting}
	}
	return source, err
}

// newTableSource returns the source of the forwarding tables.
func (s *Subnet) newTableSource(host Host) (ibsubnet.Source, error) {
	events, err := s.UFM.newEvents()
	if err != nil {
		return nil, err
	}
	var source ibsubnet.Source
	switch s.Source {
	case sourceUFM:
		return &ibsubnet.UFM{Events: events, LFTs: s.LFTs, InventoryInterval: s.UFM.InventoryInterval}, nil
	case sourceFiles:
		return &ibsubnet.Files{NetDiscover: s.NetDiscover, LFTs: s.LFTs, Log: s.OpenSMLog, Events: events}, nil
	case sourceDevice:
		source = &ibsubnet.Device{Name: s.Device, MKeyFile: s.MKeyFile, Timeout: s.Timeout, Log: s.OpenSMLog}
	default:
		client, err := host.newClient(&Endpoint{Client: s.Client})
		if err != nil {
			return nil, err
		}
		source = &ibsubnet.Agents{Client: client, URLs: s.URLs}
	}
	if events == nil {
		return source, nil
	}
	return &ibsubnet.Guarded{Source: source, Events: events}, nil
}

// staleAfter returns the age from which paths are stale.
func (s *Subnet) staleAfter() time.Duration {
	switch {
	case s.StaleAfter > 0:
		return s.StaleAfter
	case s.Source == sourceFiles:
		return 15 * time.Minute
	case s.Source == sourceUFM:
		return time.Minute
	}
	return 10 * time.Second
}

// newSubnets returns the subnets of the configuration.
func (c *Config) newSubnets(host Host) (out []tracing.Subnet, err error) {
	for i := range c.InfiniBand {
		s := &c.InfiniBand[i]
		source, err := s.newSource(host)
		if err != nil {
			return nil, fmt.Errorf("infiniband: %s: %w", s.Name, err)
		}
		out = append(out, tracing.Subnet{Source: source, StaleAfter: s.staleAfter(), State: &ibsubnet.State{Subnet: s.Name, StaleAfter: s.staleAfter()}})
	}
	return out, nil
}

// DescribeSubnets returns a line for each InfiniBand subnet, which says where it is read.
func (c *Config) DescribeSubnets() (out []string, err error) {
	subnets, err := c.newSubnets(Host{})
	for _, s := range subnets {
		out = append(out, fmt.Sprintf("infiniband: %s is read from %s; paths are stale after %v", s.State.Subnet, s.Source.Origin(), s.StaleAfter))
	}
	return out, err
}
