package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// ErrMissing is of a machine that cannot be had here: a program is not installed, or a
// package is neither kept nor to be had.
var ErrMissing = errors.New("virtual machines are not to be had here")

// qemu is the program, in Debian's package qemu-system-x86.
const qemu = "qemu-system-x86_64"

// kernelPackage depends on the newest kernel's package, which has its version in its name.
const kernelPackage = "linux-image-amd64"

// packages are what the machines have in them besides the kernel, and keep is which of the
// kernel's files are kept: the rest is hundreds of megabytes of drivers that no machine has.
var (
	packages     = []string{"busybox-static", "ibverbs-utils", "ibverbs-providers", "libibverbs1", "libnl-3-200", "libnl-route-3-200"}
	keepPatterns = []string{
		"boot/vmlinuz-*", "lib/modules/*/modules.builtin", "lib/modules/*/kernel/arch/x86/crypto/*", "lib/modules/*/kernel/crypto/*", "lib/modules/*/kernel/lib/*",
		"lib/modules/*/kernel/net/*", "lib/modules/*/kernel/drivers/infiniband/*", "lib/modules/*/kernel/drivers/virtio/*", "lib/modules/*/kernel/drivers/net/*",
		"lib/modules/*/kernel/drivers/char/*", "lib/modules/*/kernel/fs/configfs/*", "lib/modules/*/kernel/drivers/ptp/*", "lib/modules/*/kernel/drivers/pps/*",
	}
	excludePatterns = []string{"lib/modules/*/kernel/drivers/net/wireless/*", "lib/modules/*/kernel/drivers/net/ethernet/*", "lib/modules/*/kernel/drivers/net/usb/*"}
)

// Parts are what machines are made of: unpacked Debian packages, by name, and the first program.
type Parts struct {
	dirs   map[string]string
	kernel *kernel
	init   *firstProgram
}

// firstProgram is the program init of this package, which is built when the first machine needs it.
type firstProgram struct {
	mu    sync.Mutex
	image []byte // nil means it was not built yet
}

// first returns the first program of every machine.
func (p *Parts) first(ctx context.Context) ([]byte, error) {
	p.init.mu.Lock()
	defer p.init.mu.Unlock()
	if p.init.image != nil {
		return p.init.image, nil
	}
	dir, err := os.MkdirTemp("", "graylink-vm-init")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // the image is in memory
	files, err := BuildPrograms(ctx, dir, "github.com/graylink/graylink/test/vm/init")
	if err != nil {
		return nil, err
	}
	p.init.image, err = os.ReadFile(files[0])
	return p.init.image, err
}

// FindParts has the packages that machines are made of: from the directory cache, by version,
// or by apt-get, which checks them against the distribution's signed list. "" is the user's
// cache directory. Errors of what is not to be had are ErrMissing.
func FindParts(ctx context.Context, cache string) (*Parts, error) {
	if _, err := exec.LookPath(qemu); err != nil {
		return nil, fmt.Errorf("%w: %s is not installed: apt-get install qemu-system-x86", ErrMissing, qemu)
	}
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		cache = filepath.Join(dir, "graylink", "vm")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	dirs, err := unpackAll(ctx, cache)
	if err != nil {
		return nil, err
	}
	p := &Parts{dirs: dirs, init: &firstProgram{}}
	p.kernel, err = openKernel(dirs[kernelPackage])
	return p, err
}

// latestFile is the file of a cache that says what was unpacked last, for a machine without apt.
const latestFile = "latest.json"

func unpackAll(ctx context.Context, cache string) (map[string]string, error) {
	file := filepath.Join(cache, latestFile)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return lastUnpacked(cache, file)
	}
	dirs, names := map[string]string{}, map[string]string{}
	known, err := aptShow(ctx, append([]string{kernelPackage}, packages...)...)
	if err != nil {
		if dirs, err := lastUnpacked(cache, file); err == nil {
			return dirs, nil // the list of packages is not here
		}
		return nil, err
	}
	image := ""
	for d := range strings.SplitSeq(known[kernelPackage]["Depends"], ",") {
		if name := strings.Fields(d); len(name) > 0 && strings.HasPrefix(name[0], "linux-image-") {
			image = name[0]
		}
	}
	if image == "" {
		return nil, fmt.Errorf("%s: a dependency linux-image-* is expected, it has %q", kernelPackage, known[kernelPackage]["Depends"])
	}
	of, err := aptShow(ctx, image)
	if err != nil {
		if dirs, err := lastUnpacked(cache, file); err == nil {
			return dirs, nil
		}
		return nil, err
	}
	known[image] = of[image]
	for _, p := range append([]string{image}, packages...) {
		dir, err := ensureUnpacked(ctx, cache, p, known[p])
		if errors.Is(err, ErrMissing) {
			if dirs, e := lastUnpacked(cache, file); e == nil {
				return dirs, nil // those of before do, where nothing can be fetched
			}
		}
		if err != nil {
			return nil, err
		}
		key := p
		if p == image {
			key = kernelPackage
		}
		dirs[key], names[key] = dir, filepath.Base(dir)
	}
	text, err := json.Marshal(names)
	if err != nil {
		return nil, err
	}
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, text) {
		return dirs, nil
	}
	return dirs, os.WriteFile(file, text, 0o644)
}

// lastUnpacked returns the directories that were unpacked last.
func lastUnpacked(cache, file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no packages by apt-get, and %s holds none", ErrMissing, cache)
	}
	if err != nil {
		return nil, err
	}
	names, dirs := map[string]string{}, map[string]string{}
	if err := json.Unmarshal(b, &names); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, p := range append([]string{kernelPackage}, packages...) {
		dir := filepath.Join(cache, names[p])
		if _, err := os.Stat(dir); names[p] == "" || err != nil {
			return nil, fmt.Errorf("%w: no packages by apt-get, and %s has no %s", ErrMissing, cache, p)
		}
		dirs[p] = dir
	}
	return dirs, nil
}

// aptShow returns what apt knows of the versions of packages that it would install, by name. Each call of apt-cache
// may read the lists of all packages anew, which takes most of a second.
func aptShow(ctx context.Context, names ...string) (map[string]map[string]string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", append([]string{"--no-all-versions", "show"}, names...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("%w: apt does not know all of the packages %s: apt-get update", ErrMissing, strings.Join(names, ", "))
	}
	known := map[string]map[string]string{}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n\n") {
		meta, err := parseControl([]byte(paragraph))
		if err != nil {
			return nil, err
		}
		known[meta["Package"]] = meta
	}
	for _, n := range names {
		if known[n] == nil {
			return nil, fmt.Errorf("%w: apt knows no package %s: apt-get update", ErrMissing, n)
		}
	}
	return known, nil
}

// parseControl reads the first paragraph of a control file: deb822(5), fields that go on over
// lines without those.
func parseControl(b []byte) (map[string]string, error) {
	out := map[string]string{}
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		switch {
		case line == "":
			if len(out) > 0 {
				return out, nil
			}
		case line[0] == ' ' || line[0] == '\t' || line[0] == '#':
		default:
			key, value, ok := strings.Cut(line, ":")
			if !ok || key == "" {
				return nil, fmt.Errorf("control file, line %d: a field and its value are expected, not %q", n, line)
			}
			if _, twice := out[key]; twice {
				return nil, fmt.Errorf("control file, line %d: a second %s", n, key)
			}
			out[key] = strings.TrimSpace(value)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("control file: fields are expected, there are none")
	}
	return out, nil
}

// ensureUnpacked returns the directory of a package that apt describes by meta. It is unpacked where it is not there.
func ensureUnpacked(ctx context.Context, cache, name string, meta map[string]string) (string, error) {
	version, sum := meta["Version"], meta["SHA256"]
	if version == "" || len(sum) != 2*sha256.Size || strings.ContainsRune(version, '/') {
		return "", fmt.Errorf("package %s: a version and a SHA256 are expected, not %q and %q", name, version, sum)
	}
	wanted, choice := func(string) bool { return true }, ""
	if strings.HasPrefix(name, "linux-image-") {
		wanted = func(name string) bool { return isOf(keepPatterns, name) && !isOf(excludePatterns, name) }
		// Who chooses other files has another directory.
		h := sha256.Sum256(fmt.Append(nil, keepPatterns, excludePatterns))
		choice = "." + hex.EncodeToString(h[:4])
	}
	dir := filepath.Join(cache, name+"_"+version+choice)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// What is made here is whole when it has its name: others may do the same meanwhile.
	tmp, err := os.MkdirTemp(cache, "new")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // what is left has another name than what is looked for
	get := exec.CommandContext(ctx, "apt-get", "download", "-q", name+"="+version)
	get.Dir = tmp
	if out, err := get.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: apt-get download %s=%s (after apt-get update?): %w: %s", ErrMissing, name, version, err, bytes.TrimSpace(out))
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s=%s left %d packages, one is expected", name, version, len(debs))
	}
	if err := checkSum(debs[0], sum); err != nil {
		return "", err
	}
	tree := filepath.Join(tmp, "tree")
	if err := unpackPackage(ctx, debs[0], tree, wanted); err != nil {
		return "", err
	}
	if err := os.Rename(tree, dir); err != nil {
		if _, other := os.Stat(dir); other == nil {
			return dir, nil // somebody else was faster
		}
		return "", err
	}
	return dir, nil
}

func checkSum(file, want string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("%s: SHA256 %s is expected, it is %s", filepath.Base(file), want, got)
	}
	return nil
}

// isOf reports whether a name, or a directory above it, is of a pattern.
func isOf(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		for n := name; n != "."; n = path.Dir(n) {
			if ok, err := path.Match(p, n); ok && err == nil {
				return true
			}
		}
		return false
	})
}

// unpackPackage takes the files of a package that are wanted.
func unpackPackage(ctx context.Context, deb, dir string, wanted func(name string) bool) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	err = extractTar(out, dir, wanted)
	if err != nil {
		out.Close()
	} else {
		_, err = io.Copy(io.Discard, out)
	}
	if e := cmd.Wait(); err == nil && e != nil {
		err = fmt.Errorf("dpkg-deb: %w: %s", e, bytes.TrimSpace(stderr.Bytes()))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(deb), err)
	}
	return nil
}

// extractTar unpacks regular files and links; nothing leaves dir.
func extractTar(r io.Reader, dir string, wanted func(name string) bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == "" || !wanted(name) || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
			continue
		}
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeSymlink {
			if err := root.Symlink(h.Linkname, name); err != nil {
				return err
			}
			continue
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode().Perm()|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
}

// KernelImage returns the file of the kernel that machines boot.
func (p *Parts) KernelImage() string { return p.kernel.image }
