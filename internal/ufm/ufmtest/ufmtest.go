// Package ufmtest provides a UFM for tests: its telemetry service and its REST interface, with documents like
// the vendor's and with faults.
package ufmtest

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/pki"
)

// Credentials that the server accepts.
const (
	User     = "admin"
	Password = "pass word: 123456"
	Token    = "b2tlbg.t0ken-0f-ufm"
)

// Fault describes a fault of a path.
type Fault struct {
	// Status is the status of the answer, with RetryAfter if that is set.
	Status     int
	RetryAfter string
	// Cut ends the body after so many octets: with a reset if Reset is set, otherwise as if it were complete.
	Cut   int
	Reset bool
	// Drip sends that much of the body, and never the rest.
	Drip int
	// Gzip compresses the body; Cut then applies to the compressed octets. Spoil changes an octet in the middle
	// of it.
	Gzip, Spoil bool
	// Type is the content type of the answer.
	Type string
	// Hang delays the answer until the client gives up.
	Hang bool
	// Location is the target of a redirect.
	Location string
	// Undivided gives every shard all ports.
	Undivided bool
	// Times is the number of requests that the fault affects; 0 means all.
	Times int
}

// Server is a simulated UFM.
type Server struct {
	*httptest.Server
	// CAFile has the server's authority; CertFile and KeyFile belong to a client that it trusts.
	CAFile, CertFile, KeyFile string
	// UserFile, PasswordFile and TokenFile have the credentials.
	UserFile, PasswordFile, TokenFile string

	mu          sync.Mutex
	bodies      map[string]string
	faults      map[string]*Fault
	requestURIs []string
}

// New starts a server with TLS, which ends with the test. Its telemetry needs no credentials; its REST
// interface needs those of the requested base.
func New(t testing.TB) *Server {
	t.Helper()
	dir := t.TempDir()
	s := &Server{bodies: map[string]string{}, faults: map[string]*Fault{}}
	write := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	s.UserFile = write("user", []byte(User+"\n"))
	s.PasswordFile = write("password", []byte(Password+"\n"))
	s.TokenFile = write("token", []byte(Token))
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serveRequest))
	cert, key, roots := issueClientCert(t)
	s.CertFile, s.KeyFile = write("client.pem", cert), write("client.key", key)
	s.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	s.CAFile = write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	return s
}

// SetBody sets the body of a path; without a body the path answers 404.
func (s *Server) SetBody(path, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies[path] = body
}

// SetJSON sets the body of a path of the REST interface, for all bases.
func (s *Server) SetJSON(path string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in the test
	}
	for _, base := range []string{"/ufmRest", "/ufmRestV2", "/ufmRestV3"} {
		s.SetBody(base+path, string(b))
	}
}

// SetFault sets the fault of a path; nil removes it.
func (s *Server) SetFault(path string, f *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[path] = f
}

// RequestURIs returns the requests so far, with their queries.
func (s *Server) RequestURIs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requestURIs...)
}

func (s *Server) isAuthorized(r *http.Request) bool {
	header := r.Header.Get("Authorization")
	switch {
	case strings.HasPrefix(r.URL.Path, "/ufmRestV3/"):
		return header == "Basic "+Token
	case strings.HasPrefix(r.URL.Path, "/ufmRestV2/"):
		return len(r.TLS.VerifiedChains) > 0
	case strings.HasPrefix(r.URL.Path, "/ufmRest/"):
		return header == "Basic "+base64.StdEncoding.EncodeToString([]byte(User+":"+Password))
	}
	return true
}

func (s *Server) serveRequest(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requestURIs = append(s.requestURIs, r.URL.RequestURI())
	body, there := s.bodies[r.URL.Path]
	f := s.faults[r.URL.Path]
	if f != nil && f.Times > 0 {
		if f.Times--; f.Times == 0 {
			s.faults[r.URL.Path] = nil
		}
	}
	s.mu.Unlock()
	switch {
	case !s.isAuthorized(r):
		http.Error(w, "401 Unauthorized", http.StatusUnauthorized)
		return
	case f != nil && f.Hang:
		<-r.Context().Done()
		return
	case f != nil && f.Location != "":
		http.Redirect(w, r, f.Location, http.StatusFound)
		return
	case f != nil && f.Status != 0:
		if f.RetryAfter != "" {
			w.Header().Set("Retry-After", f.RetryAfter)
		}
		http.Error(w, "no", f.Status)
		return
	case !there:
		http.NotFound(w, r)
		return
	}
	if q := r.URL.Query(); q.Get("num_shards") != "" && (f == nil || !f.Undivided) {
		body = selectShard(body, q.Get("num_shards"), q.Get("shard"))
	}
	if f != nil && f.Type != "" {
		w.Header().Set("Content-Type", f.Type)
	}
	if f != nil && f.Gzip {
		w.Header().Set("Content-Encoding", "gzip")
		body = gzipText(body, f.Spoil)
	}
	if f != nil && f.Drip > 0 && f.Drip < len(body) {
		_, _ = io.WriteString(w, body[:f.Drip])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	if f != nil && f.Cut > 0 && f.Cut < len(body) {
		if f.Reset {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		body = body[:f.Cut]
		_, _ = io.WriteString(w, body)
		if f.Reset {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		return
	}
	_, _ = io.WriteString(w, body) // the client may be gone
}

// gzipText returns a text compressed by gzip.
func gzipText(text string, spoil bool) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.WriteString(z, text)
	if err = errors.Join(err, z.Close()); err != nil {
		panic(err) // a buffer does not fail
	}
	out := b.Bytes()
	if spoil {
		out[len(out)/2] ^= 0xff
	}
	return string(out)
}

// selectShard returns the rows of CSV whose port GUIDs belong to a shard.
func selectShard(body, of, which string) string {
	n, err1 := strconv.ParseUint(of, 10, 8)
	i, err2 := strconv.ParseUint(which, 10, 8)
	if err1 != nil || err2 != nil || n == 0 {
		return body
	}
	lines := strings.SplitAfter(body, "\n")
	column := -1
	for c, name := range strings.Split(strings.TrimSpace(lines[0]), ",") {
		if name == "port_guid" {
			column = c
		}
	}
	out := lines[0]
	for _, l := range lines[1:] {
		cells := strings.Split(l, ",")
		if column < 0 || column >= len(cells) {
			continue
		}
		g, err := strconv.ParseUint(strings.TrimPrefix(cells[column], "0x"), 16, 64)
		if err == nil && g%n == i {
			out += l
		}
	}
	return out
}

// Fabric is a generated fabric of Switches with Ports ports each.
type Fabric struct {
	Switches, Ports int
	// Counters are the columns, by their names.
	Counters []string
	// At is the time of the samples in microseconds since 1970.
	At int64
}

// CounterNames returns n names of columns. Those after the built-in ones are declared in no table, except by
// Numbered.
func CounterNames(n int) []string {
	known := strings.Fields(`PortXmitDataExtended PortRcvDataExtended PortXmitPktsExtended PortRcvPktsExtended SymbolErrorCounterExtended
		LinkErrorRecoveryCounterExtended LinkDownedCounterExtended PortRcvErrorsExtended PortRcvRemotePhysicalErrorsExtended PortRcvSwitchRelayErrorsExtended
		PortXmitDiscardsExtended PortXmitConstraintErrorsExtended PortRcvConstraintErrorsExtended LocalLinkIntegrityErrorsExtended
		ExcessiveBufferOverrunErrorsExtended VL15DroppedExtended PortXmitWaitExtended QP1DroppedExtended PortUniCastXmitPktsExtended
		PortUniCastRcvPktsExtended PortMultiCastXmitPktsExtended PortMultiCastRcvPktsExtended SyncHeaderErrorCounterExtended UnknownBlockCounterExtended
		Raw_BER Effective_BER Symbol_BER Effective_Errors Symbol_Errors Module_Temperature Module_Voltage`)
	for i := 0; len(known) < n; i++ {
		known = append(known, fmt.Sprintf("Raw_Errors_Lane_%d", i))
	}
	return known[:n]
}

// counterValue returns a port's counter, of a size that counters have after weeks.
func (f Fabric) counterValue(sw, port, c int) string {
	switch name := f.Counters[c]; {
	case strings.HasSuffix(name, "_BER"):
		return fmt.Sprintf("1.5e-%d", 8+(sw+port+c)%8)
	case name == "Module_Temperature":
		return strconv.Itoa(35 + (sw+port)%20)
	}
	return strconv.FormatUint(uint64(sw+1)*7919*uint64(port)*uint64(c+1)*1009, 10)
}

func (f Fabric) forEachPort(each func(sw, port int)) {
	for sw := range f.Switches {
		for port := 1; port <= f.Ports; port++ {
			each(sw, port)
		}
	}
}

// NodeGUID returns the GUID of a switch, without 0x and without padding.
func (f Fabric) NodeGUID(sw int) string { return strconv.FormatUint(0x2c90300000000+uint64(sw)<<8, 16) }

// WriteCSV writes the fabric as /csv/metrics does.
func (f Fabric) WriteCSV(w io.Writer) {
	fmt.Fprintf(w, "timestamp,source_id,tag,node_guid,port_guid,port_num,%s\n", strings.Join(f.Counters, ","))
	f.forEachPort(func(sw, port int) {
		fmt.Fprintf(w, "%d,0x%016s,,0x%016s,0x%016s,%d", f.At, f.NodeGUID(sw), f.NodeGUID(sw), f.NodeGUID(sw), port)
		for c := range f.Counters {
			fmt.Fprintf(w, ",%s", f.counterValue(sw, port, c))
		}
		fmt.Fprintln(w)
	})
}

// WriteJSON writes the fabric as an array of rows.
func (f Fabric) WriteJSON(w io.Writer) {
	fmt.Fprint(w, "[")
	first := true
	f.forEachPort(func(sw, port int) {
		if !first {
			fmt.Fprint(w, ",")
		}
		first = false
		fmt.Fprintf(w, "\n{\"timestamp\":%d,\"node_guid\":\"0x%016s\",\"port_guid\":\"0x%016s\",\"port_num\":%d", f.At, f.NodeGUID(sw), f.NodeGUID(sw), port)
		for c, name := range f.Counters {
			fmt.Fprintf(w, ",%q:%s", name, f.counterValue(sw, port, c))
		}
		fmt.Fprint(w, "}")
	})
	fmt.Fprint(w, "\n]\n")
}

// WritePrometheus writes the fabric as /metrics does: GUIDs are not padded, and times are in milliseconds.
func (f Fabric) WritePrometheus(w io.Writer) {
	f.forEachPort(func(sw, port int) {
		for c, name := range f.Counters {
			fmt.Fprintf(w, "%s{source=\"0x%016s\",node_guid=\"%s\",port_guid=\"%s\",port_num=\"%d\"} %s %d\n", name, f.NodeGUID(sw), f.NodeGUID(sw), f.NodeGUID(sw), port, f.counterValue(sw, port, c), f.At/1000)
		}
	})
}

// issueClientCert returns a client's certificate and its authority.
func issueClientCert(t testing.TB) (cert, key []byte, roots *x509.CertPool) {
	t.Helper()
	authority, err := pki.NewAuthority("ufm test", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := pki.Issue(authority, []string{"graylink"}, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority.Cert) {
		t.Fatal("no certificate in the authority's PEM")
	}
	return pair.Cert, pair.Key, roots
}
