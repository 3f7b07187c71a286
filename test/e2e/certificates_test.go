package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric/ibtest"
	"github.com/graylink/graylink/internal/pki"
	"github.com/graylink/graylink/internal/pki/pkitest"
)

// TestCertificatesOfEveryProgram: every program publishes when the certificates of its web listener and of its
// connections end, each once; files that are replaced or removed change that.
func TestCertificatesOfEveryProgram(t *testing.T) {
	t.Parallel()
	programs(t)
	web, callers, out, kubernetes := pkitest.New(t), pkitest.New(t), pkitest.New(t), pkitest.New(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	base64Of := func(file string) string { return base64.StdEncoding.EncodeToString([]byte(text(file))) }
	config := write("web.yaml", fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s, client_auth_type: VerifyClientCertIfGiven, client_ca_file: %s}\n", web.Cert, web.Key, callers.CA))
	kubeconfig := write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority: %s}}]
users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, kubernetes.CA, base64Of(kubernetes.Cert), base64Of(kubernetes.Key)))
	inline := pkitest.New(t)
	d := startDaemonsWith(t, options{tls: true, flags: []string{"--web.config.file=" + config}, more: map[string][]string{
		"node": {"--otlp.endpoint=127.0.0.1:1", "--otlp.ca=" + out.CA, "--otlp.cert=" + out.Cert, "--otlp.key=" + out.Key,
			"--nic.kubernetes", "--nic.kubernetes-node=h1", "--nic.kubernetes-config=" + kubeconfig},
	}, analyzer: fmt.Sprintf(`prometheus: {url: "https://127.0.0.1:1", tls_config: {ca_file: %s, cert_file: %s, key_file: %s}}
agents: {url: "https://127.0.0.1:1/{node}", tls_config: {ca_file: %[1]s, cert: %[4]q, key: %[5]q}}
`, out.CA, out.Cert, out.Key, text(inline.Cert), text(inline.Key))})

	const authority, own = pki.UseAuthority, pki.UseCertificate
	listener := map[string]string{web.Cert: own, callers.CA: authority}
	uses := map[string]map[string]string{
		"node": {out.CA: authority, out.Cert: own, kubernetes.CA: authority}, "switch": {}, "analyzer": {out.CA: authority, out.Cert: own},
		"coordinator": {filepath.Join(d.dir, "ca.crt"): authority, filepath.Join(d.dir, "coordinator.crt"): own},
	}
	ends := func(what string) {
		t.Helper()
		for program, files := range uses {
			var want []string
			for _, all := range []map[string]string{listener, files} {
				for file, use := range all {
					want = append(want, pkitest.Line(t, file, use))
				}
			}
			// What stands in a configuration has the configuration's name.
			switch program {
			case "node":
				want = append(want, strings.Replace(pkitest.Line(t, kubernetes.Cert, own), kubernetes.Cert, kubeconfig, 1))
			case "analyzer":
				want = append(want, strings.Replace(pkitest.Line(t, inline.Cert, own), inline.Cert, filepath.Join(d.dir, "analyzer.yaml"), 1))
			}
			_, page := d.ask(program, act{"GET", "/metrics", ""}, nil)
			var got []string
			for line := range strings.Lines(page) {
				if strings.HasPrefix(line, pki.ExpirySeries) {
					got = append(got, strings.TrimSpace(line))
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s of %s:\n%s\nwant\n%s", what, program, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
	ends("at first")
	for _, f := range []*pkitest.Files{web, callers, out} {
		f.Renew(t)
	}
	ends("replaced")
	for _, file := range []string{out.CA, out.Cert} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		delete(uses["node"], file)
		delete(uses["analyzer"], file)
	}
	ends("removed")

	// A listener without its certificate refuses every connection, which is logged once.
	if err := os.Remove(web.Cert); err != nil {
		t.Fatal(err)
	}
	for program := range uses {
		count := func() int { return strings.Count(d.logs[program].String(), "the web listener refuses all connections") }
		for end := time.Now().Add(30 * time.Second); count() == 0; time.Sleep(10 * time.Millisecond) {
			if resp, err := anyServer.Get(d.url(program) + "/-/healthy"); err == nil {
				resp.Body.Close()
				t.Fatalf("%s serves without a certificate", program)
			}
			if time.Now().After(end) {
				t.Fatalf("%s does not say that its certificate is gone", program)
			}
		}
		if n, log := count(), d.logs[program].String(); n != 1 || !strings.Contains(log, web.Cert) || strings.Contains(log, "PRIVATE KEY") {
			t.Errorf("%s says it %d times: %s", program, n, tail(log, 1000))
		}
	}
}

// TestCertificatesOfTheInfiniBandSampler: graylink ib serve publishes those between delegator and samplers, and those of
// its web listener.
func TestCertificatesOfTheInfiniBandSampler(t *testing.T) {
	t.Parallel()
	programs(t)
	sim := ibtest.Start(t, ibtest.FatTree(2, 2, 2), ibtest.Options{})
	web, samplers := pkitest.New(t), pkitest.New(t, "s")
	d := &daemons{t: t, dir: t.TempDir(), web: map[string]string{}, logs: map[string]*lockedBuffer{}, options: options{tls: true}}
	file := func(name, text string) string {
		path := filepath.Join(d.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	d.run("ib", []string{"--config.file=" + file("ib.yaml", fmt.Sprintf("name: s\ndevice: \"ibsim:%s/h0\"\nlisten: 127.0.0.1:0\ntls: {ca_file: %s, cert_file: %s, key_file: %s}\n",
		sim.SocketName(), samplers.CA, samplers.Cert, samplers.Key)), "--web.config.file=" + file("web.yaml", fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s}\n", web.Cert, web.Key))})
	for _, what := range []string{"at first", "replaced"} {
		_, page := d.ask("ib", act{"GET", "/metrics", ""}, nil)
		for f, use := range map[string]string{web.Cert: pki.UseCertificate, samplers.Cert: pki.UseCertificate, samplers.CA: pki.UseAuthority} {
			if want := pkitest.Line(t, f, use); !strings.Contains(page, want) {
				t.Errorf("%s: %s is missing", what, want)
			}
		}
		web.Renew(t)
		samplers.Renew(t)
	}
}
