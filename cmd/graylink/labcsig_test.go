package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/cmd/graylink/labsignals"
	"github.com/graylink/graylink/internal/lab"
)

// countPrograms returns the ports of a switch with an XDP program, and with an MTU.
func countPrograms(t *testing.T, l *lab.Lab, element string, mtu int) (programs, ofMTU int) {
	t.Helper()
	ports, err := l.PortInterfaces(element)
	if err != nil {
		t.Fatal(err)
	}
	err = l.InNamespace(element, func() error {
		for _, p := range ports {
			link, err := netlink.LinkByIndex(p.Index)
			if err != nil {
				return err
			}
			if x := link.Attrs().Xdp; x != nil && x.Attached {
				programs++
			}
			if link.Attrs().MTU == mtu {
				ofMTU++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return programs, ofMTU
}

// TestLabCSIG checks that the command attaches programs to all ports of a lab, says so, and takes them away at its end.
func TestLabCSIG(t *testing.T) {
	needLab(t)
	t.Setenv(lab.StateDirEnv, t.TempDir())
	name := fmt.Sprintf("csigtest%d", os.Getpid())
	topo, _, err := loadGraph(demoTopology)
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), topo, lab.Options{Name: name, Owner: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	profile := filepath.Join(t.TempDir(), "csig.yml")
	text := "ethertypes: {compact: 0x88b5, wide: 0x88b6}\ninterval: 100ms\nfastest_gbps: 400\nlocators: {compact: {\"leaf1:up1\": 7}}\n"
	if err := os.WriteFile(profile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		o    labCSIG
		want string
	}{
		{labCSIG{lab: name, profile: profile + ".absent"}, "no such file"},
		{labCSIG{lab: "absent", profile: profile}, "does not exist"},
		{labCSIG{lab: name, profile: profile, ports: labsignals.Options{Pass: []string{"leaf9:up1"}}}, `["leaf9:up1"] is not there`},
		{labCSIG{lab: name, profile: profile, ports: labsignals.Options{Strip: []string{"spine1:dn1"}, Without: []string{"spine1"}}}, `["spine1:dn1"] is not there`},
		{labCSIG{lab: name, profile: profile, ports: labsignals.Options{WAN: []string{"spine1"}}}, `["spine1"] is not there`},
	} {
		if err := bad.o.run(t.Context(), io.Discard); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%v, want %s", err, bad.want)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	o := labCSIG{lab: name, profile: profile, ports: labsignals.Options{Strip: []string{"leaf1:dn1"}, Without: []string{"spine2"}}}
	go func() {
		err := o.run(ctx, w)
		w.Close()
		ended <- err
	}()
	var printed []string
	for lines := bufio.NewScanner(r); lines.Scan(); {
		printed = append(printed, strings.Join(strings.Fields(lines.Text()), " "))
		if strings.Contains(lines.Text(), "until this command is interrupted") {
			break
		}
	}
	all := strings.Join(printed, "\n")
	for _, want := range []string{"leaf1:up1 up1 400000000000 7 - update", "leaf1:dn1 dn1 400000000000 - - strip", "20 ports of 5 switches"} {
		if !strings.Contains(all, want) {
			t.Errorf("printed %s\nwant %q in it", all, want)
		}
	}
	if programs, mtu := countPrograms(t, l, "spine1", lab.DefaultMTU+8); programs != 4 || mtu != 4 {
		t.Errorf("spine1: %d of 4 ports have a program, %d an MTU of 1508", programs, mtu)
	}
	if programs, _ := countPrograms(t, l, "spine2", lab.DefaultMTU); programs != 0 {
		t.Errorf("spine2, which shall have no programs: %d ports have one", programs)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if programs, mtu := countPrograms(t, l, "spine1", lab.DefaultMTU); programs != 0 || mtu != 4 {
		t.Errorf("afterwards, spine1: %d ports have a program, %d of 4 an MTU of 1500", programs, mtu)
	}
	// The command ends with the lab.
	ready, attached := io.Pipe()
	go func() { ended <- o.run(t.Context(), attached) }()
	for lines := bufio.NewScanner(ready); lines.Scan() && !strings.Contains(lines.Text(), "until this command is interrupted"); {
	}
	if err := lab.Down(t.Context(), name); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
