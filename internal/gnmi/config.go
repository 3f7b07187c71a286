package gnmi

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/gnmi/preset"
	"github.com/graylink/graylink/internal/pki"
)

// Config configures which switches are subscribed to, and how.
type Config struct {
	// Preset is the name of the vendor's preset (preset.Names).
	Preset string `mapstructure:"preset"`
	// Targets are the switches.
	Targets []Target `mapstructure:"targets"`
	// Mode is stream, once or poll. With once, a new subscription follows after every Interval.
	Mode string `mapstructure:"mode"`
	// Interval is the time between samples, and between polls.
	Interval time.Duration `mapstructure:"interval"`
	// Encoding overrides the preset's. If it is empty, the preset's preferred one of those that the switch
	// offers is used.
	Encoding string `mapstructure:"encoding"`
	TLS      TLS    `mapstructure:"tls"`
	// UsernameFile and PasswordFile, or TokenFile (a bearer token), hold credentials. They are read for every
	// connection.
	UsernameFile string `mapstructure:"username_file"`
	PasswordFile string `mapstructure:"password_file"`
	TokenFile    string `mapstructure:"token_file"`
	// Paths are added to the preset's.
	Paths []preset.UserPath `mapstructure:"paths"`
	// Routes subscribes to forwarding tables as well, without their prefixes.
	Routes bool `mapstructure:"routes"`
	// Sessions subscribes to sessions of BGP and BFD as well, and to the addresses of ports.
	Sessions bool `mapstructure:"sessions"`
	// Timeout bounds connecting and Capabilities.
	Timeout time.Duration `mapstructure:"timeout"`
	// BackoffMin and BackoffMax bound the wait before a session is tried again.
	BackoffMin time.Duration `mapstructure:"backoff_min"`
	BackoffMax time.Duration `mapstructure:"backoff_max"`
	// Queue is the number of messages of all targets that may wait to be decoded. QueueWait is how long a
	// session waits for room before it drops the message; meanwhile it does not read, which slows the switch
	// down.
	Queue     int           `mapstructure:"queue"`
	QueueWait time.Duration `mapstructure:"queue_wait"`
	// MaxSeries bounds the number of series of a target.
	MaxSeries int `mapstructure:"max_series"`
	// DialOut configures switches that connect by themselves.
	DialOut DialOut `mapstructure:"dial_out"`
}

// Target represents a switch.
type Target struct {
	Address string `mapstructure:"address"` // host:port
	Name    string `mapstructure:"name"`    // the label switch; empty means the address' host
}

// TLS configures how the switch and this process are authenticated.
type TLS struct {
	// Insecure turns TLS off.
	Insecure bool `mapstructure:"insecure"`
	// SkipVerify turns off the verification of the switch's certificate.
	SkipVerify bool   `mapstructure:"insecure_skip_verify"`
	CA         string `mapstructure:"ca_file"` // empty means the system's
	Cert       string `mapstructure:"cert_file"`
	Key        string `mapstructure:"key_file"`
	// Server is the name in the switch's certificate; empty means the address' host.
	Server string `mapstructure:"server_name"`
}

// DefaultConfig returns a configuration without targets.
func DefaultConfig() Config {
	return Config{Preset: "openconfig", Mode: "stream", Interval: 10 * time.Second, Timeout: 10 * time.Second, BackoffMin: time.Second,
		BackoffMax: time.Minute, Queue: 1024, QueueWait: time.Second, MaxSeries: 200_000,
		DialOut: DialOut{MaxTargets: 1024, MaxConnections: 4096, MaxStreams: 64, MaxMessage: maxMessage}}
}

var encodings = []string{"PROTO", "JSON_IETF", "JSON"}

// certificates lists the files of certificates.
func (c *Config) certificates() []pki.CertificateFile {
	return append(pki.FilesOf(c.TLS.CA, c.TLS.Cert), pki.FilesOf(c.DialOut.TLS.ClientCA, c.DialOut.TLS.Cert)...)
}

// Validate returns an error that names the first key with a wrong value.
func (c *Config) Validate() error {
	wrong := func(key, format string, args ...any) error { return fmt.Errorf(key+": "+format, args...) }
	if preset.ByName(c.Preset) == nil {
		return wrong("preset", "one of %s is expected, not %q", strings.Join(preset.Names(), ", "), c.Preset)
	}
	if len(c.Targets) == 0 && c.DialOut.Listen == "" {
		return wrong("targets", "a list of switches is expected, as {address: leaf1:9339}, or dial_out.listen")
	}
	names := map[string]int{}
	for i, t := range c.Targets {
		host, port, err := net.SplitHostPort(t.Address)
		if err != nil || host == "" || port == "" {
			return wrong(fmt.Sprintf("targets[%d].address", i), "host:port is expected, not %q", t.Address)
		}
		if name := t.switchName(); !validSwitchName(name) {
			return wrong(fmt.Sprintf("targets[%d].name", i), "a switch's name holds no /, :, >, @, # or white space: %q", name)
		} else if first, twice := names[name]; twice {
			return wrong(fmt.Sprintf("targets[%d].name", i), "%q is the name of targets[%d] as well", name, first)
		} else {
			names[name] = i
		}
	}
	if err := c.DialOut.validate(names); err != nil {
		return err
	}
	if !slices.Contains([]string{"stream", "once", "poll"}, c.Mode) {
		return wrong("mode", "stream, once or poll is expected, not %q", c.Mode)
	}
	if c.Interval < time.Second || c.Interval > time.Hour {
		return wrong("interval", "1s to 1h is expected, not %v", c.Interval)
	}
	if c.Encoding != "" && !slices.Contains(encodings, c.Encoding) {
		return wrong("encoding", "one of %s is expected, not %q", strings.Join(encodings, ", "), c.Encoding)
	}
	if c.TLS.Insecure && (c.TLS.CA != "" || c.TLS.Cert != "" || c.TLS.Key != "" || c.TLS.Server != "" || c.TLS.SkipVerify) {
		return wrong("tls.insecure", "no other key of tls has an effect without TLS")
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return wrong("tls", "cert_file and key_file are expected together")
	}
	if (c.UsernameFile == "") != (c.PasswordFile == "") {
		return wrong("username_file", "username_file and password_file are expected together")
	}
	if c.TokenFile != "" && c.PasswordFile != "" {
		return wrong("token_file", "a token, or a name and a password, is expected, not both")
	}
	if c.TLS.Insecure && (c.TokenFile != "" || c.PasswordFile != "") {
		return wrong("tls.insecure", "credentials are sent over TLS only")
	}
	for _, b := range []struct {
		key         string
		v, from, to time.Duration
	}{
		{"timeout", c.Timeout, 100 * time.Millisecond, 5 * time.Minute},
		{"backoff_min", c.BackoffMin, 10 * time.Millisecond, time.Hour},
		{"backoff_max", c.BackoffMax, c.BackoffMin, time.Hour},
		{"queue_wait", c.QueueWait, 0, time.Minute},
	} {
		if b.v < b.from || b.v > b.to {
			return wrong(b.key, "%v to %v is expected, not %v", b.from, b.to, b.v)
		}
	}
	if c.Queue < 1 || c.Queue > 1<<20 {
		return wrong("queue", "1 to 1048576 messages are expected, not %d", c.Queue)
	}
	if c.MaxSeries < 1 || c.MaxSeries > 1<<24 {
		return wrong("max_series", "1 to 16777216 are expected, not %d", c.MaxSeries)
	}
	if c.Routes && !slices.Contains(preset.WithRoutes, c.Preset) {
		return wrong("routes", "they are known of the presets %s only, not of %q", strings.Join(preset.WithRoutes, ", "), c.Preset)
	}
	if c.Sessions && !slices.Contains(preset.WithSessions, c.Preset) {
		return wrong("sessions", "they are known of the presets %s only, not of %q", strings.Join(preset.WithSessions, ", "), c.Preset)
	}
	rules, err := c.allRules()
	if err != nil {
		return err
	}
	if _, err := preset.CompileRules(rules); err != nil {
		return wrong("paths", "%v", err)
	}
	return nil
}

// allRules returns the preset's rules and the user's.
func (c *Config) allRules() ([]preset.Rule, error) {
	rules := slices.Clone(preset.ByName(c.Preset).Rules)
	if c.Routes {
		rules = append(rules, preset.RouteRules()...)
	}
	if c.Sessions {
		rules = append(rules, preset.SessionRules(c.Preset)...)
	}
	for i, u := range c.Paths {
		r, err := u.ToRule()
		if err != nil {
			return nil, fmt.Errorf("paths[%d]: %w", i, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// targetLimit returns the largest possible number of targets.
func (c *Config) targetLimit() int {
	switch d := &c.DialOut; {
	case d.Listen == "":
		return len(c.Targets)
	case len(d.Targets) > 0:
		return len(c.Targets) + len(d.Targets)
	default:
		return len(c.Targets) + d.MaxTargets
	}
}

// switchName returns the value of the target's label switch.
func (t Target) switchName() string {
	if t.Name != "" {
		return t.Name
	}
	host, _, _ := net.SplitHostPort(t.Address)
	return strings.ReplaceAll(host, ":", "_") // of an IPv6 address
}

// readSecret reads a file with one line. Its error never contains the line.
func readSecret(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(b))
	if s == "" || strings.ContainsAny(s, "\r\n") {
		return "", fmt.Errorf("%s: one line is expected", file)
	}
	return s, nil
}
