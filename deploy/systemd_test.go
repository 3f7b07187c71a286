package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/testneeds"
)

// mostExposure is the largest exposure of each unit by systemd-analyze security, in tenths.
var mostExposure = map[string]string{"graylink-node.service": "30", "graylink-switch.service": "20", "graylink-coordinator.service": "20", "graylink-analyzer.service": "20", "graylink-serve.service": "20"}

// TestUnits checks the units by systemd itself: that it has nothing to say about them, and that they are confined.
func TestUnits(t *testing.T) {
	analyze := tool(t, "systemd-analyze", "systemd")
	root := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	// What an installed system has of what the units refer to.
	for _, target := range []string{"sysinit", "basic", "shutdown", "multi-user", "network-online"} {
		write("etc/systemd/system/"+target+".target", "[Unit]\nDescription="+target+"\n", 0o644)
	}
	write("bin/kill", "", 0o755)
	args := []string{"verify", "--man=no", "--root=" + root, "graylink.slice"}
	write("etc/systemd/system/graylink.slice", read(t, "systemd/graylink.slice"), 0o644)
	for unit, most := range mostExposure {
		text := read(t, "systemd/"+unit)
		write("etc/systemd/system/"+unit, text, 0o644)
		name := strings.TrimSuffix(unit, ".service")
		command := strings.Replace("/usr/bin/"+name, "graylink-serve", "graylink serve", 1)
		program, _, _ := strings.Cut(command, " ")
		write(program, "", 0o755)
		flags := strings.TrimPrefix(name, "graylink-") + ".flags"
		if !strings.Contains(text, "\nExecStart="+command+" @/etc/graylink/"+flags+"\n") {
			t.Errorf("%s does not run %s with %s", unit, command, flags)
		}
		if _, err := os.Stat("systemd/flags/" + flags); err != nil {
			t.Errorf("%s has no example of its flags: %v", unit, err)
		}
		args = append(args, unit)
		file, err := filepath.Abs("systemd/" + unit)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold="+most, file).CombinedOutput(); err != nil {
			t.Errorf("%s: an exposure of %s tenths at most is allowed: %v\n%s", unit, most, err, out)
		}
	}
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestDropInOfSignals checks by systemd that the agent's unit with the drop-in for --csig.source has what eBPF needs, and keeps the rest.
func TestDropInOfSignals(t *testing.T) {
	analyze := tool(t, "systemd-analyze", "systemd")
	// systemd appends the lines of a drop-in to those of the unit's section.
	_, lines, found := strings.Cut(read(t, "systemd/drop-ins/graylink-node-csig.conf"), "[Service]\n")
	if want := "AmbientCapabilities=CAP_BPF CAP_PERFMON\nCapabilityBoundingSet=CAP_BPF CAP_PERFMON\nSystemCallFilter=bpf\n"; !found || lines != want {
		t.Fatalf("the section of the drop-in is %q, want %q", lines, want)
	}
	unit := filepath.Join(t.TempDir(), "graylink-node.service")
	text := strings.Replace(read(t, "systemd/graylink-node.service"), "\n[Install]", "\n"+lines+"\n[Install]", 1)
	if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold=35", unit).CombinedOutput()
	if err != nil {
		t.Errorf("an exposure of 35 tenths at most is allowed: %v\n%s", err, out)
	}
	flags := read(t, "systemd/flags/node.flags")
	if !strings.Contains(flags, "\n# --csig.source=compact\n") || !strings.Contains(flags, "graylink-node-csig.conf") {
		t.Error("node.flags does not show --csig.source with its drop-in")
	}
}

// TestSocketOfPlugins: the agent's service makes the directory of the socket to which the profiler plugin connects by default, as its
// own, and lets users pass it.
func TestSocketOfPlugins(t *testing.T) {
	m := regexp.MustCompile(`(?m)^#define DEFAULT_SOCKET "(.*)"$`).FindStringSubmatch(read(t, "nccl/plugin.c"))
	if m == nil {
		t.Fatal("nccl/plugin.c has no default socket")
	}
	unit := read(t, "systemd/graylink-node.service")
	for _, want := range []string{"User=graylink", "Group=graylink", "RuntimeDirectory=" + strings.TrimPrefix(filepath.Dir(m[1]), "/run/"), "RuntimeDirectoryMode=0755"} {
		if !strings.Contains(unit, "\n"+want+"\n") {
			t.Errorf("graylink-node.service has not %s", want)
		}
	}
	if flags := read(t, "systemd/flags/node.flags"); !strings.Contains(flags, "\n# --collectives.socket="+m[1]+"\n") {
		t.Errorf("node.flags does not show --collectives.socket=%s", m[1])
	}
}

// TestUserAndDirectories checks the files of systemd-sysusers and systemd-tmpfiles by these programs, in a root of their own.
func TestUserAndDirectories(t *testing.T) {
	testneeds.Root(t, "directories get owners")
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(file, program string, args ...string) {
		cmd := exec.Command(tool(t, program, "systemd"), append(args, "--root="+root, "-")...)
		cmd.Stdin = strings.NewReader(read(t, file))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	run("systemd/sysusers.d/graylink.conf", "systemd-sysusers")
	run("systemd/tmpfiles.d/graylink.conf", "systemd-tmpfiles", "--create")
	users, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil || !strings.Contains(string(users), "graylink:x:") || !strings.Contains(string(users), ":/var/lib/graylink:/usr/sbin/nologin") {
		t.Errorf("%v: %s", err, users)
	}
	for dir, mode := range map[string]os.FileMode{"etc/graylink": 0o755, "etc/graylink/pki": 0o750, "var/lib/graylink": 0o755} {
		if info, err := os.Stat(filepath.Join(root, dir)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want %v", dir, info, err, mode)
		}
	}
}
