package program

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
)

func TestCheckPrintsEveryError(t *testing.T) {
	p := New("test", "A test.")
	p.AddFlags("192.0.2.1:9", "") // an address of another host (RFC 5737)
	if _, ok := p.Parse([]string{"--check"}); !ok || !p.CheckOnly {
		t.Fatal("--check is not accepted")
	}
	var out bytes.Buffer
	fine := func() error { return nil }
	several := func() error {
		return errors.Join(errors.New("one"), fmt.Errorf("around: %w", errors.Join(errors.New("two"), errors.New("three"))))
	}
	if p.Check(t.Context(), &out, fine, several) != 1 {
		t.Error("nothing wrong was found")
	}
	want := []string{"test: one", "test: around: two", "three", "test: --web.listen-address: listen tcp 192.0.2.1:9: "}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%q, want %q", lines, want)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want[i])
		}
	}
}

func TestCheckListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, want := range map[string]string{
		l.Addr().String():   "", // the program itself may be running
		"127.0.0.1:0":       "",
		"unix:/nowhere/a":   "",
		"192.0.2.1:9":       "--x: listen tcp 192.0.2.1:9",
		"127.0.0.1:nothing": "--x: listen tcp",
	} {
		err := CheckListener(t.Context(), "--x", address)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}
