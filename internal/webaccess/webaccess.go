// Package webaccess decides who may do what acts on a daemon through its web
// listener.
package webaccess

import (
	"errors"
	"net"
	"net/http"
	"os"

	"gopkg.in/yaml.v3"
)

// MayAct is nil for a loopback client, and for any client when the web
// configuration, a file of the exporter toolkit or "", asks for credentials,
// which the toolkit has checked by now.
func MayAct(r *http.Request, webConfig string) error {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsLoopback() {
		return nil
	}
	if authenticated(webConfig) {
		return nil
	}
	return errors.New("only loopback clients may do this, unless the web configuration asks for authentication")
}

// authenticated reports whether a web configuration file of the exporter
// toolkit lets in only clients that prove who they are.
func authenticated(file string) bool {
	if file == "" {
		return false
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	var c struct {
		Users map[string]string `yaml:"basic_auth_users"`
		TLS   struct {
			ClientAuth string `yaml:"client_auth_type"`
		} `yaml:"tls_server_config"`
	}
	if yaml.Unmarshal(b, &c) != nil {
		return false
	}
	return len(c.Users) > 0 || c.TLS.ClientAuth == "RequireAndVerifyClientCert"
}
