package main

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/unix"
)

// Four thousand silent connections keep no agent out: every honest handshake meanwhile takes less than
// the 5 s of a silent one.
func TestRule9SilentConnectionsKeepNoAgentOut(t *testing.T) {
	const silent = 4000
	if limit, err := unix.RaiseOpenFiles(2*silent + 500); err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal(err)
		}
		t.Skipf("the test needs %d open files: %d, %v", 2*silent+500, limit, err)
	}
	r := newRig(t, topology(2, 2), nil)
	r.issue("h0")
	config := r.keeper("h0").ClientConfig("coordinator")
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range silent {
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	var worst time.Duration
	for range 5 {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		c, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", r.address)
		if err == nil {
			// TLS 1.3: the server sends nothing before it has verified the client, then HTTP/2's
			// settings.
			if deadline, ok := ctx.Deadline(); ok {
				err = c.SetReadDeadline(deadline)
			}
			if err == nil {
				_, err = c.Read(make([]byte, 9))
			}
			c.Close()
		}
		cancel()
		if err != nil {
			t.Fatalf("an honest handshake failed after %v: %v", time.Since(began), err)
		}
		worst = max(worst, time.Since(began))
	}
	t.Logf("%d silent connections: an honest handshake took %v at most", silent, worst)
	for _, c := range conns {
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("a silent connection: %v, want it closed", err)
		}
	}
}
