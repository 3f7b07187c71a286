package kubenode

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/graylink/graylink/internal/kubeapi"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

func write(t *testing.T, file, text string) {
	t.Helper()
	// As kubelet does it: a file is replaced, and never written to.
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// kubeconfig has a token in a file, and the authority unless ca is "".
func kubeconfig(t *testing.T, dir, url, ca string) string {
	t.Helper()
	if ca != "" {
		ca = "certificate-authority: " + ca
	}
	file := filepath.Join(dir, "kubeconfig")
	write(t, file, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%s", %s}}]
users: [{name: u, user: {tokenFile: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, url, ca, filepath.Join(dir, "token")))
	return file
}

// TestTLSAndToken, over a real connection.
func TestTLSAndToken(t *testing.T) {
	s := newServer()
	s.token = "first"
	web := httptest.NewTLSServer(s)
	defer web.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})))
	write(t, filepath.Join(dir, "token"), "first\n")
	n := &nics{}
	n.set(fatal("mlx5_0", "state_down"))
	r, err := New(Config{Node: "n1", Kubeconfig: kubeconfig(t, dir, web.URL, ca), State: n.state})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	r.Offer(down(0))
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text, _, _ := s.condition(DefaultCondition)
		if text == "True StateDown mlx5_0_port1: state_down" && len(s.list()) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("condition %q, events %v: not within 30 s", text, s.list())
		}
	}
}

// TestTokensAreRotated: the file is replaced while the agent runs. Where the old token is taken for some time yet, as Kubernetes does, no
// request fails for it; where it is not, those that fail are repeated.
func TestTokensAreRotated(t *testing.T) {
	for _, overlap := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			s.token = "first"
			file := filepath.Join(t.TempDir(), "token")
			write(t, file, "first\n")
			a, err := kubeapi.New(&rest.Config{Host: "https://api", BearerTokenFile: file, Transport: inProcess{s}}, program)
			if err != nil {
				t.Fatal(err)
			}
			n := &nics{}
			r := newReporter(Config{Node: "n1", State: n.state}, a)
			ctx, cancel := contextOf(t)
			done := make(chan struct{})
			go func() { r.Run(ctx); close(done) }()
			time.Sleep(10 * time.Second)
			write(t, file, "second\n")
			if overlap {
				time.Sleep(time.Minute)
			}
			s.mu.Lock()
			s.token = "second"
			s.mu.Unlock()
			n.set(fatal("mlx5_0", "state_down"))
			r.Offer(down(0))
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if text, _, _ := s.condition(DefaultCondition); !strings.HasPrefix(text, "True StateDown") || len(s.list()) != 1 {
				t.Errorf("overlap %v: condition %s, %d events", overlap, text, len(s.list()))
			}
			st := r.Stats()
			if failed := st.Requests[Request{ObjectCondition, ResultRetry}] > 0 && st.Requests[Request{ObjectEvent, ResultRetry}] > 0; failed == overlap {
				t.Errorf("overlap %v: %+v", overlap, st.Requests)
			}
			cancel()
			<-done
		})
	}
}

func TestServerWithoutTrustedAuthority(t *testing.T) {
	s := newServer()
	web := httptest.NewUnstartedServer(s)
	web.Config.ErrorLog = nil
	web.StartTLS()
	defer web.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "secret\n")
	n := &nics{}
	r, err := New(Config{Node: "n1", Kubeconfig: kubeconfig(t, dir, web.URL, ""), State: n.state})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.patchNode(t.Context(), struct{}{}, nil); err == nil || s.count("") != 0 {
		t.Errorf("%v after %d requests, want a failure before any", err, s.count(""))
	}
}

// TestARedirectIsNotFollowed: it would take the token elsewhere.
func TestARedirectIsNotFollowed(t *testing.T) {
	other := newServer()
	elsewhere := httptest.NewServer(other)
	defer elsewhere.Close()
	web := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer web.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "secret\n")
	r, err := New(Config{Node: "n1", Kubeconfig: kubeconfig(t, dir, web.URL, ""), State: (&nics{}).state})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.patchNode(t.Context(), struct{}{}, nil); err == nil || other.count("") != 0 {
		t.Errorf("%v; %d requests went elsewhere", err, other.count(""))
	}
}

// TestCertificates: files that a kubeconfig names are followed; what stands in it has its name.
func TestCertificates(t *testing.T) {
	files := pkitest.New(t)
	dir := t.TempDir()
	read := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	for _, tc := range []struct {
		what, cluster, user string
		ca, cert            string // the names of what is published
	}{
		{"files", "certificate-authority: " + files.CA, "client-certificate: " + files.Cert + ", client-key: " + files.Key, files.CA, files.Cert},
		{"data", "certificate-authority-data: " + read(files.CA), "client-certificate-data: " + read(files.Cert) + ", client-key-data: " + read(files.Key), filepath.Join(dir, "config"), filepath.Join(dir, "config")},
		{"none", "", "", "", ""},
	} {
		config := filepath.Join(dir, "config")
		write(t, config, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", %s}}]
users: [{name: u, user: {%s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, tc.cluster, tc.user))
		r, err := New(Config{Node: "n1", Kubeconfig: config, State: (&nics{}).state})
		if err != nil {
			t.Fatal(err)
		}
		want := map[pki.Expiry]bool{}
		for _, x := range []struct{ file, name, use string }{{files.CA, tc.ca, pki.UseAuthority}, {files.Cert, tc.cert, pki.UseCertificate}} {
			if c := pkitest.Certificate(t, x.file); x.name != "" {
				want[pki.Expiry{File: x.name, Use: x.use, Serial: c.SerialNumber.Text(16), At: c.NotAfter, Life: c.NotAfter.Sub(c.NotBefore)}] = true
			}
		}
		got := r.Expiries()
		for _, e := range got {
			if !want[e] {
				t.Errorf("%s: %+v, want %v", tc.what, e, want)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", tc.what, got, want)
		}
	}
}
