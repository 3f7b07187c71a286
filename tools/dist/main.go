// Command dist builds a release of Graylink in a directory: binaries, packages, container images, bills of
// materials, checksums and their signature. Two runs on the same commit give the same octets. It is called by make dist,
// in the root of the repository.
package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// release is what is built.
type release struct {
	version    string // SemVer with a v
	commit     string
	at         time.Time // of everything in the release that has a time
	arches     []string
	maintainer string
	vendor     string
	key        *ecdsa.PrivateKey // nil: the checksums are not signed

	output string // directory of the release
	work   string // directory of what is put into packages
}

// program is a binary of the release.
type program struct {
	name string
	dir  string // of its main package; empty: the one in cmd with its name
	tags string
	// rdma is set if it is built by tools/rdma/go: it needs the system's C library, and loads the verbs library.
	rdma bool
	// image is set if there is a container image of it, and root if that runs as root, with the capabilities that it is
	// given.
	image, root bool
	manual      bool // it has a page of the manual
}

var programs = []program{
	{name: "graylink", image: true, manual: true},
	{name: "graylink-node", image: true, root: true, manual: true},
	{name: "graylink-node-rdma", dir: "./cmd/graylink-node", rdma: true},
	{name: "graylink-switch", image: true, root: true, manual: true},
	{name: "graylink-coordinator", image: true, manual: true},
	{name: "graylink-analyzer", image: true, manual: true},
	{name: "otelcol-graylink", tags: "collector", image: true},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// semver is a version with a v, as golang.org/x/mod/semver accepts it, with all three numbers.
var semver = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

func run(ctx context.Context) error {
	r := &release{}
	var arches, key string
	flag.StringVar(&r.version, "version", "", "version to build, such as v0.1.0")
	flag.StringVar(&r.output, "output", "dist", "directory of the release; what is in it is removed")
	flag.StringVar(&arches, "arch", "amd64,arm64", "architectures, separated by commas")
	flag.StringVar(&r.maintainer, "maintainer", "The Graylink Authors", "maintainer of the packages")
	flag.StringVar(&r.vendor, "vendor", "The Graylink Authors", "vendor of the packages and images")
	flag.StringVar(&key, "key", "", "PEM file of the ECDSA key that signs the checksums; without it they are not signed")
	flag.Parse()
	if !semver.MatchString(r.version) {
		return fmt.Errorf("-version %q: want a version such as v0.1.0", r.version)
	}
	for a := range strings.SplitSeq(arches, ",") {
		if a != "amd64" && a != "arm64" {
			return fmt.Errorf("-arch %q: want amd64 or arm64", a)
		}
		r.arches = append(r.arches, a)
	}
	if key != "" {
		var err error
		if r.key, err = readKey(key); err != nil {
			return err
		}
	}
	if err := r.readCommit(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(r.output); err != nil {
		return err
	}
	r.work = filepath.Join(r.output, ".work")
	if err := os.MkdirAll(r.work, 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"binaries", r.buildBinaries}, {"plugin", r.buildPlugin}, {"manual and completion", r.writeManual}, {"bills of materials", r.writeBills},
		{"archives", r.writeArchives}, {"packages", r.writePackages}, {"images", r.writeImages},
	} {
		began := time.Now()
		fmt.Printf("%s %s: %s\n", r.version, strings.Join(r.arches, " "), step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Printf("  %.0f s\n", time.Since(began).Seconds())
	}
	if err := os.RemoveAll(r.work); err != nil {
		return err
	}
	return r.writeSums()
}

// readCommit reads the commit that is built, and its time.
func (r *release) readCommit(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%H %ct").Output()
	if err != nil {
		return fmt.Errorf("read the commit: %w", err)
	}
	f := strings.Fields(string(out))
	if len(f) != 2 {
		return fmt.Errorf("git log: %q", out)
	}
	seconds, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return err
	}
	r.commit, r.at = f[0], time.Unix(seconds, 0).UTC()
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
	if err != nil {
		return fmt.Errorf("read the state of the checkout: %w", err)
	}
	if len(changed) > 0 && os.Getenv("DIST_DIRTY") == "" {
		return errors.New("the checkout has changes that are in no commit; set DIST_DIRTY=1 to build it all the same")
	}
	return nil
}

// binary returns the path of a program's binary for an architecture.
func (r *release) binary(arch, name string) string {
	return filepath.Join(r.work, "bin", arch, name)
}

// buildBinaries builds all programs. Those without RDMA are built without cgo, so that they need no library of the system.
func (r *release) buildBinaries(ctx context.Context) error {
	const common = "github.com/prometheus/common/version"
	link := fmt.Sprintf("-s -w -X %[1]s.Version=%[2]s -X %[1]s.Revision=%[3]s -X %[1]s.Branch=%[4]s", common, strings.TrimPrefix(r.version, "v"), r.commit[:12], "release")
	for _, arch := range r.arches {
		for _, p := range programs {
			dir := cmp.Or(p.dir, "./cmd/"+p.name)
			c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", p.tags, "-ldflags", link, "-o", r.binary(arch, p.name), dir)
			if p.rdma {
				c = exec.CommandContext(ctx, "tools/rdma/go", arch, "build", "-buildvcs=false", "-o", r.binary(arch, p.name), dir)
			}
			c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "LDFLAGS="+link, "TAGS="+p.tags)
			c.Stderr = os.Stderr
			if err := c.Run(); err != nil {
				return fmt.Errorf("build %s for %s: %w", p.name, arch, err)
			}
			fmt.Printf("  %s %s\n", arch, p.name)
		}
	}
	return nil
}

// buildPlugin builds the profiler plugin for NCCL, which has a package of its own.
func (r *release) buildPlugin(ctx context.Context) error {
	for _, arch := range r.arches {
		c := exec.CommandContext(ctx, "tools/nccl/build", arch, r.binary(arch, "libnccl-profiler-graylink.so"))
		c.Stderr = os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("build the profiler plugin for %s: %w", arch, err)
		}
	}
	return nil
}

// native returns the binary of a program for the machine that builds, which has to be one of the architectures.
func (r *release) native(name string) (string, error) {
	out, err := exec.Command("go", "env", "GOHOSTARCH").Output()
	if err != nil {
		return "", err
	}
	arch := strings.TrimSpace(string(out))
	if !slices.Contains(r.arches, arch) {
		return "", fmt.Errorf("-arch has not %s, whose programs can run on this machine: they print the manual", arch)
	}
	return r.binary(arch, name), nil
}

// writeManual has the programs print their pages of the manual, and the completion of shells.
func (r *release) writeManual(ctx context.Context) error {
	dir := filepath.Join(r.work, "man")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		if !p.manual {
			continue
		}
		binary, err := r.native(p.name)
		if err != nil {
			return err
		}
		page, err := exec.CommandContext(ctx, binary, "--help-man").Output()
		if err != nil {
			return fmt.Errorf("%s --help-man: %w", p.name, err)
		}
		if page, err = r.compress(page); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, p.name+".1.gz"), page, 0o644); err != nil {
			return err
		}
	}
	tool, err := r.native("graylink")
	if err != nil {
		return err
	}
	for shell, file := range map[string]string{"bash": "graylink.bash", "zsh": "_graylink"} {
		script, err := exec.CommandContext(ctx, tool, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("graylink completion %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), script, 0o644); err != nil {
			return err
		}
	}
	return nil
}
