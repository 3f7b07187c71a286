package lastrelease

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// contracts lists the pages that users' scripts, rules and units rely on, with a pattern of the names in their tables. Tests of
// test/style and cmd/graylink compare the pages with the code.
var contracts = []struct {
	page  string
	name  *regexp.Regexp
	least int // number of names in release 0.1.0
}{
	{"docs/reference/flags.md", regexp.MustCompile("^\\| `(?:-[a-zA-Z], )?(--[a-z.\\[\\]-]+[a-z])"), 300},
	{"docs/reference/http-api.md", regexp.MustCompile("^\\| `([A-Z]+ /[^`]*)`"), 40},
	{"docs/reference/configuration.md", regexp.MustCompile("^\\| `([a-z_]+)`"), 150},
	{"docs/contracts.md", regexp.MustCompile("`((?:fabric|graylink)_[a-z0-9_]+)`"), 100},
	{"docs/metrics.md", regexp.MustCompile("`((?:fabric|graylink)_[a-z0-9_]+)"), 200},
}

// headings are lines that say what a table is about: a program, a command, or a mapping of a configuration.
var headings = []*regexp.Regexp{regexp.MustCompile("^###? .*`(.+)`"), regexp.MustCompile(`^<a id="(.+)">`)}

// names returns the names in the tables of a page, each with the heading that it is below.
func names(text string, name *regexp.Regexp) map[string]bool {
	out := map[string]bool{}
	below := ""
	for _, line := range strings.Split(text, "\n") {
		for _, h := range headings {
			if m := h.FindStringSubmatch(line); m != nil {
				below = m[1]
			}
		}
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(line, -1) {
			out[strings.TrimSpace(below+" "+m[1])] = true
		}
	}
	return out
}

// TestNamesStay checks that every flag, HTTP request, key of a configuration and series of the last release is in the pages of this checkout.
func TestNamesStay(t *testing.T) {
	release := Find(t, root)
	old := t.TempDir()
	release.Extract(t, root, old, "docs")
	read := func(dir, page string) string {
		b, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, c := range contracts {
		before, now := names(read(old, c.page), c.name), names(read(root, c.page), c.name)
		if len(before) < c.least {
			t.Errorf("%s of release %s: only %d names were found, want %d", c.page, release.Version, len(before), c.least)
		}
		for _, n := range slices.Sorted(maps.Keys(before)) {
			if !now[n] {
				t.Errorf("%s: %s of release %s is gone", c.page, n, release.Version)
			}
		}
		t.Logf("%s: %d names of release %s, %d now", c.page, len(before), release.Version, len(now))
	}
}
