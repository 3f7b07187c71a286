package kernel

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/routetable"
	"github.com/graylink/graylink/internal/testneeds"
	"github.com/graylink/graylink/internal/unix"
)

const namespace = "graylink-routes-test"

// open makes a network namespace with the ports up1, up2 and dn1 and a management interface, and opens a reader in it.
func open(t testing.TB) *Reader {
	t.Helper()
	testneeds.Root(t, "network namespaces")
	_ = unix.RemoveNetns(namespace)
	if err := unix.CreateNetns(namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.RemoveNetns(namespace); err != nil {
			t.Error(err)
		}
	})
	run(t, "link set lo up")
	for i, port := range []string{"up1", "up2", "dn1", "eth0"} {
		run(t, "link add "+port+" type veth peer name far"+port)
		run(t, "addr add "+fmt.Sprintf("172.16.%d.0/31", i)+" dev "+port)
		run(t, "addr add "+fmt.Sprintf("2001:db8:%d::/127", i)+" nodad dev "+port)
		run(t, "link set far"+port+" up")
		run(t, "link set "+port+" up")
	}
	var r *Reader
	err := unix.InNetns(namespace, func() (err error) {
		r, err = Open()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// run runs ip in the namespace.
func run(t testing.TB, args string) string {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"-n", namespace}, strings.Fields(args)...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
	return string(out)
}

// portNames returns a function that names the interfaces of the namespace which are ports.
func portNames(t testing.TB) func(uint32) string {
	t.Helper()
	var links []struct {
		Number uint32 `json:"ifindex"`
		Name   string `json:"ifname"`
	}
	if err := json.Unmarshal([]byte(run(t, "-json link")), &links); err != nil {
		t.Fatal(err)
	}
	names := map[uint32]string{}
	for _, l := range links {
		if l.Name != "eth0" && l.Name != "lo" && !strings.HasPrefix(l.Name, "far") {
			names[l.Number] = l.Name
		}
	}
	return func(n uint32) string { return names[n] }
}

// expect checks that the table has the routes of a text, "10.0.0.0/24=up1,up2 10.1.0.0/24=", beside those of the ports'
// own subnets.
func expect(t *testing.T, r *Reader, text string) {
	t.Helper()
	table, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	got := table.Routes(portNames(t))
	maps.DeleteFunc(got, func(p netip.Prefix, _ []string) bool { return p.Bits() == 31 || p.Bits() == 127 })
	want := routetable.Routes{}
	for f := range strings.FieldsSeq(text) {
		p, ports, _ := strings.Cut(f, "=")
		want[netip.MustParsePrefix(p)] = strings.FieldsFunc(ports, func(r rune) bool { return r == ',' })
	}
	for _, ports := range got {
		slices.Sort(ports)
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("routes\n%v, want\n%v\n%s%s", got, want, run(t, "route"), run(t, "-6 route"))
	}
}

// TestRoutes checks all kinds of routes against what ip was asked to install.
func TestRoutes(t *testing.T) {
	r := open(t)
	expect(t, r, "")
	run(t, "route add 10.0.1.0/24 via 172.16.0.1")
	run(t, "route add 10.0.2.0/24 nexthop via 172.16.0.1 nexthop via 172.16.1.1 weight 3")
	run(t, "route add 10.0.3.0/24 nexthop via inet6 fe80::1 dev up1 nexthop via inet6 fe80::1 dev up2")
	run(t, "route add 10.0.4.0/24 via inet6 fe80::1 dev up2")
	run(t, "route add blackhole 10.0.5.0/24")
	run(t, "route add unreachable 10.0.6.0/24 proto bgp")
	run(t, "route add 10.0.7.0/24 via 172.16.3.1") // by an interface that is no port
	run(t, "route add 10.0.8.0/24 via 172.16.1.1 metric 20")
	run(t, "route add 10.0.8.0/24 via 172.16.0.1 metric 30") // not used
	run(t, "route add 10.0.9.0/24 via 172.16.0.1 table 100") // of another table
	run(t, "route add default via 172.16.3.1")
	run(t, "-6 route add 2001:db8:a::/64 nexthop via fe80::1 dev up1 nexthop via fe80::1 dev up2")
	run(t, "-6 route add blackhole 2001:db8:b::/64")
	const plain = "10.0.1.0/24=up1 10.0.2.0/24=up1,up2 10.0.3.0/24=up1,up2 10.0.4.0/24=up2 10.0.5.0/24= 10.0.6.0/24= 10.0.8.0/24=up2 2001:db8:a::/64=up1,up2 2001:db8:b::/64= "
	expect(t, r, plain)

	run(t, "nexthop add id 1 via 172.16.0.1 dev up1")
	run(t, "nexthop add id 2 via fe80::1 dev up2")
	run(t, "nexthop add id 3 group 1/2")
	run(t, "nexthop add id 4 blackhole")
	run(t, "nexthop add id 5 via fe80::1 dev up1")
	run(t, "nexthop add id 6 group 2/5")
	run(t, "route add 10.1.1.0/24 nhid 1")
	run(t, "route add 10.1.2.0/24 nhid 3")
	run(t, "route add 10.1.3.0/24 nhid 4")
	run(t, "-6 route add 2001:db8:c::/64 nhid 6")
	const groups = "10.1.1.0/24=up1 10.1.2.0/24=up1,up2 10.1.3.0/24= 2001:db8:c::/64=up1,up2"
	expect(t, r, plain+groups)
	// Without the compatible mode, the kernel reports only the numbers of next hops.
	if out, err := exec.Command("ip", "netns", "exec", namespace, "sysctl", "-w", "net.ipv4.nexthop_compat_mode=0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	expect(t, r, plain+groups)

	run(t, "nexthop replace id 3 group 2")
	expect(t, r, plain+"10.1.1.0/24=up1 10.1.2.0/24=up2 10.1.3.0/24= 2001:db8:c::/64=up1,up2")
	run(t, "link set up1 down")
	expect(t, r, "10.0.2.0/24=up2 10.0.3.0/24=up2 10.0.4.0/24=up2 10.0.5.0/24= 10.0.6.0/24= 10.0.8.0/24=up2 2001:db8:a::/64=up2 2001:db8:b::/64= "+
		"10.1.2.0/24=up2 10.1.3.0/24= 2001:db8:c::/64=up2")
}

// TestChanges checks that each change of the table is noticed, also those that the kernel does not notify of as routes.
func TestChanges(t *testing.T) {
	r := open(t)
	changes, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for {
			if err := r.AwaitChange(); err != nil {
				ended <- err
				return
			}
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	run(t, "nexthop add id 1 via 172.16.0.1 dev up1")
	run(t, "nexthop add id 2 via 172.16.1.1 dev up2")
	run(t, "nexthop add id 3 group 1/2")
	steps := []struct{ do, want string }{
		{"route add 10.0.1.0/24 via 172.16.0.1", "10.0.1.0/24=up1"},
		{"route replace blackhole 10.0.1.0/24", "10.0.1.0/24="},
		{"route add 10.0.2.0/24 nhid 3", "10.0.1.0/24= 10.0.2.0/24=up1,up2"},
		{"nexthop replace id 3 group 2", "10.0.1.0/24= 10.0.2.0/24=up2"},
		{"route del blackhole 10.0.1.0/24", "10.0.2.0/24=up2"},
		{"link set up2 down", ""},
	}
	for _, s := range steps {
		run(t, s.do)
		deadline := time.After(20 * time.Second)
		for {
			select {
			case <-changes:
			case <-deadline:
				expect(t, r, s.want)
				t.Fatalf("%s was not noticed", s.do)
			}
			table, err := r.Read()
			if err != nil {
				t.Fatal(err)
			}
			if has(t, table, s.want) {
				break
			}
		}
		expect(t, r, s.want)
	}
	r.Close()
	if err := <-ended; err == nil {
		t.Error("a reader that was closed notices changes")
	}
}

// has reports whether a table has as many routes of /24 as a text.
func has(t *testing.T, table Table, text string) bool {
	got := table.Routes(portNames(t))
	maps.DeleteFunc(got, func(p netip.Prefix, _ []string) bool { return p.Bits() != 24 })
	var all []string
	for p, ports := range got {
		slices.Sort(ports)
		all = append(all, p.String()+"="+strings.Join(ports, ","))
	}
	slices.Sort(all)
	return strings.Join(all, " ") == text
}

// TestOverflow checks that lost notifications count as a change.
func TestOverflow(t *testing.T) {
	r := open(t)
	if err := r.changes.SetReceiveBufferSize(2048, true); err != nil {
		t.Fatal(err)
	}
	var batch strings.Builder
	for i := range 500 {
		fmt.Fprintf(&batch, "route add 10.%d.%d.0/24 via 172.16.0.1\n", 1+i/250, i%250)
	}
	cmd := exec.Command("ip", "-n", namespace, "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for range 500 {
		if err := r.AwaitChange(); err != nil {
			t.Fatal(err)
		}
		if r.Overflows() > 0 {
			return
		}
	}
	t.Error("500 changes fit into a buffer of 2 KB")
}

var update = flag.Bool("update", false, "capture the kernel's messages of routes and next hops")

const messagesFile = "testdata/messages.hex"

// TestCapture reads the kernel's messages of several kinds of routes, and writes them to messagesFile, one a line in hexadecimal, with
// -update. Without it, each message is parsed.
func TestCapture(t *testing.T) {
	r := open(t)
	run(t, "nexthop add id 1 via 172.16.0.1 dev up1")
	run(t, "nexthop add id 3 group 1")
	for _, s := range []string{"10.0.2.0/24 nexthop via 172.16.0.1 nexthop via 172.16.1.1", "10.0.3.0/24 nexthop via inet6 fe80::1 dev up1 nexthop via inet6 fe80::1 dev up2", "blackhole 10.0.5.0/24", "10.0.6.0/24 nhid 3"} {
		run(t, "route add "+s)
	}
	var out strings.Builder
	keep := func(m []byte) { fmt.Fprintf(&out, "%x\n", m) }
	if err := errors.Join(r.each(syscall.RTM_GETROUTE, syscall.RTM_NEWROUTE, routeHeader, keep), r.each(rtmGetNextHop, rtmNewNextHop, nextHopHeader, keep)); err != nil {
		t.Fatal(err)
	}
	if !*update {
		for line := range strings.FieldsSeq(out.String()) {
			m, err := hex.DecodeString(line)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := parseRoute(m); err != nil {
				if _, err := parseNextHop(m); err != nil {
					t.Errorf("%s is neither a route nor a next hop: %v", line, err)
				}
			}
		}
		return
	}
	if err := os.WriteFile(messagesFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// FuzzParse checks that whatever a message has is refused or used.
func FuzzParse(f *testing.F) {
	text, err := os.ReadFile(messagesFile)
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.FieldsSeq(string(text)) {
		m, err := hex.DecodeString(line)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		all := map[uint32]nextHop{}
		if n, err := parseNextHop(m); err == nil {
			all[n.id] = n
		}
		r, ok, err := parseRoute(m)
		if err != nil {
			return
		}
		r.resolve(all)
		table := Table{}
		if ok {
			table.add(&r)
		}
		for p := range table.Routes(func(n uint32) string { return fmt.Sprint(n) }) {
			if !p.IsValid() {
				t.Fatalf("prefix %v of %x", p, m)
			}
		}
	})
}

// BenchmarkRead measures a reading of 1,000 routes with two next hops each.
func BenchmarkRead(b *testing.B) {
	r := open(b)
	var batch strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&batch, "route add 10.%d.%d.0/24 nexthop via 172.16.0.1 nexthop via 172.16.1.1\n", 1+i/250, i%250)
	}
	cmd := exec.Command("ip", "-n", namespace, "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
