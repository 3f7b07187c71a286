package webaccess

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestWhoMayAct(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	tls := file("tls.yml", "tls_server_config: {cert_file: a, key_file: b}\n")
	mutual := file("mutual.yml", "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}\n")
	users := file("users.yml", "basic_auth_users: {prometheus: $2y$10$x}\n")
	for _, tc := range []struct {
		remote, config string
		ok             bool
	}{
		{"127.0.0.1:5", "", true}, {"[::1]:5", "", true}, {"10.0.0.9:5", "", false}, {"10.0.0.9:5", tls, false},
		{"10.0.0.9:5", mutual, true}, {"10.0.0.9:5", users, true}, {"@", "", false}, {"10.0.0.9:5", filepath.Join(dir, "none"), false},
	} {
		r := httptest.NewRequest("POST", "/api/v1/trace", nil)
		r.RemoteAddr = tc.remote
		if err := MayAct(r, tc.config); (err == nil) != tc.ok {
			t.Errorf("%s with %q: %v", tc.remote, filepath.Base(tc.config), err)
		}
	}
}
