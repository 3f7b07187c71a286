package steer

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	config_util "github.com/prometheus/common/config"
)

// Mode is how far steering goes.
type Mode string

// The modes.
const (
	ModeOff    Mode = "off"
	ModeDryRun Mode = "dry_run" // decisions are written to the audit log, and nothing is done
	ModeAct    Mode = "act"
)

// Settings configures what is done about the nodes that jobs wait for. The default is that nothing is done.
type Settings struct {
	// Mode is how far it goes: off, dry_run, which only writes what would be done to the audit log, or act.
	Mode Mode `yaml:"mode" schema:"enum=off|dry_run|act"`
	// AuditFile is the file of JSON lines that has every decision. It is required for dry_run and act.
	AuditFile string `yaml:"audit_file"`
	// Leader is how it is decided which of several analyzers acts: sole, if only one analyzer has mode act, or lease. It is
	// required for act.
	Leader string `yaml:"leader" schema:"enum=sole|lease"`
	// Lease is the Lease of Kubernetes by which one of several analyzers acts.
	Lease *LeaseSettings `yaml:"lease"`
	// TrustedAccounts are the accounts whose jobs write records that count as a second witness.
	TrustedAccounts []string `yaml:"trusted_accounts"`
	// Webhook is a server that is sent each action.
	Webhook *WebhookSettings `yaml:"webhook"`
	// Kubernetes is the API server at which nodes are cordoned.
	Kubernetes *CordonSettings `yaml:"kubernetes"`
	// Slurm is the slurmrestd at which nodes are drained.
	Slurm *DrainSettings `yaml:"slurm"`
}

// Ways to decide which analyzer acts.
const (
	leaderSole  = "sole"
	leaderLease = "lease"
)

// LeaseSettings configures a Lease of Kubernetes. The analyzer needs the rights to get, create and patch it.
type LeaseSettings struct {
	// Kubeconfig is the file with the address and credentials of the API server. The default is the pod's service account.
	Kubeconfig string `yaml:"kubeconfig"`
	// Namespace is the namespace of the Lease.
	Namespace string `yaml:"namespace" schema:"required"`
	// Name is the name of the Lease.
	Name string `yaml:"name" schema:"required"`
}

// Target is a server and the configuration of its HTTP client, which has the keys of Prometheus. Redirects are not followed.
type Target struct {
	// URL is the address of the server, without credentials and parameters: https, or http on a loopback address.
	URL    string                       `yaml:"url" schema:"form=url"`
	Client config_util.HTTPClientConfig `yaml:",inline"`
	// Timeout bounds the time of one request: 100ms to 30s. A request that fails is repeated twice.
	Timeout time.Duration `yaml:"timeout"`
}

// WebhookSettings configures a server that is sent each action.
type WebhookSettings struct {
	Target `yaml:",inline" schema:"required=url"`
	// SecretFile has the secret that signs the requests, of at least 32 octets. It is read again for each request.
	SecretFile string `yaml:"secret_file" schema:"required"`
}

// CordonSettings configures an API server of Kubernetes.
type CordonSettings struct {
	Target `yaml:",inline" schema:"required=url"`
	// Taint also taints the nodes with graylink.io/steering=suspect:NoSchedule.
	Taint bool `yaml:"taint"`
}

// DrainSettings configures a slurmrestd. Its client needs a token of a user that may change nodes: by http_headers, or by
// authorization.
type DrainSettings struct {
	Target `yaml:",inline" schema:"required=url"`
	// Version is the version of the API: v0.0.43 to v0.0.46.
	Version string `yaml:"version" schema:"required,enum=v0.0.43|v0.0.44|v0.0.45|v0.0.46"`
}

// slurmVersions are the versions of slurmrestd's API that are used.
var slurmVersions = []string{"v0.0.43", "v0.0.44", "v0.0.45", "v0.0.46"}

// defaultTimeout bounds the time of a request where the file sets none.
const defaultTimeout = 5 * time.Second

// DefaultSettings returns the settings of a file that has none.
func DefaultSettings() Settings { return Settings{Mode: ModeOff} }

func defaultTarget() Target {
	return Target{Client: config_util.DefaultHTTPClientConfig, Timeout: defaultTimeout}
}

// UnmarshalYAML sets defaults. It takes a function, since decoding a node does not report unknown keys.
func (w *WebhookSettings) UnmarshalYAML(unmarshal func(any) error) error {
	type plain WebhookSettings
	w.Target = defaultTarget()
	return unmarshal((*plain)(w))
}

// UnmarshalYAML sets defaults.
func (c *CordonSettings) UnmarshalYAML(unmarshal func(any) error) error {
	type plain CordonSettings
	c.Target = defaultTarget()
	return unmarshal((*plain)(c))
}

// UnmarshalYAML sets defaults.
func (d *DrainSettings) UnmarshalYAML(unmarshal func(any) error) error {
	type plain DrainSettings
	d.Target = defaultTarget()
	return unmarshal((*plain)(d))
}

// FieldError is an error of a setting.
type FieldError struct {
	Field string // its key, such as webhook.url
	Err   error
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns the error without the field.
func (e *FieldError) Unwrap() error { return e.Err }

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{field, fmt.Errorf(format, args...)}
}

// Validate returns a FieldError if the settings are invalid or incomplete.
func (s *Settings) Validate() error {
	switch s.Mode {
	case ModeOff, ModeDryRun, ModeAct:
	default:
		return fieldErrorf("mode", "%q: off, dry_run or act is expected", s.Mode)
	}
	switch {
	case s.Mode != ModeOff && s.AuditFile == "":
		return fieldErrorf("mode", "%s needs audit_file", s.Mode)
	case s.Leader != "" && s.Leader != leaderSole && s.Leader != leaderLease:
		return fieldErrorf("leader", "%q: sole or lease is expected", s.Leader)
	case s.Mode == ModeAct && s.Leader == "":
		return fieldErrorf("mode", "act needs leader: sole, or lease")
	case s.Leader == leaderLease && s.Lease == nil:
		return fieldErrorf("leader", "lease needs the name of a Lease in the key lease")
	case s.Leader != leaderLease && s.Lease != nil:
		return fieldErrorf("lease", "it is for leader: lease only")
	case s.Lease != nil && s.Lease.Namespace == "":
		return fieldErrorf("lease.namespace", "a namespace is required")
	case s.Lease != nil && s.Lease.Name == "":
		return fieldErrorf("lease.name", "a name is required")
	case s.Mode == ModeAct && s.Webhook == nil && s.Kubernetes == nil && s.Slurm == nil:
		return fieldErrorf("mode", "act needs webhook, kubernetes or slurm")
	}
	for i, account := range s.TrustedAccounts {
		if account == "" {
			return fieldErrorf(fmt.Sprintf("trusted_accounts[%d]", i), "the name of an account is expected")
		}
	}
	for _, t := range s.targets() {
		if err := t.validate(t.key); err != nil {
			return err
		}
	}
	if s.Webhook != nil && s.Webhook.SecretFile == "" {
		return fieldErrorf("webhook.secret_file", "a file is required")
	}
	if s.Slurm != nil {
		return s.Slurm.validateVersion()
	}
	return nil
}

func (d *DrainSettings) validateVersion() error {
	for _, v := range slurmVersions {
		if d.Version == v {
			return nil
		}
	}
	return fieldErrorf("slurm.version", "%q: one of %s is expected", d.Version, strings.Join(slurmVersions, ", "))
}

// keyedTarget is a server with its key in the settings.
type keyedTarget struct {
	key string
	*Target
}

// targets returns the servers that are configured, by their keys.
func (s *Settings) targets() (out []keyedTarget) {
	if s.Kubernetes != nil {
		out = append(out, keyedTarget{"kubernetes", &s.Kubernetes.Target})
	}
	if s.Slurm != nil {
		out = append(out, keyedTarget{"slurm", &s.Slurm.Target})
	}
	if s.Webhook != nil {
		out = append(out, keyedTarget{"webhook", &s.Webhook.Target})
	}
	return out
}

// Clients returns the configurations of all HTTP clients.
func (s *Settings) Clients() (out []*config_util.HTTPClientConfig) {
	for _, t := range s.targets() {
		out = append(out, &t.Client)
	}
	return out
}

// SetDirectory makes the names of all files relative to a directory.
func (s *Settings) SetDirectory(dir string) {
	files := []*string{&s.AuditFile}
	if s.Lease != nil {
		files = append(files, &s.Lease.Kubeconfig)
	}
	if s.Webhook != nil {
		files = append(files, &s.Webhook.SecretFile)
	}
	for _, f := range files {
		if *f != "" {
			*f = config_util.JoinDir(dir, *f)
		}
	}
	for _, c := range s.Clients() {
		c.SetDirectory(dir)
	}
}

// validate returns a FieldError if a target is invalid.
func (t *Target) validate(key string) error {
	if err := checkURL(t.URL); err != nil {
		return &FieldError{key + ".url", err}
	}
	if t.Timeout < 100*time.Millisecond || t.Timeout > 30*time.Second {
		return fieldErrorf(key+".timeout", "%v: 100ms to 30s are expected", t.Timeout)
	}
	if err := t.Client.Validate(); err != nil {
		return &FieldError{key, err}
	}
	return nil
}

// checkURL returns an error if requests to a URL are not to be sent: they carry credentials and change the state of nodes.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return errors.New("a URL is required")
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("an https URL is expected")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("a URL without credentials and parameters is expected")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return fmt.Errorf("%q: https is expected, or a loopback address", text)
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
