package vm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mappingLines match what the self-test prints of a device and of a port.
var mappingLines = regexp.MustCompile(`(?m)^(\S+: interfaces \[\S*\], verbs by \S+|\S+ port \d+: management datagrams by \S+)$`)

// deviceMapping compares how the agent maps interfaces, RDMA devices and their nodes by rdmamap, which it uses on /sys, by
// files, which it uses on another root, and how the kernel does. The devices are removed and come back in another order.
func deviceMapping(t *testing.T, b *bed) {
	m := b.h1
	shell(t, m, "ip link set lo up", "ln -s /sys /run/sys") // a root by another name
	for i := range 2 {
		shell(t, m, fmt.Sprintf("ip addr add 10.0.%d.1/24 dev eth%d && ip link set eth%d up", i, i, i))
	}
	var first []string
	for i, add := range [][]string{{"rxe0", "rxe1"}, {"rxe1"}, {"rxe1", "rxe0"}} {
		shell(t, m, "for d in rxe0 rxe1; do rdma link delete $d 2>/dev/null; done; true")
		for _, d := range add {
			shell(t, m, fmt.Sprintf("rdma link add %s type rxe netdev eth%s", d, d[3:]))
		}
		want := kernelMapping(t, m)
		if len(want) != 2*len(add) {
			t.Errorf("the kernel has %q, a line for each device and port of %v is expected", want, add)
		}
		library, files := selfTestMapping(t, m), selfTestMapping(t, m, "--path.sysfs=/run/sys")
		if !slices.Equal(library, want) || !slices.Equal(files, want) {
			t.Errorf("rdmamap gives %q, files give %q; the kernel has %q", library, files, want)
		}
		t.Logf("devices in the order %v: %q", add, library)
		if i == 0 {
			first = library
		}
		if i == 2 && slices.Equal(library, first) {
			t.Errorf("after the devices came back in another order, %q is as before", library)
		}
	}
}

// selfTestMapping returns what the agent's self-test prints of the mapping, in order.
func selfTestMapping(t *testing.T, m *Machine, flags ...string) []string {
	t.Helper()
	r, err := m.Run(t.Context(), append([]string{"graylink-node", "--selftest=rdma"}, flags...)...)
	if err != nil || r.Code != 0 {
		t.Errorf("%+v, %v; exit code 0 is expected", r, err)
		return nil
	}
	lines := mappingLines.FindAllString(r.Stdout, -1)
	slices.Sort(lines)
	return lines
}

// kernelMapping returns the same by the command rdma and the classes of the nodes.
func kernelMapping(t *testing.T, m *Machine) (lines []string) {
	t.Helper()
	// Lines are: link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0
	for l := range strings.Lines(shell(t, m, "rdma link show")) {
		f := strings.Fields(l)
		if len(f) < 4 || f[len(f)-2] != "netdev" {
			t.Errorf("rdma link show: %q has no interface", l)
			continue
		}
		device, _, _ := strings.Cut(f[1], "/")
		node := strings.TrimSpace(shell(t, m, fmt.Sprintf("cd /sys/class/infiniband_verbs; for n in uverbs*; do [ $(cat $n/ibdev) = %s ] && echo $n; done; true", device)))
		lines = append(lines, fmt.Sprintf("%s: interfaces [%s], verbs by /dev/infiniband/%s", device, f[len(f)-1], node))
	}
	for l := range strings.Lines(shell(t, m, "cd /sys/class/infiniband_mad; for n in umad*; do echo $(cat $n/ibdev) $(cat $n/port) $n; done")) {
		f := strings.Fields(l)
		lines = append(lines, fmt.Sprintf("%s port %s: management datagrams by /dev/infiniband/%s", f[0], f[1], f[2]))
	}
	slices.Sort(lines)
	return lines
}
