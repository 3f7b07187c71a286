// Package webaccess decides which requests a program answers, and which callers may make it act.
//
// Rules:
//
//  1. A request is answered only if its Host is an IP address, a loopback name, the host of the
//     external URL or an allowed name. A web page that rebinds its own DNS name to this machine has
//     none of them.
//  2. A request that changes something is refused if a browser sends it for a page of another origin,
//     and if it has a body that is not declared as JSON. Queries may be forms: they change nothing.
//  3. An acting request needs a caller that the web configuration authenticates, or one on a loopback
//     address, not forwarded by a proxy, if a flag allows it. A GET request that has an effect needs the
//     same, and is answered without the effect if a browser sends it for a page of another origin. A
//     request for packets (AskHandler) may besides need one of some names.
//  4. Every act is logged with its caller and the caller's address.
package webaccess

import (
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Policy describes what a program lets clients of its web listener do. The zero value answers requests
// to addresses and loopback names, and lets only authenticated callers act.
type Policy struct {
	// WebConfig is the exporter toolkit's file of --web.config.file. It may be empty.
	WebConfig string
	// AdminAPI allows loopback clients to act without authentication. Lifecycle allows loopback clients
	// to reload the configuration.
	AdminAPI, Lifecycle bool
	// ExternalURL is the URL that browsers use through a reverse proxy, or nil.
	ExternalURL *url.URL
	// AllowedHosts are further names of the program: a DNS name, or *.DOMAIN for all
	// names below a domain.
	AllowedHosts []string
	// AnyHost disables rule 1, on a listener that only clients with certificates reach.
	AnyHost bool
	// QueryPaths is the prefix of paths at which a body is a query, which changes nothing and may be a form. It may be empty.
	QueryPaths string
	// AskClients are the names of authenticated callers that AskHandler serves. If it is empty, it serves all of them.
	AskClients []string
	// Log gets a line for every act. If it is nil, acts are not logged.
	Log *slog.Logger

	acts actLog
}

// CheckHost returns an error if AllowedHosts cannot hold an entry.
func CheckHost(entry string) error {
	name := strings.TrimPrefix(entry, "*.")
	if name == "" || strings.ContainsAny(name, "*/:@ ") {
		return fmt.Errorf("%q: want a host name without a port, or *.DOMAIN", entry)
	}
	return nil
}

// ParseExternalURL parses the URL that browsers reach the program by. It returns nil for an empty text.
func ParseExternalURL(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return nil, fmt.Errorf("%q: want http://HOST or https://HOST", text)
	}
	return u, nil
}

// Guard returns a handler that passes on the requests that rules 1 and 2 allow.
func (p *Policy) Guard(h http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	if p.ExternalURL != nil {
		// AddTrustedOrigin fails for a URL without scheme or host, which ParseExternalURL refuses.
		_ = crossOrigin.AddTrustedOrigin(p.ExternalURL.Scheme + "://" + p.ExternalURL.Host)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		if !p.HostAllowed(r.Host) {
			http.Error(w, fmt.Sprintf("the host %q is not one of this program: use its address, or allow the name with --web.allowed-hosts", hostOf(r.Host)), http.StatusMisdirectedRequest)
			return
		}
		if err := crossOrigin.Check(r); err != nil {
			p.logRefusal(r, "", "cross-origin")
			http.Error(w, "a page of another origin may not send this request: "+err.Error(), http.StatusForbidden)
			return
		}
		query := p.QueryPaths != "" && strings.HasPrefix(r.URL.Path, p.QueryPaths)
		if hasBody(r) && !isJSON(r) && !query {
			http.Error(w, "the body has to be declared as Content-Type: application/json", http.StatusUnsupportedMediaType)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// hasBody reports whether a request that may change something has a body.
func hasBody(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	}
	return r.ContentLength != 0
}

func isJSON(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// loopbackNames are the names that the hosts files of common systems resolve to the machine itself.
var loopbackNames = []string{"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}

// hostOf returns the name or address of a Host header in lower case, without port, brackets and
// trailing dot.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), "."))
}

// HostAllowed reports whether requests for a host, with or without a port, are answered. Requests of
// HTTP/1.0 may have no host; browsers always send one.
func (p *Policy) HostAllowed(host string) bool {
	name := hostOf(host)
	if _, err := netip.ParseAddr(name); err == nil || name == "" || p.AnyHost {
		return true
	}
	if slices.Contains(loopbackNames, name) || strings.HasSuffix(name, ".localhost") {
		return true
	}
	if p.ExternalURL != nil && name == hostOf(p.ExternalURL.Host) {
		return true
	}
	return slices.ContainsFunc(p.AllowedHosts, func(entry string) bool {
		entry = strings.ToLower(strings.TrimSuffix(entry, "."))
		if domain, ok := strings.CutPrefix(entry, "*"); ok {
			return strings.HasSuffix(name, domain)
		}
		return name == entry
	})
}

// Caller is the sender of a request.
type Caller struct {
	// Name is the authenticated user, the name of the client certificate, "loopback" for
	// a client of this machine without authentication, or "".
	Name          string
	Authenticated bool
	Loopback      bool // the client is on this machine, and no proxy forwarded the request
}

// errNoName is the error of a verified certificate that identifies no client.
var errNoName = errors.New("the client certificate has no subject alternative name")

// IdentifyCaller returns the caller of a request. The exporter toolkit has checked passwords by then.
// It returns an error if the web configuration can be read and does not identify the client.
func (p *Policy) IdentifyCaller(r *http.Request) (Caller, error) {
	var c Caller
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsLoopback() && !isForwarded(r.Header) {
		c.Name, c.Loopback = "loopback", true
	}
	users, certificates := readAuthentication(p.WebConfig)
	if len(users) > 0 {
		if user, _, ok := r.BasicAuth(); ok && slices.Contains(users, user) {
			c.Name, c.Authenticated = user, true
			return c, nil
		}
	}
	if certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		name := certificateName(r)
		if name == "" {
			return c, errNoName
		}
		c.Name, c.Authenticated = name, true
	}
	return c, nil
}

// certificateName returns the first subject alternative name of the client certificate.
func certificateName(r *http.Request) string {
	cert := r.TLS.VerifiedChains[0][0]
	switch {
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	case len(cert.URIs) > 0:
		return cert.URIs[0].String()
	case len(cert.EmailAddresses) > 0:
		return cert.EmailAddresses[0]
	case len(cert.IPAddresses) > 0:
		return cert.IPAddresses[0].String()
	}
	return ""
}

// isForwarded reports whether the headers are those of a request that a proxy forwards for another
// client.
func isForwarded(h http.Header) bool {
	for name := range h {
		switch {
		case name == "Forwarded", name == "Via", name == "X-Real-Ip", name == "True-Client-Ip", strings.HasPrefix(name, "X-Forwarded-"):
			return true
		}
	}
	return false
}

// readAuthentication returns the users of a web configuration file, and whether the file admits only
// clients whose certificates come from an authority that it names.
func readAuthentication(file string) (users []string, certificates bool) {
	if file == "" {
		return nil, false
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, false
	}
	var c struct {
		Users map[string]string `yaml:"basic_auth_users"`
		TLS   struct {
			ClientAuth string `yaml:"client_auth_type"`
			CAFile     string `yaml:"client_ca_file"`
			CA         string `yaml:"client_ca"`
		} `yaml:"tls_server_config"`
	}
	if yaml.Unmarshal(b, &c) != nil {
		return nil, false
	}
	for user := range c.Users {
		users = append(users, user)
	}
	return users, c.TLS.ClientAuth == "RequireAndVerifyClientCert" && (c.TLS.CAFile != "" || c.TLS.CA != "")
}

// mayAct returns the caller, or an error with the reason why the caller may not act. flag is the name
// of the flag that allows loopback clients without authentication, and enabled is its value.
func (p *Policy) mayAct(r *http.Request, flag string, enabled bool) (Caller, error) {
	c, err := p.IdentifyCaller(r)
	switch {
	case err != nil:
		return c, err
	case c.Authenticated, c.Loopback && enabled:
		return c, nil
	case c.Loopback:
		return c, fmt.Errorf("this request needs %s or authentication by --web.config.file", flag)
	case isForwarded(r.Header):
		return c, errors.New("a request that a proxy forwards needs authentication by --web.config.file")
	}
	return c, errors.New("only loopback clients may send this request, unless --web.config.file authenticates them")
}
