package ufm_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ufm"
	"github.com/graylink/graylink/internal/ufm/ufmtest"
)

// rows returns telemetry of n ports in CSV.
func rows(n int) string {
	var b strings.Builder
	ufmtest.Fabric{Switches: 1, Ports: n, Counters: ufmtest.CounterNames(2), At: 1709652347161873}.WriteCSV(&b)
	return strings.Replace(strings.ReplaceAll(b.String(), ",,", ",switch,"), "source_id,tag", "device_name,device_type", 1)
}

// TestFaultsOfBodies checks as which kind each fault is reported, and how much of a document of telemetry is
// used in spite of it.
func TestFaultsOfBodies(t *testing.T) {
	const ports = 500
	whole := rows(ports)
	for name, x := range map[string]struct {
		fault ufmtest.Fault
		kind  ufm.Kind
		most  int // samples
		least int
	}{
		"whole":                 {ufmtest.Fault{}, "", 2 * ports, 2 * ports},
		"any type":              {ufmtest.Fault{Type: "application/octet-stream"}, "", 2 * ports, 2 * ports},
		"a type that is none":   {ufmtest.Fault{Type: ";;"}, "", 2 * ports, 2 * ports},
		"compressed":            {ufmtest.Fault{Gzip: true}, "", 2 * ports, 2 * ports},
		"compressed, cut":       {ufmtest.Fault{Gzip: true, Cut: 2000}, ufm.KindTruncated, 2*ports - 1, 1},
		"compressed, spoilt":    {ufmtest.Fault{Gzip: true, Spoil: true}, ufm.KindMalformed, 2 * ports, 0},
		"reset in the middle":   {ufmtest.Fault{Cut: len(whole) / 2, Reset: true}, ufm.KindTruncated, ports, ports / 2},
		"ends in the middle":    {ufmtest.Fault{Cut: len(whole) / 2}, ufm.KindTruncated, ports, ports / 2},
		"a page for people":     {ufmtest.Fault{Type: "text/html; charset=utf-8"}, ufm.KindMalformed, 0, 0},
		"compressed, one octet": {ufmtest.Fault{Gzip: true, Cut: 1}, ufm.KindTruncated, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := ufmtest.New(t)
			s.SetBody("/csv/metrics", whole)
			s.SetFault("/csv/metrics", &x.fault)
			table, err := ufm.NewTable(nil, ufm.OpticsUnits{})
			if err != nil {
				t.Fatal(err)
			}
			source := ufm.NewSource(table, &ufm.Directory{})
			n := 0
			err = client(t, options(s)).Get(t.Context(), "/csv/metrics", func(r io.Reader) error {
				_, err := source.Read(ufm.CSV, r, func(ufm.Sample) error { n++; return nil })
				return err
			})
			if (err == nil) != (x.kind == "") || err != nil && ufm.KindOf(err) != x.kind || n > x.most || n < x.least {
				t.Errorf("%d samples, %v, want %q with %d to %d", n, err, x.kind, x.least, x.most)
			}
		})
	}
}

// TestDrip checks that the reading of a body that stalls ends in time, and that the part received is used.
func TestDrip(t *testing.T) {
	s := ufmtest.New(t)
	s.SetBody("/csv/metrics", rows(100))
	s.SetFault("/csv/metrics", &ufmtest.Fault{Drip: 4000})
	o := options(s)
	o.Timeout = 500 * time.Millisecond
	table, err := ufm.NewTable(nil, ufm.OpticsUnits{})
	if err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func(io.Reader) error{
		"telemetry": func(r io.Reader) error {
			_, err := ufm.NewSource(table, &ufm.Directory{}).Read(ufm.CSV, r, func(ufm.Sample) error { return nil })
			return err
		},
		// This is what a service does that ends its document properly when it sees the client leave.
		"one that takes any end": func(r io.Reader) error {
			_, _ = io.Copy(io.Discard, r)
			return nil
		},
	} {
		err := client(t, o).Get(t.Context(), "/csv/metrics", read)
		if ufm.KindOf(err) != ufm.KindTimeout && ufm.KindOf(err) != ufm.KindConnect { // the latter when a slow machine did not connect in time
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCompressedBodiesAreBounded checks that the limit applies to the uncompressed size.
func TestCompressedBodiesAreBounded(t *testing.T) {
	s := ufmtest.New(t)
	s.SetBody("/x", strings.Repeat("0", 10<<20))
	s.SetFault("/x", &ufmtest.Fault{Gzip: true})
	read := 0
	err := client(t, options(s)).Get(t.Context(), "/x", func(r io.Reader) error {
		b, err := io.ReadAll(r)
		read = len(b)
		return err
	})
	if ufm.KindOf(err) != ufm.KindTooLarge || read > 1<<20 {
		t.Errorf("%d octets, %v", read, err)
	}
}

// TestRedirectsTakeNothingAlong checks that no request and no credentials go to another host.
func TestRedirectsTakeNothingAlong(t *testing.T) {
	var asked atomic.Int64
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	for _, way := range []string{"token", "password", "certificate"} {
		s := ufmtest.New(t)
		o := options(s)
		o.TokenFile, o.CAFile, o.Insecure = "", "", true // the least careful configuration
		switch way {
		case "token":
			o.TokenFile = s.TokenFile
		case "password":
			o.UsernameFile, o.PasswordFile = s.UserFile, s.PasswordFile
		case "certificate":
			o.CertFile, o.KeyFile = s.CertFile, s.KeyFile
		}
		c := client(t, o)
		s.SetJSON("/app/alarms", []string{})
		s.SetFault(c.BasePath()+"/app/alarms", &ufmtest.Fault{Location: other.URL + "/app/alarms"})
		_, err := c.FetchAlarms(t.Context(), time.UTC)
		if ufm.KindOf(err) != ufm.KindRedirect || strings.Contains(err.Error(), other.URL) {
			t.Errorf("%s: %v", way, err)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the other host was asked %d times", n)
	}
}

// TestSessionEnds checks that a refused token is reported without a second try, and that a new one in its file
// is used with the next request.
func TestSessionEnds(t *testing.T) {
	s := ufmtest.New(t)
	s.SetJSON("/app/alarms", []string{})
	o := options(s)
	o.Retries = 3
	c := client(t, o)
	if _, err := c.FetchAlarms(t.Context(), time.UTC); err != nil {
		t.Fatal(err)
	}
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(s.TokenFile, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("revoked")
	if _, err := c.FetchAlarms(t.Context(), time.UTC); ufm.KindOf(err) != ufm.KindUnauthorized || strings.Contains(err.Error(), "revoked") {
		t.Errorf("%v", err)
	}
	if n := len(s.RequestURIs()); n != 2 {
		t.Errorf("asked %d times", n)
	}
	write(ufmtest.Token)
	if _, err := c.FetchAlarms(t.Context(), time.UTC); err != nil {
		t.Errorf("a new token: %v", err)
	}
}

// TestNotOffered checks that a path that does not exist is distinguished from others that fail.
func TestNotOffered(t *testing.T) {
	s := ufmtest.New(t)
	c := client(t, options(s))
	if _, err := c.CountJobs(t.Context()); !errors.Is(err, ufm.ErrNotOffered) || ufm.KindOf(err) != ufm.KindStatus {
		t.Errorf("%v", err)
	}
	for _, f := range []ufmtest.Fault{{Status: 500}, {Status: 401}, {Status: 410}} {
		s.SetFault("/ufmRestV3/jobs", &f)
		if _, err := c.CountJobs(t.Context()); err == nil || errors.Is(err, ufm.ErrNotOffered) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

func TestJobsAndVPorts(t *testing.T) {
	s := ufmtest.New(t)
	s.SetJSON("/jobs", []map[string]any{{"ID": "1", "Status": "Running", "Progress": 10, "RelatedObjects": []string{"10.209.36.140"}}, {"ID": "2", "Status": "Running"}, {"ID": 3, "Status": nil}})
	s.SetJSON("/resources/vports", []map[string]any{{"virtual_port_state": "Active", "port_guid": "248a0703008a850b", "physical_port_number": 2}, {"port_guid": "x"}, {"port_guid": "1", "physical_port_number": -1}})
	c := client(t, options(s))
	jobs, err := c.CountJobs(t.Context())
	if err != nil || fmt.Sprint(jobs) != "map[:1 Running:2]" {
		t.Errorf("%v, %v", jobs, err)
	}
	all, bad, err := c.FetchVPorts(t.Context())
	if err != nil || bad != 2 || len(all) != 1 || all[0].State != "Active" || all[0].Number != 2 || all[0].Port != 0x248a0703008a850b {
		t.Errorf("%+v, %d, %v", all, bad, err)
	}
	for body, kind := range map[string]ufm.Kind{`{"Status":"Running"}`: ufm.KindMalformed, `[{"Status":{}}]`: ufm.KindMalformed, `[{"Status":"R"}`: ufm.KindTruncated} {
		s.SetBody("/ufmRestV3/jobs", body)
		if _, err := c.CountJobs(t.Context()); ufm.KindOf(err) != kind {
			t.Errorf("%s: %v", body, err)
		}
	}
}
