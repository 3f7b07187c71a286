package program

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSystemdGetsToKnow has a socket in systemd's place. Its truth is the protocol of sd_notify(3).
func TestSystemdGetsToKnow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	next := func() string {
		t.Helper()
		if err := systemd.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1024)
		n, err := systemd.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	s := start(t, "127.0.0.1:0")
	ctx, stop := context.WithCancel(t.Context())
	hangup, reloaded, ended := make(chan os.Signal), make(chan bool, 1), make(chan error, 1)
	go func() {
		_, failed := s.Wait(ctx, Events{Hangup: hangup, Reload: func() { reloaded <- true }})
		ended <- failed
	}()
	if got := next(); got != "READY=1" {
		t.Errorf("first %q, want READY=1", got)
	}
	if got := next(); got != "WATCHDOG=1" {
		t.Errorf("then %q, want WATCHDOG=1", got)
	}
	hangup <- os.Interrupt
	<-reloaded
	for _, want := range []string{"RELOADING=1\nMONOTONIC_USEC=", "READY=1"} {
		got := next()
		for got == "WATCHDOG=1" {
			got = next()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q at a reload, want %q", got, want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	got := next()
	for got == "WATCHDOG=1" {
		got = next()
	}
	if got != "STOPPING=1" {
		t.Errorf("%q at the end, want STOPPING=1", got)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
