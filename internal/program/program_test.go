package program

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// start returns a program that listens at an address, and its service.
func start(t *testing.T, address string) *Service {
	t.Helper()
	p := New("test", "A test.")
	p.AddFlags(address, "POST /")
	log, ok := p.Parse(nil)
	if !ok || log.Enabled(t.Context(), slog.LevelDebug) {
		t.Fatalf("parsed %t; debug messages are logged by default", ok)
	}
	if err := p.Web.Validate(); err != nil {
		t.Fatal(err)
	}
	return p.StartService(p.Web.NewServer(http.NotFoundHandler(), nil, log), log)
}

func TestWaitReloadsAndEnds(t *testing.T) {
	s := start(t, "127.0.0.1:0")
	hangup, stopHangup := ReloadSignals()
	defer stopHangup()
	ctx, stop := StopSignals()
	defer stop()
	var log strings.Builder
	results, reloads := []error{errors.New("no file"), nil}, 0
	reload := LogReload(slog.New(slog.NewTextHandler(&log, nil)), "cannot reload", func() error { reloads++; return results[reloads-1] })
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	web, failed := s.Wait(ctx, Events{Hangup: hangup, Reload: func() {
		reload()
		signal := syscall.SIGHUP
		if reloads == len(results) {
			signal = syscall.SIGTERM
		}
		if err := syscall.Kill(syscall.Getpid(), signal); err != nil {
			t.Error(err)
		}
	}})
	if web != nil || failed != nil || reloads != 2 {
		t.Errorf("%v, %v after %d reloads", web, failed, reloads)
	}
	if text := log.String(); !strings.Contains(text, `msg="cannot reload" err="no file"`) || !strings.Contains(text, "msg=reloaded") {
		t.Errorf("logged %s", text)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

func TestWaitReturnsFailures(t *testing.T) {
	want := errors.New("failed")
	channel := make(chan error, 1)
	channel <- want
	for name, e := range map[string]Events{"check": {Check: func() error { return want }}, "channel": {Failed: channel}} {
		s := start(t, "127.0.0.1:0")
		if web, failed := s.Wait(t.Context(), e); web != nil || failed != want {
			t.Errorf("%s: %v, %v", name, web, failed)
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestWaitReturnsErrorOfListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := start(t, l.Addr().String())
	if web, failed := s.Wait(t.Context(), Events{}); web == nil || failed != nil {
		t.Errorf("%v, %v, want an error of the listener", web, failed)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	s = start(t, l.Addr().String())

	for len(s.served) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := s.Stop(); err == nil {
		t.Error("the error of a listener that failed after Wait is lost")
	}
}

func TestParseRefusesArguments(t *testing.T) {
	for _, args := range [][]string{{"--nothing"}, {"--log.level=loud"}} {
		p := New("test", "A test.")
		p.App.ErrorWriter(io.Discard)
		p.AddFlags("127.0.0.1:0", "")
		if _, ok := p.Parse(args); ok {
			t.Errorf("%q is accepted", args)
		}
	}
}
