// Package lastrelease has the last release that RELEASES.md lists, for tests that compare it with this checkout: its
// version, its files, and its programs.
package lastrelease

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Release is a row of RELEASES.md.
type Release struct {
	Version string // as VERSION of that release has it: 0.1.0
	Commit  string // the beginning of its hash
}

var row = regexp.MustCompile("^\\| v(\\d+)\\.(\\d+)\\.(\\d+) \\| `([0-9a-f]{12,40})` \\|")

// parse returns the release with the highest version of the table of RELEASES.md. It fails if a line of the table is no
// release, or if there is none.
func parse(text string) (Release, error) {
	var last Release
	var highest [3]int
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| version |") || strings.HasPrefix(line, "| --- |") {
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			return Release{}, fmt.Errorf("line %d: want | vMAJOR.MINOR.PATCH | `COMMIT` | NOTES |: %s", i+1, line)
		}
		var version [3]int
		for j := range version {
			n, err := strconv.Atoi(m[j+1])
			if err != nil {
				return Release{}, fmt.Errorf("line %d: %w", i+1, err)
			}
			version[j] = n
		}
		if last.Version == "" || later(version, highest) {
			highest, last = version, Release{fmt.Sprintf("%d.%d.%d", version[0], version[1], version[2]), m[4]}
		}
	}
	if last.Version == "" {
		return Release{}, errors.New("no release is listed")
	}
	return last, nil
}

// later reports whether version a comes after b.
func later(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] > b[i]
		}
	}
	return false
}

// Find returns the last release that RELEASES.md below root lists. It skips the test if the history of this checkout
// lacks the release's commit, or fails it if GRAYLINK_REQUIRE_ALL=1 forbids skips, as in CI.
func Find(t *testing.T, root string) Release {
	t.Helper()
	file := filepath.Join(root, "RELEASES.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := parse(string(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if err := exec.Command("git", "-C", root, "cat-file", "-e", r.Commit+"^{commit}").Run(); err != nil {
		missing := "needs the commit " + r.Commit + " of release " + r.Version + " in the history of this checkout (git fetch --unshallow)"
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return r
}

// Extract writes the release's files below some paths of the repository into a directory. Without paths it writes all.
func (r Release) Extract(t *testing.T, root, dir string, paths ...string) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "release.tar")
	for _, args := range [][]string{
		append([]string{"git", "-C", root, "archive", "--format=tar", "--output=" + archive, r.Commit}, paths...),
		{"tar", "-x", "-f", archive, "-C", dir},
	} {
		if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, text)
		}
	}
	if err := os.Remove(archive); err != nil {
		t.Fatal(err)
	}
}

// programs lists the programs that Programs builds.
var programs = []string{"graylink", "graylink-node", "graylink-switch", "graylink-coordinator", "graylink-analyzer"}

// Programs returns a directory with the release's programs, which is not to be changed. The first call builds them, in a
// minute. They stay in the user's cache directory, or in the test's own directory if the user has none.
func (r Release) Programs(t *testing.T, root string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	dir := filepath.Join(cache, "graylink", r.Commit)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	source := t.TempDir()
	r.Extract(t, root, source)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	built, err := os.MkdirTemp(filepath.Dir(dir), "build-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(built); err != nil {
			t.Error(err)
		}
	})
	args := []string{"build", "-o", built + "/", "-ldflags", "-X github.com/prometheus/common/version.Version=" + r.Version + " -X github.com/prometheus/common/version.Revision=" + r.Commit}
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	build := exec.Command("go", args...)
	build.Dir = source
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build of release %s: %v: %s", r.Version, err, text)
	}
	if err := os.Chmod(built, 0o755); err != nil {
		t.Fatal(err)
	}
	// Another test may have built the same meanwhile: its directory is as good.
	if err := os.Rename(built, dir); err != nil {
		if _, other := os.Stat(dir); other != nil {
			t.Fatal(err)
		}
	}
	return dir
}
