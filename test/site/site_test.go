// Package site tests the documentation as a site: it is built by mkdocs, and all links and anchors within it exist.
package site

import (
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// page is what a page has and refers to.
type page struct {
	anchors map[string]bool
	links   []string
	loads   []string // scripts, styles and images
}

func TestSite(t *testing.T) {
	mkdocs, err := exec.LookPath("mkdocs")
	if err != nil {
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal("needs mkdocs")
		}
		t.Skip("needs mkdocs, which make test-tools installs")
	}
	root := t.TempDir()
	c := exec.Command(mkdocs, "build", "--strict", "--quiet", "--site-dir", root)
	c.Dir = "../.."
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("mkdocs: %v\n%s", err, out)
	}
	pages := readPages(t, root)
	if len(pages) < 60 {
		t.Errorf("only %d pages", len(pages))
	}
	links := 0
	for name, p := range pages {
		if name == "404.html" {
			continue // its links are those of the site's own address
		}
		for _, l := range p.links {
			links++
			checkLink(t, root, pages, name, l)
		}
		for _, l := range p.loads {
			if strings.Contains(l, "//") {
				t.Errorf("%s loads %s, from another server", name, l)
			}
		}
	}
	if links < 2000 {
		t.Errorf("only %d links", links)
	}
	if info, err := os.Stat(filepath.Join(root, "search", "search_index.json")); err != nil || info.Size() < 100_000 {
		t.Errorf("no index to search: %v", err)
	}
}

// checkLink fails if a link within the site leads nowhere.
func checkLink(t *testing.T, root string, pages map[string]page, from, link string) {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		t.Errorf("%s: %v", from, err)
		return
	}
	if u.Scheme != "" || u.Host != "" {
		return
	}
	to := from
	if u.Path != "" {
		to = filepath.Join(filepath.Dir(from), u.Path)
	}
	if info, err := os.Stat(filepath.Join(root, to)); err != nil {
		t.Errorf("%s: the link %s leads nowhere", from, link)
		return
	} else if info.IsDir() {
		to = filepath.Join(to, "index.html")
	}
	if p, ok := pages[to]; ok && u.Fragment != "" && !p.anchors[u.Fragment] {
		t.Errorf("%s: the link %s leads to no heading", from, link)
	}
}

// readPages reads all pages of a site, by their names within it.
func readPages(t *testing.T, root string) map[string]page {
	t.Helper()
	out := map[string]page{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".html" {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		doc, err := html.Parse(f)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		out[name] = readPage(doc)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readPage(doc *html.Node) page {
	p := page{anchors: map[string]bool{}}
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		for _, a := range n.Attr {
			switch {
			case a.Key == "id":
				p.anchors[a.Val] = true
			case n.Data == "a" && a.Key == "name":
				p.anchors[a.Val] = true
			case n.Data == "a" && a.Key == "href":
				p.links = append(p.links, a.Val)
			case a.Key == "src" || n.Data == "link" && a.Key == "href":
				p.loads = append(p.loads, a.Val)
			}
		}
	}
	return p
}
