package web

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/graylink/graylink/internal/testneeds"
)

// The checker of accessibility, as npm has it, with the checksum of its script.
const (
	axePackage = "axe-core@4.14.1"
	axeSum     = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
)

// axeCore returns the script of the checker: from the user's cache directory, or by npm. A test that cannot have it is skipped, or fails
// where nothing may be skipped.
func axeCore(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	file := filepath.Join(cache, "graylink", axePackage, "axe.min.js")
	if kept, err := os.ReadFile(file); err == nil && isAxe(kept) {
		return string(kept)
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		testneeds.Missing(t, axePackage+", which npm (Debian package npm) fetches")
	}
	dir := t.TempDir()
	pack := exec.Command(npm, "pack", axePackage, "--silent", "--pack-destination", dir)
	pack.Dir = dir
	if out, err := pack.CombinedOutput(); err != nil {
		testneeds.Missing(t, axePackage+": npm pack: "+err.Error()+": "+string(out))
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("npm pack made %v, %v", archives, err)
	}
	script, err := fileOfArchive(archives[0], "package/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	if !isAxe(script) {
		t.Fatalf("the script of %s has another checksum than %s", axePackage, axeSum)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err == nil {
		_ = os.WriteFile(file, script, 0o644) // without a cache it is fetched again
	}
	return string(script)
}

func isAxe(script []byte) bool {
	sum := sha256.Sum256(script)
	return hex.EncodeToString(sum[:]) == axeSum
}

// fileOfArchive returns a file of a compressed archive.
func fileOfArchive(archive, name string) ([]byte, error) {
	data, err := os.ReadFile(archive)
	if err != nil {
		return nil, err
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(unzipped); ; {
		head, err := files.Next()
		if err != nil {
			return nil, errors.Join(errors.New(archive+" has no "+name), err)
		}
		if head.Name == name {
			return io.ReadAll(files)
		}
	}
}

// violation is what the checker finds wrong, and where.
type violation struct {
	ID, Impact, Help string
	Nodes            []string
}

// TestPagesAreAccessible: axe-core finds no serious and no critical violation on any page, in light and in dark.
func TestPagesAreAccessible(t *testing.T) {
	findChromium(t)
	script := axeCore(t)
	d := startDevtools(t)
	for _, p := range shownPages() {
		t.Run(p.name, func(t *testing.T) {
			d.t = t
			address := p.serve(t, plainName)
			for _, dark := range []bool{false, true} {
				d.setMedia(dark, false)
				d.open(address)
				d.eval(nil, script+"\n;null")
				var found []violation
				d.eval(&found, `axe.run(document, { resultTypes: ['violations'] }).then((r) => r.violations.map((v) => ({ id: v.id, impact: v.impact, help: v.help,
					nodes: v.nodes.slice(0, 4).map((n) => n.html.slice(0, 160) + ' ' + (n.failureSummary ?? '').slice(0, 240)) })))`)
				for _, v := range found {
					report := t.Logf
					if v.Impact == "serious" || v.Impact == "critical" {
						report = t.Errorf
					}
					report("dark %v: %s, %s: %s\n%q", dark, v.Impact, v.ID, v.Help, v.Nodes)
				}
			}
		})
	}
	d.t = t
}
