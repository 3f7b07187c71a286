package daemon

import (
	"strings"
	"time"

	"github.com/graylink/graylink/internal/ibsubnet"
	"github.com/graylink/graylink/internal/ufm"
)

// UFM configures the UFM of an InfiniBand subnet. Its keys are those of the Collector's receiver of UFM.
type UFM struct {
	// Endpoint is UFM's REST interface, https://HOST.
	Endpoint string  `yaml:"endpoint" schema:"required,form=url"`
	Auth     UFMAuth `yaml:"auth" schema:"required"`
	TLS      UFMTLS  `yaml:"tls"`
	// Interval is the time between two readings of events: 100ms to 1h.
	Interval time.Duration `yaml:"interval"`
	// InventoryInterval is the time between two readings of systems, ports and links, unless an event reports a change.
	InventoryInterval time.Duration `yaml:"inventory_interval"`
	// EventDelay is the longest time from a change of the subnet to UFM's event. Paths are confirmed that much later.
	EventDelay time.Duration `yaml:"event_delay"`
	// Settle is how long tables may still change after an event. Files have to be written later than that.
	Settle time.Duration `yaml:"settle"`
	// Timeout bounds the time of one request.
	Timeout time.Duration `yaml:"timeout"`
}

// UFMAuth names files with credentials. One of the three ways is required.
type UFMAuth struct {
	// UsernameFile is a file with the name of a user.
	UsernameFile string `yaml:"username_file"`
	// PasswordFile is a file with the password of that user.
	PasswordFile string `yaml:"password_file"`
	// TokenFile is a file with a token.
	TokenFile string `yaml:"token_file"`
	// CertFile is a file with a client certificate in PEM.
	CertFile string `yaml:"cert_file"`
	// KeyFile is a file with the key of that certificate.
	KeyFile string `yaml:"key_file"`
}

// UFMTLS configures which certificates of UFM are trusted.
type UFMTLS struct {
	// CAFile is a file with the trusted authorities in PEM. The system's are trusted by default.
	CAFile string `yaml:"ca_file"`
	// ServerName is the name in UFM's certificate. It is the host of the endpoint by default.
	ServerName string `yaml:"server_name"`
	// Insecure turns off the verification of the certificate.
	Insecure bool `yaml:"insecure_skip_verify"`
}

// UnmarshalYAML sets defaults.
func (u *UFM) UnmarshalYAML(unmarshal func(any) error) error {
	type plain UFM
	u.Interval, u.InventoryInterval, u.EventDelay, u.Settle, u.Timeout = 5*time.Second, time.Minute, 2*time.Second, 10*time.Second, 10*time.Second
	return unmarshal((*plain)(u))
}

// maxUFMBody bounds one answer of UFM.
const maxUFMBody = 1 << 30

// options returns the options of the client.
func (u *UFM) options() ufm.Options {
	return ufm.Options{URL: u.Endpoint, UsernameFile: u.Auth.UsernameFile, PasswordFile: u.Auth.PasswordFile, TokenFile: u.Auth.TokenFile,
		CertFile: u.Auth.CertFile, KeyFile: u.Auth.KeyFile, CAFile: u.TLS.CAFile, ServerName: u.TLS.ServerName, Insecure: u.TLS.Insecure,
		Timeout: u.Timeout, MaxBody: maxUFMBody}
}

// files returns the names of files, which may be relative to that of the configuration.
func (u *UFM) files() []*string {
	return []*string{&u.Auth.UsernameFile, &u.Auth.PasswordFile, &u.Auth.TokenFile, &u.Auth.CertFile, &u.Auth.KeyFile, &u.TLS.CAFile}
}

// validate returns an error that names the key below that of the block.
func (u *UFM) validate(key string) error {
	if u.Auth == (UFMAuth{}) {
		return keyErrorf(key+".auth", "files with credentials are expected: UFM's REST interface needs them")
	}
	for _, d := range []struct {
		key      string
		value    time.Duration
		low, top time.Duration
	}{{"interval", u.Interval, 100 * time.Millisecond, time.Hour}, {"inventory_interval", u.InventoryInterval, u.Interval, 24 * time.Hour},
		{"event_delay", u.EventDelay, 0, time.Hour}, {"settle", u.Settle, 0, time.Hour}} {
		if d.value < d.low || d.value > d.top {
			return keyErrorf(key+"."+d.key, "%v: %v to %v are expected", d.value, d.low, d.top)
		}
	}
	o := u.options()
	if err := o.Validate(); err != nil {
		name, rest, found := strings.Cut(err.Error(), ": ") // the key of the block, and what is wrong
		if !found {
			return keyErrorf(key, "%w", err)
		}
		return keyErrorf(key+"."+name, "%s", rest)
	}
	return nil
}

// newEvents returns the events of UFM. It returns nil if there is no UFM. Nothing is read yet.
func (u *UFM) newEvents() (*ibsubnet.UFMEvents, error) {
	if u == nil {
		return nil, nil
	}
	client, err := ufm.NewClient(u.options())
	if err != nil {
		return nil, err
	}
	return &ibsubnet.UFMEvents{Client: client, Interval: u.Interval, Delay: u.EventDelay, Settle: u.Settle}, nil
}
