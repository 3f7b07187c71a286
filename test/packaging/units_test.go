//go:build packaging

package packaging

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/test/vm"
)

// guestScript runs in the machine when it has booted, and writes lines that the test reads.
const guestScript = `#!/bin/sh
say() { echo "GL $*" >/dev/ttyS0; }
for unit in graylink-coordinator graylink-node graylink-analyzer graylink-switch; do
	for i in $(seq 120); do
		state=$(systemctl is-active $unit)
		[ "$state" = active ] && break
		sleep 1
	done
	say unit $unit $state $(systemctl show -p User --value $unit) $(stat -c %U /proc/$(systemctl show -p MainPID --value $unit)) $(systemctl show -p NRestarts --value $unit)
	[ "$state" = active ] || journalctl --no-pager -u $unit | tail -20 >/dev/ttyS0
done
for i in $(seq 120); do
	[ -f /var/lib/graylink/node/pki/node.pem ] && break
	sleep 1
done
say enrolled $(stat -c '%a %U' /var/lib/graylink/node/pki/node.pem)
systemctl reload graylink-node graylink-coordinator graylink-analyzer && say reloaded
say active $(systemctl is-active graylink-node graylink-coordinator graylink-analyzer)
systemctl stop graylink-node
# The node's own unit checks the host in place of the agent, with one capability less each time.
all="CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE CAP_SYSLOG"
for without in none $all; do
	caps=$(echo " $all " | sed "s/ $without / /")
	sed -e 's/^Type=.*/Type=oneshot/' -e '/^WatchdogSec/d' -e '/^Restart/d' -e 's|^ExecStart=.*|& --preflight --preflight.format=json\nStandardOutput=truncate:/run/preflight|' \
		-e "s/^\(AmbientCapabilities\|CapabilityBoundingSet\)=.*/\1=$caps/" /usr/lib/systemd/system/graylink-node.service >/run/systemd/system/preflight.service
	systemctl daemon-reload
	systemctl start preflight
	systemctl reset-failed preflight
	say preflight $without $(tr -d '\n' </run/preflight)
done
systemctl stop graylink-coordinator graylink-analyzer graylink-switch
systemctl start graylink-serve
say serve $(systemctl is-active graylink-serve) $(stat -c '%U %a' /var/lib/graylink/serve) $(stat -c %U /proc/$(systemctl show -p MainPID --value graylink-serve))
systemctl is-active --quiet graylink-serve || journalctl --no-pager -u graylink-serve | tail -20 >/dev/ttyS0
graylink join-token h9 --file /var/lib/graylink/serve/join-tokens --ca /var/lib/graylink/serve/pki/ca.crt >/dev/null && say token
systemctl reload graylink-serve && systemctl stop graylink-serve && say served
say failed $(systemctl --failed --plain --no-legend | wc -l)
say end
systemctl poweroff --force --force
`

const guestUnit = `[Unit]
After=basic.target
[Service]
Type=oneshot
ExecStart=/usr/local/bin/guest-script
[Install]
WantedBy=multi-user.target
`

const guestTopology = `version: 1
switches: [{name: leaf1, role: leaf}]
nodes: [{name: h1, nics: [{device: eth1, addresses: [10.0.0.1]}]}, {name: h2, nics: [{device: eth1, addresses: [10.0.0.2]}]}]
links: [{a: h1/eth1, b: "leaf1:dn1"}, {a: h2/eth1, b: "leaf1:dn2"}]
`

// TestUnits boots systemd in a machine that has the packages, with the example flags.
func TestUnits(t *testing.T) {
	needRoot(t)
	parts, err := vm.FindParts(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	private, _ := key(t)
	release := filepath.Join(t.TempDir(), "release")
	build(t, release, private, "amd64")
	root := filepath.Join(t.TempDir(), "root")
	output(t, "mmdebstrap", "--variant=minbase", "--include=systemd,systemd-sysv,procps", "--quiet", "bookworm", root)
	prepareRoot(t, root, release)
	archive := filepath.Join(t.TempDir(), "root.cpio")
	c := exec.Command("sh", "-c", "find . -xdev -print0 | cpio --null --create --format=newc --quiet >"+archive)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	console := boot(t, parts.KernelImage(), archive)
	checkUnits(t, console)
}

// prepareRoot installs the packages and what a site would write.
func prepareRoot(t *testing.T, root, release string) {
	t.Helper()
	proc := filepath.Join(root, "proc")
	output(t, "mount", "-t", "proc", "proc", proc)
	defer output(t, "umount", proc)
	inside := func(args ...string) string { return output(t, "chroot", append([]string{root}, args...)...) }
	put := func(name, text string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	debs, err := filepath.Glob(filepath.Join(release, "*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	install := []string{"dpkg", "--install"}
	for _, deb := range debs {
		if !strings.Contains(deb, "otelcol") && !strings.Contains(deb, "node-rdma") { // which replaces graylink-node
			put("tmp/"+filepath.Base(deb), read(t, deb), 0o644)
			install = append(install, "/tmp/"+filepath.Base(deb))
		}
	}
	inside(install...)
	inside("sh", "-c", "rm -rf /tmp/*.deb /usr/share/doc /usr/share/locale /var/cache/apt /var/lib/apt/lists")
	put("etc/graylink/topology.yaml", guestTopology, 0o644)
	inside("sh", "-c", `cd /etc/graylink/pki && graylink cert ca && graylink cert issue coordinator --also 127.0.0.1 && mv coordinator.crt tls.crt && mv coordinator.key tls.key && chgrp graylink *.key && chmod 640 *.key
		graylink join-token h1 --file /etc/graylink/join-tokens --ca ca.crt > ../join-token && chgrp graylink ../join-token && chmod 640 ../join-token
		sed -i s/coordinator.example.net/127.0.0.1/ ../node.flags && echo --switch=leaf1 >> ../switch.flags`)
	put("usr/local/bin/guest-script", guestScript, 0o755)
	put("etc/systemd/system/guest.service", guestUnit, 0o644)
	inside("systemctl", "enable", "graylink-node", "graylink-coordinator", "graylink-analyzer", "graylink-switch", "guest")
	if err := os.Symlink("/lib/systemd/systemd", filepath.Join(root, "init")); err != nil {
		t.Fatal(err)
	}
}

// boot runs the machine until it switches itself off, and returns what it wrote to its console.
func boot(t *testing.T, kernel, archive string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	var console bytes.Buffer
	c := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", "2", "-m", "3072M", "-kernel", kernel, "-initrd", archive, "-append", "console=ttyS0 loglevel=4 panic=-1 rdinit=/init tsc=reliable no_timer_check systemd.unit=multi-user.target systemd.show_status=0",
		"-serial", "stdio")
	c.Stdout, c.Stderr = &console, &console
	if err := c.Run(); err != nil {
		t.Fatalf("QEMU: %v\n%s", err, console.String())
	}
	return console.String()
}

// checkUnits reads the lines of the script in the machine.
func checkUnits(t *testing.T, console string) {
	t.Helper()
	lines := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)GL (\w+) ?(.*?)\r?$`).FindAllStringSubmatch(console, -1) {
		lines[m[1]] = append(lines[m[1]], m[2])
	}
	if len(lines["end"]) != 1 {
		t.Fatalf("the script in the machine did not end:\n%s", console)
	}
	want := map[string][]string{
		"unit":  {"graylink-coordinator active graylink graylink 0", "graylink-node active graylink graylink 0", "graylink-analyzer active graylink graylink 0", "graylink-switch active graylink graylink 0"},
		"serve": {"active graylink 700 graylink"}, "token": {""}, "served": {""}, "enrolled": {"600 graylink"}, "reloaded": {""}, "active": {"active active active"}, "failed": {"0"},
	}
	for what, rows := range want {
		if !slices.Equal(lines[what], rows) {
			t.Errorf("%s: %q, want %q", what, lines[what], rows)
		}
	}
	checkCapabilities(t, lines["preflight"])
	if t.Failed() {
		t.Log(console)
	}
}

// checkCapabilities compares the rows that each missing capability costs with docs/privileges.md.
func checkCapabilities(t *testing.T, lines []string) {
	t.Helper()
	states := map[string]map[string]string{} // by the missing capability and the row
	for _, l := range lines {
		without, text, _ := strings.Cut(l, " ")
		var result struct {
			Needs []struct{ Need, State string }
		}
		if err := json.Unmarshal([]byte(text), &result); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		states[without] = map[string]string{}
		for _, n := range result.Needs {
			states[without][n.Need] = n.State
		}
	}
	if len(states) != 5 {
		t.Fatalf("%d results of --preflight, want five", len(states))
	}
	for capability, rows := range documentedRows(t) {
		for row, state := range states[capability] {
			changed := state != states["none"][row]
			listed := slices.Contains(rows, row)
			if changed && !listed {
				t.Errorf("without %s the row %q is %s, and docs/privileges.md does not list it", capability, row, state)
			}
			// The machine has no interface whose stamps could be off.
			if listed && !changed && row != "hardware time stamps" {
				t.Errorf("without %s the row %q stays %s", capability, row, state)
			}
		}
	}
}

// documentedRows returns the rows of --preflight that each capability costs.
func documentedRows(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(read(t, "../../docs/privileges.md")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.HasPrefix(cells[1], " `CAP_") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			out[name] = append(out[name], m[1])
		}
	}
	if len(out) != 4 {
		t.Fatalf("docs/privileges.md: %d capabilities", len(out))
	}
	return out
}
