package gnmi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gpb "github.com/openconfig/gnmi/proto/gnmi"
	"google.golang.org/protobuf/proto"

	"github.com/graylink/graylink/internal/gnmi/gnmitest"
	"github.com/graylink/graylink/internal/gnmi/preset"
)

// TestSelfSigned checks that a switch's self-signed certificate, which is no authority, can be configured as the one
// that is trusted, and that it is trusted for its own name only.
func TestSelfSigned(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"leaf1"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "leaf1.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	server := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	for name, kind := range map[string]string{"leaf1": "", "leaf2": kindConnect} {
		_, a, log := started(t, "openconfig", gnmitest.ExampleState(time.Now()), gnmitest.Faults{}, server, func(c *Config) {
			c.TLS = TLS{CA: file, Server: name}
		})
		until(t, a, log, name, func(got map[string]float64) bool {
			return kind == "" && synced(got) || kind != "" && got[errorsOf(kind)] > 0
		})
	}
}

// TestLoadTLSConfig checks that the server's name counts where no file is configured, and that a file without
// certificates is an error.
func TestLoadTLSConfig(t *testing.T) {
	config, err := loadTLSConfig(TLS{Server: "leaf7"})
	if err != nil || config.ServerName != "leaf7" || config.MinVersion != tls.VersionTLS12 {
		t.Errorf("%+v, %v", config, err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadTLSConfig(TLS{CA: empty}); err == nil {
		t.Error("a file without certificates is accepted")
	}
}

// TestCommaInName checks that a switch that connects by itself has one session at a time, whatever its name is.
func TestCommaInName(t *testing.T) {
	const id = "leaf1,leaf2?%2f"
	a, log := listening(t, "openconfig", func(c *Config) { c.DialOut.Targets = []Caller{{ID: id, Name: "leaf1"}} })
	sw, conn := switchOf(t, "openconfig"), connected(t, a, nil)
	run(t, func(ctx context.Context) error { return sw.ServeTunnel(ctx, conn, id) })
	got := until(t, a, log, "series", synced)
	if got["graylink_gnmi_connects_total"+leaf1+"}"] != 1 {
		t.Errorf("%v\n%s", got, log)
	}
}

// TestRequests checks the messages that are sent: one for each target of the prefix and each encoding, with every path
// and its mode.
func TestRequests(t *testing.T) {
	user := []preset.UserPath{{Path: `/interfaces/interface[name={port}]/state/counters/in-ebp-pkts[id=a\]b]`, Metric: "fabric_switch_port_ebp_packets_total", Type: "counter", Unit: "none", Target: "T"}}
	for mode, want := range map[string]*gpb.Subscription{
		"stream": {Mode: gpb.SubscriptionMode_SAMPLE, SampleInterval: uint64(10 * time.Second)}, "once": {}, "poll": {},
	} {
		c := DefaultConfig()
		c.Preset, c.Mode, c.Paths, c.TLS.Insecure, c.Targets = "sonic", mode, user, true, []Target{{Address: "127.0.0.1:1"}}
		a, err := Start(c, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		var names []string
		paths := 0
		for _, r := range a.requests {
			names = append(names, r.target)
			for _, e := range a.encodings {
				list := r.messages[e].GetSubscribe()
				if list.Encoding != e || list.Mode != a.mode || list.GetPrefix().GetTarget() != r.target || (list.Prefix != nil) != (r.target != "") {
					t.Errorf("%s: %v", mode, list)
				}
				for _, s := range list.Subscription {
					if len(s.GetPath().GetElem()) == 0 || mode != "stream" && (s.Mode != 0 || s.SampleInterval != 0) {
						t.Errorf("%s: %v", mode, s)
					}
				}
				paths += len(list.Subscription)
			}
		}
		if !slices.Equal(slices.Sorted(slices.Values(names)), []string{"APPL_DB", "CONFIG_DB", "COUNTERS_DB", "STATE_DB", "T"}) || paths == 0 {
			t.Errorf("%s: %v, %d paths", mode, names, paths)
		}
		want.Path = &gpb.Path{Elem: []*gpb.PathElem{{Name: "interfaces"}, {Name: "interface", Key: map[string]string{"name": "*"}}, {Name: "state"}, {Name: "counters"},
			{Name: "in-ebp-pkts", Key: map[string]string{"id": "a]b"}}}}
		last := a.requests[slices.Index(names, "T")].messages[a.encodings[0]].GetSubscribe().Subscription
		if len(last) != 1 || !proto.Equal(last[0], want) {
			t.Errorf("%s: %v, want %v", mode, last, want)
		}
		if a.poll.GetPoll() == nil {
			t.Errorf("%s: %v is no poll", mode, a.poll)
		}
	}
}
