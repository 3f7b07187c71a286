//go:build packaging

package packaging

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/test/vm"
)

var builtRelease = flag.String("release", "", "directory of a release that TestStartSlurm takes instead of building one")

// startPage is the page whose commands TestStartSlurm runs.
const startPage = "../../docs/start-slurm.md"

// step is a fenced block of a page.
type step struct {
	section  string // the heading above it
	language string
	before   string // the paragraph above it
	text     string
}

// steps returns the fenced blocks of a page in order.
func steps(page string) (out []step) {
	section, paragraph, language, text, inside := "", "", "", "", false
	for line := range strings.Lines(page) {
		switch fence, is := strings.CutPrefix(strings.TrimSpace(line), "```"); {
		case is && inside:
			out = append(out, step{section, language, strings.TrimSpace(paragraph), text})
			inside, paragraph = false, ""
		case is:
			inside, language, text = true, fence, ""
		case inside:
			text += line
		case strings.HasPrefix(line, "## "):
			section, paragraph = strings.TrimSpace(line[3:]), ""
		default:
			paragraph += line
		}
	}
	return out
}

// The sections of the page and the languages of their blocks. A page of another shape needs another test.
var startSections = map[string][]string{
	"On `head`":          {"sh", "sh", "yaml", "sh"},
	"On each GPU host":   {"sh", "sh"},
	"Is it working?":     {"sh"},
	"How is it removed?": {"sh"},
}

// startSteps returns the blocks of docs/start-slurm.md by section.
func startSteps(t *testing.T) map[string][]step {
	t.Helper()
	out, languages := map[string][]step{}, map[string][]string{}
	for _, s := range steps(read(t, startPage)) {
		out[s.section], languages[s.section] = append(out[s.section], s), append(languages[s.section], s.language)
	}
	if !maps.EqualFunc(languages, startSections, slices.Equal) {
		t.Fatalf("%s has blocks %q, want %q", startPage, languages, startSections)
	}
	return out
}

// siteTopology describes three hosts with a NIC in each of two planes. The first host is the page's head as well.
const siteTopology = `version: 1
switches: [{name: leafa, role: leaf, plane: a}, {name: leafb, role: leaf, plane: b}]
nodes:
  - {name: h1, nics: [{device: eth0, plane: a, rail: 0, addresses: [10.1.0.1]}, {device: eth1, plane: b, rail: 1, addresses: [10.2.0.1]}]}
  - {name: h2, nics: [{device: eth0, plane: a, rail: 0, addresses: [10.1.0.2]}, {device: eth1, plane: b, rail: 1, addresses: [10.2.0.2]}]}
  - {name: h3, nics: [{device: eth0, plane: a, rail: 0, addresses: [10.1.0.3]}, {device: eth1, plane: b, rail: 1, addresses: [10.2.0.3]}]}
links:
  - {a: h1/eth0, b: "leafa:1"}
  - {a: h2/eth0, b: "leafa:2"}
  - {a: h3/eth0, b: "leafa:3"}
  - {a: h1/eth1, b: "leafb:1"}
  - {a: h2/eth1, b: "leafb:2"}
  - {a: h3/eth1, b: "leafb:3"}
`

const siteHosts = "127.0.0.1 localhost\n10.1.0.1 h1 head\n10.1.0.2 h2\n10.1.0.3 h3\n"

// slowProbes has the coordinator schedule ten probes a second and edge instead of a hundred: the processors of the
// machines are emulated, and three machines share two real cores.
const slowProbes = `[Service]
ExecStart=
ExecStart=/usr/bin/graylink-coordinator @/etc/graylink/coordinator.flags --schedule.cadence=100ms
`

// slurmConfiguration is that of a Slurm whose controller runs on the first host.
const slurmConfiguration = `ClusterName=site
SlurmctldHost=h1
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
MpiDefault=none
NodeName=h[1-3] CPUs=1 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

// site is three machines of Debian with Slurm, and a job on all of them. They have nothing of Graylink but its packages in
// /root.
type site struct {
	t        *testing.T
	networks []*vm.Network // of eth0 and eth1
	machines map[string]*vm.Machine
}

var siteNames = []string{"h1", "h2", "h3"}

// TestStartSlurm follows docs/start-slurm.md on three machines: its blocks run as they stand, in the order of the page.
// Then one NIC's packets are delayed in the network, a verdict names it within a minute, and the last block removes the
// packages. With little else on two cores the verdict came 7 s after the page's last command, which waits for the state innocent, and
// 30 s after the last one on the hosts; beside other tests 9 s and 44 s. Where those take most of both cores, Prometheus
// does not answer within the analyzer's patience of 5 s, and the state stays insufficient_evidence.
func TestStartSlurm(t *testing.T) {
	needRoot(t)
	page := startSteps(t)
	release := *builtRelease
	if release == "" {
		private, _ := key(t)
		release = filepath.Join(t.TempDir(), "release")
		build(t, release, private, "amd64")
	}
	s := newSite(t, release)
	before := map[string]map[string]bool{}
	for _, name := range siteNames {
		before[name] = s.files(name)
	}

	began := time.Now()
	for _, b := range page["On `head`"] {
		if b.language == "yaml" {
			s.addLines("h1", b)
			continue
		}
		s.run("h1", b.text)
	}
	gpu := page["On each GPU host"]
	tokens := strings.Fields(s.run("h1", gpu[0].text))
	if len(tokens) != len(siteNames) {
		t.Fatalf("%q: want a token for each of %q", tokens, siteNames)
	}
	var hosts sync.WaitGroup
	for i, name := range siteNames {
		if err := s.machines[name].WriteFile(t.Context(), "/etc/graylink/join-token", []byte(tokens[i]+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		hosts.Go(func() { s.run(name, gpu[1].text) })
	}
	hosts.Wait()
	if t.Failed() {
		t.FailNow()
	}
	started := time.Now()
	t.Logf("the last command on the hosts ended %.1f s after the first", started.Sub(began).Seconds())
	s.waitFor("the network is innocent", 6*time.Minute, func() (string, bool) {
		state, _, text := s.verdicts()
		return text, state == fabric.Innocent
	})
	t.Logf("innocent %.1f s after the last command on the hosts", time.Since(started).Seconds())
	if out := s.run("h1", page["Is it working?"][0].text); strings.Count(out, `"state":"connected"`) != len(siteNames) || !strings.Contains(out, `"innocent"`) {
		t.Errorf("the commands of %q print\n%s", "Is it working?", out)
	}
	s.checkJob(0)
	s.checkVerdict()
	t.Logf("the verdict came %.1f s after the last command on the hosts", time.Since(started).Seconds())
	s.checkJob(2)
	s.checkRemoval(before, page["How is it removed?"][0].text)
}

// checkVerdict delays what one NIC sends, after the commands of the page, and waits for a verdict that names it.
func (s *site) checkVerdict() {
	s.t.Helper()
	if err := s.networks[1].Delay("h3", 1, 40*time.Millisecond); err != nil {
		s.t.Fatal(err)
	}
	last := time.Now()
	s.waitFor("a verdict names eth1 of h3", 3*time.Minute, func() (string, bool) {
		_, all, text := s.verdicts()
		for i := range all {
			v := &all[i]
			isIt := func(e fabric.Element) bool { return e.ID == "h3/eth1" }
			if v.OpenedAt.After(last) && (isIt(v.Element) || slices.ContainsFunc(v.Equivalent, isIt)) {
				s.t.Logf("%.1f s after the last command and the delay: %s", time.Since(last).Seconds(), v.Summary)
				if v.Symptom.AddedDelayNS < 36e6 || v.Symptom.AddedDelayNS > 60e6 {
					s.t.Errorf("%v ns are added, want 40 ms", v.Symptom.AddedDelayNS)
				}
				return "", true
			}
		}
		return text, false
	})
	if took := time.Since(last); took > time.Minute {
		s.t.Errorf("the verdict came %v after the last command, want a minute at most", took)
	}
}

// siteData are files that the site made itself by the commands of the page, in the directories that hold them.
var siteData = regexp.MustCompile(`^/etc/graylink(|/topology\.yaml|/join-tokens?|/pki(|/(ca|tls)\.(crt|key)))$|^/etc/prometheus/graylink(/|$)`)

// otherFiles are those of Debian's own programs: of Prometheus, of Slurm, and of the programs that install packages.
var otherFiles = regexp.MustCompile(`/([KS]01|systemd-private-\w+-)?prometheus\b|^/etc/lighttpd/|^/var/(lib/(dpkg|apt|systemd|ucf|slurm)|cache|log)/`)

// checkRemoval removes the packages, and compares the files with those of before.
func (s *site) checkRemoval(before map[string]map[string]bool, commands string) {
	s.t.Helper()
	var hosts sync.WaitGroup
	for _, name := range siteNames {
		hosts.Go(func() { s.run(name, commands) })
	}
	hosts.Wait()
	for _, name := range siteNames {
		installed := map[string]bool{}
		for f := range strings.Lines(s.run(name, "cat /var/lib/dpkg/info/*.list")) {
			installed[strings.TrimSpace(f)] = true
		}
		after := s.files(name)
		var left, kept []string
		for _, f := range slices.Sorted(maps.Keys(after)) {
			switch {
			case before[name][f] || installed[f]:
			case siteData.MatchString(f):
				kept = append(kept, f)
			case !otherFiles.MatchString(f) || strings.Contains(f, "graylink"):
				left = append(left, f)
			}
		}
		if len(left) > 0 {
			s.t.Errorf("%s: the packages leave %q", name, left)
		}
		if !slices.Contains(kept, "/etc/graylink/join-token") || name == "h1" && !slices.Contains(kept, "/etc/graylink/pki/ca.key") {
			s.t.Errorf("%s: of the site's own files only %q are left", name, kept)
		}
		for f := range before[name] {
			if !after[f] && !otherFiles.MatchString(f) {
				s.t.Errorf("%s: %s is gone", name, f)
			}
		}
		if out := s.run(name, "systemctl list-units --all --plain --no-legend 'graylink*' | grep -v slice || true"); strings.TrimSpace(out) != "" {
			s.t.Errorf("%s: units are left:\n%s", name, out)
		}
	}
}

// newSite starts the machines, and gives their interfaces addresses.
func newSite(t *testing.T, release string) *site {
	t.Helper()
	parts, err := vm.FindParts(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	root, repository := debianRoot(t)
	debs := map[string][]byte{}
	for _, deb := range glob(t, filepath.Join(release, "*.deb")) {
		if !strings.Contains(deb, "otelcol") && !strings.Contains(deb, "switch") {
			debs["/root/"+filepath.Base(deb)] = []byte(read(t, deb))
		}
	}
	if err := vm.SetPriority(-10); err != nil {
		t.Logf("no precedence over what else runs here: %v", err)
	} else {
		t.Cleanup(func() {
			if err := vm.SetPriority(0); err != nil {
				t.Error(err)
			}
		})
	}
	s := &site{t: t, machines: map[string]*vm.Machine{}}
	for range 2 {
		n, err := vm.NewNetwork()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		s.networks = append(s.networks, n)
	}
	var mu sync.Mutex
	var booting sync.WaitGroup
	for _, name := range siteNames {
		o := vm.Options{Name: name, Memory: 1280, Networks: s.networks, Parts: parts, Root: root, Files: map[string][]byte{"/etc/hosts": []byte(siteHosts)}}
		if name == "h1" {
			o.Memory, o.CPUs = 3072, 2
			maps.Copy(o.Files, debs)
			maps.Copy(o.Files, repository)
			o.Files["/root/fabric.yaml"] = []byte(siteTopology)
			o.Files["/etc/systemd/system/graylink-coordinator.service.d/cadence.conf"] = []byte(slowProbes)
		} else {
			for at, deb := range debs {
				if strings.Contains(at, "/graylink-common_") || strings.Contains(at, "/graylink-node_") {
					o.Files[at] = deb
				}
			}
		}
		booting.Go(func() {
			m, err := vm.Start(context.Background(), o) // Close ends it
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			s.machines[name] = m
		})
	}
	booting.Wait()
	t.Cleanup(s.close)
	if t.Failed() {
		t.FailNow()
	}
	for i, name := range siteNames {
		t.Logf("%s answers after %.1f s", name, s.machines[name].Booted.Seconds())
		s.run(name, fmt.Sprintf("systemctl is-system-running --wait || systemctl --failed\nip link set lo up\nip addr add 10.1.0.%d/24 dev eth0\nip link set eth0 up\nip addr add 10.2.0.%d/24 dev eth1\nip link set eth1 up", i+1, i+1))
	}
	s.startSlurm()
	return s
}

// startSlurm starts Slurm on the machines, and a job.
func (s *site) startSlurm() {
	s.t.Helper()
	for _, name := range siteNames {
		// Slurm 22.05 asks systemd for its cgroups over D-Bus, which these machines have not.
		for file, text := range map[string]string{"slurm.conf": slurmConfiguration, "cgroup.conf": "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"} {
			if err := s.machines[name].WriteFile(s.t.Context(), "/etc/slurm/"+file, []byte(text), 0o644); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	s.run("h1", "systemctl start slurmctld")
	for _, name := range siteNames {
		s.run(name, "systemctl start slurmd\nsleep 3\nsystemctl is-active slurmd || timeout 5 slurmd -D -vv 2>&1")
	}
	s.run("h1", "sbatch --job-name=train7 --nodes=3 --output=/dev/null --wrap='sleep 86400'")
	s.waitFor("the job runs on all nodes", 3*time.Minute, func() (string, bool) {
		r, err := s.machines["h1"].Run(s.t.Context(), "sh", "-c", "squeue --noheader --format='%T %N'; sinfo")
		if err != nil {
			s.t.Fatal(err)
		}
		return r.Stdout + r.Stderr, strings.Contains(r.Stdout, "RUNNING h[1-3]")
	})
}

// checkJob waits until graylink job prints of the job of Slurm that the network is innocent, or suspect, by its exit code.
func (s *site) checkJob(code int) {
	s.t.Helper()
	s.waitFor(fmt.Sprintf("the exit code of graylink job is %d", code), 2*time.Minute, func() (string, bool) {
		r, err := s.machines["h1"].Run(s.t.Context(), "graylink", "job", "train7")
		if err != nil {
			s.t.Fatal(err)
		}
		return fmt.Sprintf("%+v", r), r.Code == code
	})
}

// close switches the machines off, with their journals if the test failed.
func (s *site) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for name, m := range s.machines {
		if s.t.Failed() {
			if r, err := m.Run(ctx, "sh", "-c", "journalctl --no-pager --lines 60 -o cat; systemctl --failed; free -m; df -h /"); err == nil {
				s.t.Logf("%s:\n%s%s", name, r.Stdout, r.Stderr)
			}
		}
		if err := m.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

// debianRoot makes a root of Debian, and returns the file of its archive, and a repository of the packages of
// Prometheus, by where a machine has its files. The machines have no way to another one.
func debianRoot(t *testing.T) (archive string, repository map[string][]byte) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	output(t, "mmdebstrap", "--variant=minbase", "--include=systemd,systemd-sysv,procps,iproute2,curl,munge,slurm-client,slurmctld,slurmd", "--aptopt=APT::Install-Recommends \"false\"", "--aptopt=APT::Get::Assume-Yes \"true\"", "--quiet", "bookworm", root)
	proc := filepath.Join(root, "proc")
	output(t, "mount", "-t", "proc", "proc", proc)
	defer output(t, "umount", proc)
	inside := func(command string) { output(t, "chroot", root, "sh", "-e", "-c", command) }
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("etc/resolv.conf", read(t, "/etc/resolv.conf"))
	inside("apt-get --quiet update && apt-get --quiet --download-only install prometheus")
	repository, index := map[string][]byte{}, ""
	for _, deb := range glob(t, filepath.Join(root, "var/cache/apt/archives/*.deb")) {
		data := []byte(read(t, deb))
		// The name of a package may have the epoch as "%3a", which a repository's index would have to escape.
		name := strings.ReplaceAll(filepath.Base(deb), "%3a", "_")
		repository["/srv/debian/"+name] = data
		index += fmt.Sprintf("%s\nFilename: ./%s\nSize: %d\nSHA256: %x\n\n", strings.TrimSpace(output(t, "dpkg-deb", "--field", deb)), name, len(data), sha256.Sum256(data))
	}
	put("etc/apt/sources.list", "deb [trusted=yes] file:/srv/debian ./\n")
	inside("rm -rf /var/lib/apt/lists /var/cache/apt/* /etc/apt/sources.list.d/* /etc/resolv.conf /usr/share/doc /usr/share/locale /usr/share/man && mkdir -p /srv/debian")
	put("srv/debian/Packages", index)
	inside("apt-get --quiet update && rm -f /var/cache/apt/*.bin")
	archive = filepath.Join(t.TempDir(), "root.cpio")
	c := exec.Command("sh", "-c", "find . -xdev -print0 | cpio --null --create --format=newc --quiet >"+archive)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	return archive, repository
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no such files (%v)", pattern, err)
	}
	return files
}

// run runs commands on a machine as somebody who follows the page does: in /root, as root. It returns what they print.
func (s *site) run(name, commands string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	r, err := s.machines[name].MustRun(ctx, "sh", "-e", "-c", "cd /root\nexport DEBIAN_FRONTEND=noninteractive\n"+commands)
	if err != nil {
		s.t.Errorf("%v", err)
		return ""
	}
	first, _, _ := strings.Cut(commands, "\n")
	s.t.Logf("%s: %.1f s: %s", name, time.Since(began).Seconds(), first)
	return r.Stdout
}

// addLines adds a block to the file that the paragraph above it names.
func (s *site) addLines(name string, b step) {
	s.t.Helper()
	m := regexp.MustCompile("Add these lines to `(/[^`]+)`").FindStringSubmatch(strings.ReplaceAll(b.before, "\n", " "))
	if m == nil {
		s.t.Fatalf("%q: want the file that the lines are added to", b.before)
	}
	text, err := s.machines[name].ReadFile(s.t.Context(), m[1])
	if err == nil {
		err = s.machines[name].WriteFile(s.t.Context(), m[1], append(text, b.text...), 0o644)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// files returns the files of a machine but those of virtual file systems.
func (s *site) files(name string) map[string]bool {
	s.t.Helper()
	out := map[string]bool{}
	for f := range strings.Lines(s.run(name, "find / -xdev")) {
		out[strings.TrimSuffix(f, "\n")] = true
	}
	if len(out) < 1000 {
		s.t.Fatalf("%s has %d files", name, len(out))
	}
	return out
}

// verdicts returns what the analyzer serves.
func (s *site) verdicts() (state fabric.State, open []incident.Incident, text string) {
	b, err := s.machines["h1"].HTTPGet(s.t.Context(), "http://127.0.0.1:9872/api/v1/verdicts")
	if err != nil {
		return "", nil, err.Error()
	}
	var v struct {
		State    fabric.State
		Verdicts []incident.Incident
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return "", nil, string(b)
	}
	return v.State, v.Verdicts, string(b)
}

// waitFor waits until ok, and fails with what it returned last. It leaves the machines as much time as its questions take.
func (s *site) waitFor(what string, patience time.Duration, ok func() (string, bool)) {
	s.t.Helper()
	last := ""
	for end := time.Now().Add(patience); time.Now().Before(end); {
		asked, good := time.Now(), false
		if last, good = ok(); good {
			return
		}
		time.Sleep(max(250*time.Millisecond, time.Since(asked)))
	}
	s.t.Fatalf("%s: not after %s; last it was\n%s", what, patience, last)
}
