package csigreceiver

import (
	"fmt"
	"net/netip"
	"regexp"
	"time"
)

// Bounds of the numbers of a Config.
const (
	leastInterval = time.Second
	mostInterval  = time.Hour
	mostFlows     = 1 << 16
	mostLocators  = 1 << 20
	leastBuffer   = 1 << 18
	mostBuffer    = 1 << 30
)

// Config configures the receiver.
type Config struct {
	// Profile is the file of the domain's profile.
	Profile string `mapstructure:"profile"`
	// Interfaces are those whose tagged frames are read. Either they or File are required.
	Interfaces []string `mapstructure:"interfaces"`
	// File is a pcap or pcapng file that is read once, from its beginning to its end.
	File string `mapstructure:"file"`
	// Topology is a topology file, by which addresses are NICs.
	Topology string `mapstructure:"topology"`
	// Senders are networks whose tags are used as well. Their addresses are not NICs of the topology.
	Senders []string `mapstructure:"senders"`
	// Node is the name of this node, and the host's name by default.
	Node string `mapstructure:"node"`
	// StampPort is the UDP port of reflectors, and SourcePort that of flow 0 of senders.
	StampPort  int `mapstructure:"stamp_port"`
	SourcePort int `mapstructure:"source_port"`
	// Flows and NewLocators bound what is observed: flows, and new locators of flows in a minute.
	Flows       int `mapstructure:"flows"`
	NewLocators int `mapstructure:"new_locators"`
	// BufferBytes is the size of the kernel's buffer of an interface and a format.
	BufferBytes int `mapstructure:"buffer_bytes"`
	// Interval is the time between two times at which metrics are passed on, by the clock of the capture.
	Interval time.Duration `mapstructure:"interval"`
}

// interfaceForm is what a name of an interface may be: dev_valid_name() in net/core/dev.c.
var interfaceForm = regexp.MustCompile(`^[^\s/:]{1,15}$`)

// Validate returns an error that names the first key with a wrong value.
func (c *Config) Validate() error {
	switch {
	case c.Profile == "":
		return fmt.Errorf("profile: the file of the domain's profile is expected")
	case len(c.Interfaces) == 0 && c.File == "":
		return fmt.Errorf("interfaces: one or more are expected, or file")
	case len(c.Interfaces) > 0 && c.File != "":
		return fmt.Errorf("file: it cannot be combined with interfaces")
	case c.Topology == "" && len(c.Senders) == 0:
		return fmt.Errorf("topology: a topology file is expected, or senders: tags of others are not used")
	}
	seen := map[string]bool{}
	for i, name := range c.Interfaces {
		if !interfaceForm.MatchString(name) || seen[name] {
			return fmt.Errorf("interfaces[%d]: %q: the name of another interface is expected", i, name)
		}
		seen[name] = true
	}
	for i, s := range c.Senders {
		if _, err := netip.ParsePrefix(s); err != nil {
			return fmt.Errorf("senders[%d]: %q: a network such as 10.0.0.0/8 is expected", i, s)
		}
	}
	for _, n := range []struct {
		key         string
		value       int
		least, most int
	}{
		{"stamp_port", c.StampPort, 1, 65535}, {"source_port", c.SourcePort, 1, 65535}, {"flows", c.Flows, 1, mostFlows},
		{"new_locators", c.NewLocators, 1, mostLocators}, {"buffer_bytes", c.BufferBytes, leastBuffer, mostBuffer},
	} {
		if n.value < n.least || n.value > n.most {
			return fmt.Errorf("%s: a number from %d to %d is expected, not %d", n.key, n.least, n.most, n.value)
		}
	}
	if c.Interval < leastInterval || c.Interval > mostInterval {
		return fmt.Errorf("interval: a time from %s to %s is expected, not %s", leastInterval, mostInterval, c.Interval)
	}
	return nil
}
