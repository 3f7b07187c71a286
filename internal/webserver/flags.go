package webserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/prometheus/exporter-toolkit/web/kingpinflag"
	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/webaccess"
)

// Flags are the flags of a program's web listener.
type Flags struct {
	// Toolkit has the flags of the Prometheus exporter toolkit.
	Toolkit             *web.FlagConfig
	external            string
	hosts, askClients   []string
	adminAPI, lifecycle bool
	limits              Limits
}

// flagGroup is an application or one of its commands.
type flagGroup interface {
	Flag(name, help string) *kingpin.FlagClause
}

// AddFlags adds the flags of a web listener with the given default address.
func AddFlags(app flagGroup, address string) *Flags {
	f := &Flags{Toolkit: kingpinflag.AddFlags(app, address), limits: DefaultLimits()}
	app.Flag("web.external-url", "URL at which browsers reach this program through a reverse proxy. Requests for its host are answered.").StringVar(&f.external)
	AddAllowedHosts(app, &f.hosts)
	limit := func(name, help string, v *int) { app.Flag(name, help).Default(strconv.Itoa(*v)).IntVar(v) }
	limit("web.max-connections", "Maximum number of open connections. A further one replaces the one that has been idle or slow for the longest time.", &f.limits.Connections)
	limit("web.max-connections-per-address", "Maximum number of open connections of one client address.", &f.limits.ConnectionsPerAddress)
	limit("web.max-scrapes", "Maximum number of scrapes that are computed at a time. Others wait for up to 5 s and are then answered 503.", &f.limits.Scrapes)
	return f
}

// AddAllowedHosts adds the flag --web.allowed-hosts.
func AddAllowedHosts(app flagGroup, hosts *[]string) {
	app.Flag("web.allowed-hosts", "DNS name of this program, or *.DOMAIN. Requests for other names than these, localhost and IP addresses are refused. May be given several times.").StringsVar(hosts)
}

// AddLifecycle adds the flag of a program that can be reloaded over HTTP.
func (f *Flags) AddLifecycle(app flagGroup) {
	app.Flag("web.enable-lifecycle", "Allow loopback clients to reload by POST /-/reload without authentication. SIGHUP reloads in any case.").BoolVar(&f.lifecycle)
}

// AddAdminAPI adds the flag of a program that changes something on request. The help text names the
// requests.
func (f *Flags) AddAdminAPI(app flagGroup, acts string) {
	app.Flag("web.enable-admin-api", "Allow loopback clients to use "+acts+" without authentication. Clients that --web.config.file authenticates need no flag.").BoolVar(&f.adminAPI)
}

// AddAskClients adds the flag of a program that sends packets on request.
func (f *Flags) AddAskClients(app flagGroup) {
	app.Flag("ask.clients", "Name of a client that --web.config.file authenticates, by certificate or as a user, and that may request traces and padded probes, as an analyzer and graylink audit do. May be given several times. If empty, every authenticated client may.").StringsVar(&f.askClients)
}

// Validate returns an error if a flag or the web configuration file is invalid.
func (f *Flags) Validate() error {
	if _, err := webaccess.ParseExternalURL(f.external); err != nil {
		return fmt.Errorf("--web.external-url: %w", err)
	}
	if err := CheckAllowedHosts(f.hosts); err != nil {
		return err
	}
	if err := f.limits.Validate(); err != nil {
		return err
	}
	if err := web.Validate(*f.Toolkit.WebConfigFile); err != nil {
		return fmt.Errorf("--web.config.file: %w", err)
	}
	return nil
}

// Certificates returns the certificates of the web listener: those that --web.config.file names or
// contains. The file is read at every call, since the exporter toolkit reads it at every handshake.
func (f *Flags) Certificates() *pki.Watch {
	return pki.NewWatchOf(func() []pki.CertificateFile { return listenerCertificates(*f.Toolkit.WebConfigFile) })
}

// listenerCertificates returns the certificates of a web configuration file. It returns none without a
// file, or if the file cannot be used.
func listenerCertificates(file string) []pki.CertificateFile {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var c struct {
		TLS web.TLSConfig `yaml:"tls_server_config"`
	}
	if yaml.Unmarshal(b, &c) != nil {
		return nil
	}
	c.TLS.SetDirectory(filepath.Dir(file))
	files := pki.FilesOf(c.TLS.ClientCAs, c.TLS.TLSCertPath)
	for i, text := range []string{c.TLS.ClientCAsText, c.TLS.TLSCert} {
		if files[i].Name == "" && text != "" {
			files[i].Name, files[i].Text = file, text
		}
	}
	return files
}

// CheckAllowedHosts returns an error if a value of --web.allowed-hosts is invalid.
func CheckAllowedHosts(hosts []string) error {
	var errs []error
	for _, h := range hosts {
		if err := webaccess.CheckHost(h); err != nil {
			errs = append(errs, fmt.Errorf("--web.allowed-hosts %w", err))
		}
	}
	return errors.Join(errs...)
}

// NewPolicy returns the policy of the flags. advertised has addresses, host:port, by which the program
// makes itself known: their hosts are allowed, too.
func (f *Flags) NewPolicy(log *slog.Logger, advertised ...string) *webaccess.Policy {
	p := &webaccess.Policy{WebConfig: *f.Toolkit.WebConfigFile, AdminAPI: f.adminAPI, Lifecycle: f.lifecycle, AllowedHosts: f.hosts, AskClients: f.askClients, Log: log}
	p.ExternalURL, _ = webaccess.ParseExternalURL(f.external) // Validate has checked it
	for _, a := range advertised {
		if host, _, err := net.SplitHostPort(a); err == nil && webaccess.CheckHost(host) == nil {
			p.AllowedHosts = append(p.AllowedHosts, host)
		}
	}
	return p
}

// NewServer returns a server of a handler with the limits of the flags.
func (f *Flags) NewServer(h http.Handler, p *webaccess.Policy, log *slog.Logger) *Server {
	return New(h, p, f.limits, log)
}
