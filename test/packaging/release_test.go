//go:build packaging

package packaging

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"debug/elf"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/internal/testneeds"
)

// version is that of the releases that the tests build.
const version = "v0.0.1-test"

// key makes a throw-away key, and returns the files of it and of its public part.
func key(t *testing.T) (private, public string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	open, err := x509.MarshalPKIXPublicKey(&k.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, public = filepath.Join(dir, "key"), filepath.Join(dir, "pub")
	for file, block := range map[string]*pem.Block{private: {Type: "PRIVATE KEY", Bytes: secret}, public: {Type: "PUBLIC KEY", Bytes: open}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return private, public
}

// build builds a release for architectures, separated by commas, into a directory.
func build(t *testing.T, output, key, architectures string) {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "dist")
	c := exec.Command("go", "build", "-C", "../../tools", "-o", tool, "./dist")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build tools/dist: %v\n%s", err, out)
	}
	c = exec.Command(tool, "-version", version, "-arch", architectures, "-output", output, "-key", key)
	c.Dir, c.Env = "../..", append(os.Environ(), "DIST_DIRTY=1")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("dist: %v\n%s", err, out)
	}
}

// needRoot skips a test that makes a root of Debian where that is not allowed. In CI it fails.
func needRoot(t *testing.T) {
	t.Helper()
	testneeds.Root(t, "a root of Debian is made")
}

func output(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestRelease builds a release twice, and has other programs check it.
func TestRelease(t *testing.T) {
	private, public := key(t)
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	build(t, first, private, "amd64,arm64")
	build(t, second, private, "amd64,arm64")
	sums := read(t, filepath.Join(first, "SHA256SUMS"))
	if again := read(t, filepath.Join(second, "SHA256SUMS")); again != sums {
		t.Errorf("two builds differ:\n%s\n%s", sums, again)
	}
	t.Run("signature", func(t *testing.T) { checkSignature(t, first, public) })
	t.Run("binaries", func(t *testing.T) { checkBinaries(t, first) })
	t.Run("arm64", func(t *testing.T) { checkARM64(t, first) })
	t.Run("plugin", func(t *testing.T) { checkPlugin(t, first) })
	t.Run("bills", func(t *testing.T) { checkBills(t, first) })
	t.Run("images", func(t *testing.T) { checkImages(t, first) })
	t.Run("Debian", func(t *testing.T) { checkDebian(t, first) })
	t.Run("RPM", func(t *testing.T) { checkRPM(t, first) })
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// checkSignature has openssl and sha256sum verify, with an octet changed as well.
func checkSignature(t *testing.T, dir, public string) {
	signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(read(t, filepath.Join(dir, "SHA256SUMS.sig"))))
	if err != nil {
		t.Fatal(err)
	}
	der, sums := filepath.Join(t.TempDir(), "der"), filepath.Join(dir, "SHA256SUMS")
	if err := os.WriteFile(der, signature, 0o600); err != nil {
		t.Fatal(err)
	}
	verify := func(sums string) error {
		return exec.Command("openssl", "dgst", "-sha256", "-verify", public, "-signature", der, sums).Run()
	}
	check := func() error {
		c := exec.Command("sha256sum", "--check", "--quiet", "SHA256SUMS")
		c.Dir = dir
		return c.Run()
	}
	if err := verify(sums); err != nil {
		t.Errorf("openssl: %v", err)
	}
	if err := check(); err != nil {
		t.Errorf("sha256sum: %v", err)
	}
	changed := []byte(read(t, sums))
	changed[0] ^= 1
	other := filepath.Join(t.TempDir(), "sums")
	if err := os.WriteFile(other, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if verify(other) == nil {
		t.Error("openssl accepts changed checksums")
	}
	bill := filepath.Join(dir, "graylink-"+version[1:]+"-linux-amd64.cdx.json")
	text := []byte(read(t, bill))
	text[len(text)/2] ^= 1
	if err := os.WriteFile(bill, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if check() == nil {
		t.Error("sha256sum accepts a changed file")
	}
	text[len(text)/2] ^= 1
	if err := os.WriteFile(bill, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// unpack unpacks the archive of all programs for an architecture, and returns the paths of the programs.
func unpack(t *testing.T, dir, arch string) map[string]string {
	t.Helper()
	to := t.TempDir()
	output(t, "tar", "-xzf", filepath.Join(dir, "graylink-"+version[1:]+"-linux-"+arch+".tar.gz"), "-C", to, "--strip-components=1")
	files, err := filepath.Glob(filepath.Join(to, "bin", "*"))
	if err != nil || len(files) != 7 {
		t.Fatalf("%v %v, want seven programs", files, err)
	}
	out := map[string]string{}
	for _, f := range files {
		out[filepath.Base(f)] = f
	}
	return out
}

// withRDMA is the only program that needs the system's C library. Package internal/rdma has tests of it.
const withRDMA = "graylink-node-rdma"

// checkBinaries checks that the programs need no library, and print their version.
func checkBinaries(t *testing.T, dir string) {
	for name, file := range unpack(t, dir, "amd64") {
		f, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := f.ImportedLibraries()
		interpreted := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
		if err != nil || interpreted != (name == withRDMA) || len(libraries) > 0 && name != withRDMA {
			t.Errorf("%s: libraries %v (%v), dynamic linker: %v", name, libraries, err, interpreted)
		}
		f.Close()
		if out := output(t, file, "--version"); name != "otelcol-graylink" && !strings.Contains(out, version[1:]) {
			t.Errorf("%s --version: %s", name, out)
		}
	}
}

// checkARM64 runs the programs for arm64 by qemu's user mode. The oldest C library for arm64 is 2.17, and the program with
// RDMA needs nothing that is newer.
func checkARM64(t *testing.T, dir string) {
	programs := unpack(t, dir, "arm64")
	run := func(name string, args ...string) (string, int) {
		t.Helper()
		c := exec.Command("qemu-aarch64", append([]string{"-L", "/usr/aarch64-linux-gnu", programs[name]}, args...)...)
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), c.ProcessState.ExitCode()
	}
	f, err := elf.Open(programs[withRDMA])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needs, err := f.DynamicVersionNeeds()
	if err != nil || len(needs) != 3 {
		t.Errorf("%s: versions of %d libraries (%v), want three", withRDMA, len(needs), err)
	}
	for _, n := range needs {
		if len(n.Needs) != 1 || n.Needs[0].Dep != "GLIBC_2.17" {
			t.Errorf("%s: %s in the versions %v, want GLIBC_2.17", withRDMA, n.Name, n.Needs)
		}
	}
	for name := range programs {
		if out, code := run(name, "--version"); code != 0 || name != "otelcol-graylink" && !(strings.Contains(out, version[1:]) && strings.Contains(out, "linux/arm64")) {
			t.Errorf("%s --version: exit code %d\n%s", name, code, out)
		}
	}
	if out, code := run("graylink-node", "--preflight"); code != 0 && code != 5 || !strings.Contains(out, "UDP port 862") {
		t.Errorf("graylink-node --preflight: exit code %d\n%s", code, out)
	}
	if out, code := run(withRDMA, "--selftest=rdma"); code != 5 || !strings.Contains(out, "libibverbs.so.1: cannot open shared object file") {
		t.Errorf("%s --selftest=rdma: exit code %d\n%s", withRDMA, code, out)
	}
	dir = t.TempDir()
	topology := filepath.Join(dir, "topology.yaml")
	if err := os.WriteFile(topology, []byte("nodes: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--check", "--topology.file=" + topology, "--state.file=" + dir + "/state", "--agents.ca=" + dir + "/ca.crt", "--agents.cert=" + dir + "/tls.crt", "--agents.key=" + dir + "/tls.key"}
	if out, code := run("graylink-coordinator", args...); code != 1 || !strings.Contains(out, topology) || !strings.Contains(out, dir+"/ca.crt") {
		t.Errorf("graylink-coordinator --check: exit code %d\n%s", code, out)
	}
}

// checkPlugin checks the library of the profiler plugin in the packages: it is for the architecture of its package, needs nothing but
// an old C library, and has the five tables that NCCL looks for.
func checkPlugin(t *testing.T, dir string) {
	for arch, want := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		to := t.TempDir()
		debs, err := filepath.Glob(filepath.Join(dir, "graylink-nccl_*_"+arch+".deb"))
		if err != nil || len(debs) != 1 {
			t.Fatalf("%v %v, want one package for %s", debs, err, arch)
		}
		output(t, "dpkg-deb", "--extract", debs[0], to)
		f, err := elf.Open(filepath.Join(to, "usr/lib/graylink/libnccl-profiler-graylink.so"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		needs, err := f.DynamicVersionNeeds()
		if err != nil || f.Machine != want {
			t.Errorf("%s: %s, %v", arch, f.Machine, err)
		}
		for _, n := range needs {
			for _, v := range n.Needs {
				if !slices.Contains([]string{"GLIBC_2.2.5", "GLIBC_2.12", "GLIBC_2.14", "GLIBC_2.17"}, v.Dep) {
					t.Errorf("%s: %s of %s, want nothing after GLIBC_2.17", arch, v.Dep, n.Name)
				}
			}
		}
		symbols, err := f.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		var tables []string
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_OBJECT {
				tables = append(tables, s.Name)
			}
		}
		slices.Sort(tables)
		if !slices.Equal(tables, []string{"ncclProfiler_v3", "ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6", "ncclProfiler_v7"}) {
			t.Errorf("%s: tables %q", arch, tables)
		}
	}
}

// checkBills compares the bills of materials with what the go command reads from the binaries.
func checkBills(t *testing.T, dir string) {
	for name, file := range unpack(t, dir, "amd64") {
		want := map[string]string{}
		var last string
		for line := range strings.Lines(output(t, "go", "version", "-m", file)) {
			f := strings.Fields(line)
			switch {
			case len(f) >= 3 && f[0] == "dep":
				last = f[1]
				want[last] = f[2]
			case len(f) >= 3 && f[0] == "=>":
				delete(want, last)
				want[f[1]] = f[2]
			}
		}
		var bill struct {
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal([]byte(read(t, filepath.Join(dir, fmt.Sprintf("%s-%s-linux-amd64.cdx.json", name, version[1:])))), &bill); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, c := range bill.Components {
			got[c.Name] = c.Version
		}
		if got["std"] == "" {
			t.Errorf("%s: the bill has not the standard library", name)
		}
		delete(got, "std")
		if len(want) < 10 || !maps.Equal(got, want) {
			t.Errorf("%s: %d modules in the bill, %d in the binary", name, len(got), len(want))
		}
	}
}

// checkImages looks into an image as docker load reads it.
func checkImages(t *testing.T, dir string) {
	for name, user := range map[string]string{"graylink-node": "0:0", "graylink-analyzer": "65532:65532"} {
		to := t.TempDir()
		output(t, "tar", "-xf", filepath.Join(dir, fmt.Sprintf("%s-image-%s-amd64.tar", name, version[1:])), "-C", to)
		var manifest []struct {
			Config   string
			RepoTags []string
			Layers   []string
		}
		if err := json.Unmarshal([]byte(read(t, filepath.Join(to, "manifest.json"))), &manifest); err != nil || len(manifest) != 1 || len(manifest[0].Layers) != 1 {
			t.Fatalf("%v %+v", err, manifest)
		}
		if tags := manifest[0].RepoTags; len(tags) != 1 || !strings.HasSuffix(tags[0], "/"+name+":"+version) {
			t.Errorf("%s: tags %q", name, tags)
		}
		config := read(t, filepath.Join(to, manifest[0].Config))
		if !strings.Contains(config, `"User":"`+user+`"`) || !strings.Contains(config, `"Entrypoint":["/usr/bin/`+name+`"]`) {
			t.Errorf("%s: %s", name, config)
		}
		if files := strings.Fields(output(t, "tar", "-tf", filepath.Join(to, manifest[0].Layers[0]))); !slices.Equal(files, []string{"usr/bin/" + name}) {
			t.Errorf("%s has the files %q", name, files)
		}
	}
}

// services are the packages of services.
var services = []string{"node", "switch", "coordinator", "analyzer"}

// built returns the packages that a machine can have: one for each file of deploy/packages.
func built(t *testing.T, dir string, endings ...string) (out []string) {
	t.Helper()
	for _, e := range endings {
		files, err := filepath.Glob(filepath.Join(dir, "*"+e))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, files...)
	}
	if len(out) != 11 {
		t.Fatalf("%d packages: %q, want eleven", len(out), out)
	}
	return out
}

// checkDebian installs the packages in a root of Debian, and purges them.
func checkDebian(t *testing.T, dir string) {
	debs := built(t, dir, "_amd64.deb", "_all.deb")
	for _, deb := range debs {
		if out, err := exec.Command("lintian", "--fail-on", "error", "--suppress-tags", strings.Join(suppressed, ","), deb).CombinedOutput(); err != nil {
			t.Errorf("lintian %s: %v\n%s", filepath.Base(deb), err, out)
		}
	}
	needRoot(t)
	root := filepath.Join(t.TempDir(), "root")
	output(t, "mmdebstrap", "--variant=minbase", "--include=systemd", "--quiet", "bookworm", root)
	output(t, "mount", "-t", "proc", "proc", filepath.Join(root, "proc"))
	t.Cleanup(func() { output(t, "umount", filepath.Join(root, "proc")) })
	before := files(t, root)
	inside := func(args ...string) string { return output(t, "chroot", append([]string{root}, args...)...) }
	var names []string
	for _, deb := range debs {
		name := filepath.Base(deb)
		if err := os.WriteFile(filepath.Join(root, "tmp", name), []byte(read(t, deb)), 0o644); err != nil {
			t.Fatal(err)
		}
		names = append(names, "/tmp/"+name)
	}
	at := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "/tmp/"+withRDMA+"_") })
	names, rdma := slices.Delete(slices.Clone(names), at, at+1), names[at]
	inside(append([]string{"dpkg", "--install"}, names...)...)
	for _, s := range services {
		if out := inside("/usr/bin/graylink-"+s, "--version"); !strings.Contains(out, version[1:]) {
			t.Errorf("graylink-%s --version: %s", s, out)
		}
	}
	if out := inside("getent", "passwd", "graylink"); !strings.Contains(out, "/var/lib/graylink") {
		t.Errorf("the user: %s", out)
	}
	if out := inside("stat", "-c", "%a %U %G", "/etc/graylink/pki"); strings.TrimSpace(out) != "750 root graylink" {
		t.Errorf("/etc/graylink/pki: %s", out)
	}
	// A file of the site stays, and an edited configuration does as well until the purge.
	site := filepath.Join(root, "etc/graylink/pki/ca.crt")
	if err := os.WriteFile(site, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkReplaced(t, root, inside, rdma)
	inside(append([]string{"dpkg", "--purge"}, packages(debs)...)...)
	for _, name := range append(names, rdma) {
		os.Remove(filepath.Join(root, name))
	}
	left := files(t, root)
	for name := range before {
		delete(left, name)
	}
	for name := range left {
		if strings.Contains(name, "graylink") && name != "etc/graylink" && !strings.HasPrefix(name, "etc/graylink/pki") {
			t.Errorf("%s is left after the purge", name)
		}
	}
	if _, err := os.Stat(site); err != nil {
		t.Errorf("a file of the site was removed: %v", err)
	}
}

// checkReplaced installs the package with RDMA over graylink-node, whose configuration and state stay. Purging what is
// left of graylink-node takes nothing from the other.
func checkReplaced(t *testing.T, root string, inside func(...string) string, deb string) {
	t.Helper()
	flags, state := filepath.Join(root, "etc/graylink/node.flags"), filepath.Join(root, "var/lib/graylink/node/state")
	if err := os.MkdirAll(filepath.Dir(state), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{flags, state} {
		if err := os.WriteFile(file, []byte("# of the site\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	inside("dpkg", "--install", deb)
	inside("dpkg", "--purge", "graylink-node")
	if out := inside("graylink-node", "--version"); !strings.Contains(out, "tags:             rdma") {
		t.Errorf("graylink-node --version: %s", out)
	}
	for _, file := range []string{flags, state} {
		if b, err := os.ReadFile(file); err != nil || string(b) != "# of the site\n" {
			t.Errorf("%s: %q %v", file, b, err)
		}
	}
}

// suppressed are tags of lintian for packages of Debian itself: the programs are static on purpose, the maintainer is an
// input of the build and has no address by default, and the changelog is that of the project.
var suppressed = []string{"statically-linked-binary", "malformed-contact", "no-changelog"}

func packages(debs []string) (out []string) {
	for _, d := range debs {
		name, _, _ := strings.Cut(filepath.Base(d), "_")
		out = append(out, name)
	}
	return out
}

// files returns all files of a root but those of virtual file systems.
func files(t *testing.T, root string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if d.IsDir() && (name == "proc" || name == "sys" || name == "dev") {
			return filepath.SkipDir
		}
		out[name] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checkRPM has rpm read the packages. There is no system of RPM packages to install them on.
func checkRPM(t *testing.T, dir string) {
	rpms := built(t, dir, ".x86_64.rpm", ".noarch.rpm")
	for _, r := range rpms {
		if out := output(t, "rpm", "-K", "--nosignature", r); !strings.Contains(out, "digests OK") {
			t.Errorf("%s", out)
		}
	}
	for _, s := range services {
		file := filepath.Join(dir, fmt.Sprintf("graylink-%s-0.0.1~test-1.x86_64.rpm", s))
		out, err := exec.Command("rpm", "-qpl", file).CombinedOutput()
		if err != nil {
			t.Errorf("%v %s", err, out)
		}
		for _, want := range []string{"/usr/bin/graylink-" + s, "/etc/graylink/" + s + ".flags", "/usr/lib/systemd/system/graylink-" + s + ".service", "/usr/share/man/man1/graylink-" + s + ".1.gz"} {
			if !bytes.Contains(out, []byte(want+"\n")) {
				t.Errorf("graylink-%s has no %s: %s", s, want, out)
			}
		}
		if config := output(t, "rpm", "-qp", "--configfiles", file); !strings.Contains(config, s+".flags") {
			t.Errorf("graylink-%s: configuration %s", s, config)
		}
	}
}
