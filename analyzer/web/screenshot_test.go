package web

import (
	"context"
	"image"
	_ "image/png" // decodes the screenshots
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/incident"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/schedule/dragonfly"
)

// findChromium returns the path of Chromium. Without one the test is skipped, or fails if nothing may be skipped.
func findChromium(t *testing.T) string {
	t.Helper()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		const missing = "chromium is not installed: the page cannot be looked at"
		if os.Getenv("GRAYLINK_REQUIRE_ALL") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return browser
}

// chromiumFlags returns the options of a headless Chromium with a directory for its profile. It contacts no other servers.
func chromiumFlags(profile string) []string {
	return []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--window-size=1280,800", "--user-data-dir=" + profile}
}

// chromium runs a headless Chromium and returns what it writes to its output.
func chromium(t *testing.T, args ...string) string {
	t.Helper()
	browser := findChromium(t)
	args = append(chromiumFlags(t.TempDir()), args...)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var errs strings.Builder
	cmd := exec.CommandContext(ctx, browser, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, errs.String())
	}
	return string(out)
}

// shoot photographs a page. GRAYLINK_SCREENSHOTS names a directory to keep the
// pictures in.
func shoot(t *testing.T, h *Handler, name, path string, dark bool) image.Image {
	t.Helper()
	dir := os.Getenv("GRAYLINK_SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	srv := httptest.NewServer(h)
	defer srv.Close()
	file := filepath.Join(dir, name+".png")
	scheme := "--blink-settings=preferredColorScheme=1"
	if dark {
		scheme = "--blink-settings=preferredColorScheme=0"
	}
	chromium(t, scheme, "--screenshot="+file, srv.URL+path)
	f, err := os.Open(file)
	if err != nil {
		t.Fatalf("the screenshot: %v", err)
	}
	defer f.Close()
	img, _, err := image.Decode(f)
	if err != nil {
		t.Fatalf("the screenshot: %v", err)
	}
	return img
}

// colours counts the different colours of a picture's pixels.
func colours(img image.Image) map[[3]uint32]int {
	out := map[[3]uint32]int{}
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			out[[3]uint32{r >> 8, g >> 8, b >> 8}]++
		}
	}
	return out
}

// scene is a page to look at.
type scene struct {
	name, path string
	dark       bool
	make       func() (*fabric.Graph, snapshot.Snapshot)
}

// dragonflyFault returns a Dragonfly+ whose last two groups have a bad global link between them.
func dragonflyFault(groups int) (*fabric.Graph, snapshot.Snapshot) {
	g := fabric.NewGraph(dragonfly.NewTopology(dragonfly.Options{Groups: groups, LeavesPerGroup: max(2, groups/4), SpinesPerGroup: max(2, groups/4), NICsPerLeaf: 4}))
	s := healthy(g)
	for _, l := range slices.Backward(g.Topo.Links) {
		if g.IsGlobal(&l) {
			blame(&s, fabric.Direction{From: l.A, To: l.B}, 700_000, 0)
			return g, s
		}
	}
	panic("no global link")
}

// gallery returns the snapshots to look at after a change of the page.
func gallery(t *testing.T) []scene {
	big := clos{planes: 1, pods: 32, leaves: 16, spines: 16, cores: 64, nodesPerLeaf: 32}
	return []scene{
		{"innocent", "/", false, func() (*fabric.Graph, snapshot.Snapshot) { g := loadDemo(t); return g, healthy(g) }},
		{"insufficient-dark", "/", true, func() (*fabric.Graph, snapshot.Snapshot) {
			g := loadDemo(t)
			s := healthy(g)
			s.Report.State, s.Baselines, s.Pending = fabric.InsufficientEvidence, 40, 3
			s.Report.Coverage = fabric.Coverage{Links: 0.6, Edges: 0.4}
			s.Hosts = map[string]string{"h2": "does not answer"}
			for i := range s.Links {
				if i%3 == 0 {
					s.Links[i].Edges, s.Links[i].AddedDelayNS = 0, nil
				}
			}
			return g, s
		}},
		{"stale", "/", false, func() (*fabric.Graph, snapshot.Snapshot) {
			g, s := demoFault(t)
			s.At = noon().Add(-90 * time.Second)
			return g, s
		}},
		{"held-and-switch", "/", false, func() (*fabric.Graph, snapshot.Snapshot) {
			g, s := demoFault(t)
			s.Incidents[0].Held = "no healthy probe has crossed it since: the fabric shows it unused"
			s.Incidents = append(s.Incidents, incident.Incident{Open: true, Verdict: fabric.Verdict{ID: "sw", Element: fabric.Element{ID: "spine2", Kind: fabric.KindSwitch},
				Symptom: fabric.Symptom{AddedDelayNS: 340_000}, Scenario: fabric.HotSpine, Severity: fabric.SeverityCritical, Confidence: 0.97, FirstSeen: noon(), Summary: "Switch spine2 adds 340 µs."}},
				incident.Incident{Open: true, Verdict: fabric.Verdict{ID: "nic", Element: fabric.Element{ID: "h6/eth1", Kind: fabric.KindNIC}, Direction: "leaf3:dn2->h6/eth1",
					Symptom: fabric.Symptom{LossRatio: 0.13}, Scenario: fabric.BadNIC, Severity: fabric.SeverityWarning, Confidence: 0.91, FirstSeen: noon(), Summary: "NIC h6/eth1 loses 13 % of what it receives."}})
			linkOf(&s, fabric.Direction{From: "leaf3:dn2", To: "h6/eth1"}).LossRatio = 0.13
			return g, s
		}},
		{"candidates", "/", false, func() (*fabric.Graph, snapshot.Snapshot) {
			g, s := demoFault(t)
			s.Report.Candidates = demoCandidates()
			return g, s
		}},
		{"scale", "/", false, func() (*fabric.Graph, snapshot.Snapshot) {
			g := loadDemo(t)
			s := healthy(g)
			for i := range s.Links {
				if v := []int64{0, 4e3, 40e3, 400e3, 4e6, 40e6}[i%6]; v > 0 {
					s.Links[i].AddedDelayNS = ns(v)
				}
			}
			return g, s
		}},
		{"three-tier", "/", false, func() (*fabric.Graph, snapshot.Snapshot) {
			g := clos{pods: 4, leaves: 4, spines: 2, cores: 4, nodesPerLeaf: 3}.graph(t)
			s := healthy(g)
			blame(&s, fabric.Direction{From: "spine2-1:up3", To: "core3:dn3"}, 350_000, 0.01)
			return g, s
		}},
		{"planes-dark", "/", true, func() (*fabric.Graph, snapshot.Snapshot) {
			g := clos{planes: 2, pods: 1, leaves: 4, spines: 4, nodesPerLeaf: 4, rails: 2}.graph(t)
			s := healthy(g)
			blame(&s, fabric.Direction{From: "leafb1-2:up3", To: "spineb1-3:dn2"}, 15_000_000, 0)
			return g, s
		}},
		{"64-nodes-8-nics", "/", false, func() (*fabric.Graph, snapshot.Snapshot) {
			g := clos{pods: 1, leaves: 32, spines: 8, nodesPerLeaf: 16, rails: 8}.graph(t)
			s := healthy(g)
			blame(&s, fabric.Direction{From: "leaf1-9:up3", To: "spine1-3:dn9"}, 700_000, 0)
			return g, s
		}},
		{"dragonfly", "/", false, func() (*fabric.Graph, snapshot.Snapshot) { return dragonflyFault(4) }},
		{"dragonfly-16", "/", false, func() (*fabric.Graph, snapshot.Snapshot) { return dragonflyFault(16) }},
		{"dragonfly-16-group-dark", "/?pod=g7", true, func() (*fabric.Graph, snapshot.Snapshot) { return dragonflyFault(16) }},
		{"16384", "/", false, func() (*fabric.Graph, snapshot.Snapshot) {
			g := big.graph(t)
			s := healthy(g)
			blame(&s, fabric.Direction{From: "spine7-3:dn5", To: "leaf7-5:up3"}, 2_000_000, 0)
			return g, s
		}},
		{"16384-pod-dark", "/?pod=p7", true, func() (*fabric.Graph, snapshot.Snapshot) {
			g := big.graph(t)
			s := healthy(g)
			blame(&s, fabric.Direction{From: "spine7-3:dn5", To: "leaf7-5:up3"}, 2_000_000, 0)
			return g, s
		}},
	}
}

func TestScreenshots(t *testing.T) {
	demo := func() (*fabric.Graph, snapshot.Snapshot) { return demoFault(t) }
	scenes := []scene{{"demo-light", "/", false, demo}, {"demo-dark", "/", true, demo}}
	if os.Getenv("GRAYLINK_SCREENSHOTS") != "" {
		scenes = append(scenes, gallery(t)...)
	}
	banner := [3]uint32{0x9b, 0x1c, 0x00} // .banner.suspect of page.css
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			g, s := sc.make()
			img := shoot(t, handler(g, s), sc.name, sc.path, sc.dark)
			seen := colours(img)
			if len(seen) < 50 {
				t.Errorf("%d colours: the page is blank", len(seen))
			}
			if s.Report.State == fabric.Suspect && s.At.Equal(noon()) && seen[banner] < 20_000 {
				t.Errorf("%d pixels of the banner's colour, want at least 20000", seen[banner])
			}
		})
	}
}

// matrixScenes returns matrices to look at.
func matrixScenes(t *testing.T) (out []matrixScene) {
	const slow = 2_000_000
	small := func() *worldtest.World { return worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3) }
	middle := func() *worldtest.World {
		return worldtest.NewScheduledWorld(t, clos{pods: 4, leaves: 8, spines: 4, cores: 8, nodesPerLeaf: 16}.graph(t), 3)
	}
	out = []matrixScene{{"matrix-8-light", "/matrix", false, small, func(w *worldtest.World) []fabric.Direction {
		d := fabric.Direction{From: "h3/eth1", To: "leaf2:dn1"}
		w.Delay[d] = slow
		return []fabric.Direction{d}
	}}, {"matrix-8-nics-dark", "/matrix?by=nic&of=shift", true, small, func(w *worldtest.World) []fabric.Direction {
		d := fabric.Direction{From: "h3/eth1", To: "leaf2:dn1"}
		w.Delay[d] = slow
		return []fabric.Direction{d}
	}}}
	if os.Getenv("GRAYLINK_SCREENSHOTS") == "" {
		return out
	}
	add := func(name string, fault func(w *worldtest.World)) {
		out = append(out, matrixScene{"matrix-512-" + name, "/matrix", false, middle, func(w *worldtest.World) []fabric.Direction { fault(w); return nil }})
	}
	add("healthy", func(*worldtest.World) {})
	add("spine", func(w *worldtest.World) { w.Slow["spine2-3"] = slow })
	add("core", func(w *worldtest.World) { w.Slow["core3"] = slow })
	add("leaf", func(w *worldtest.World) { w.Slow["leaf2-3"] = slow })
	add("nic", func(w *worldtest.World) {
		end := "h2-3-5/eth1"
		d := fabric.Direction{From: end, To: w.Graph.PeerOf(end)}
		w.Delay[d], w.Delay[d.Reverse()] = slow, slow
	})
	add("incast", func(w *worldtest.World) {
		end := "h2-3-5/eth1"
		w.Loss[fabric.Direction{From: w.Graph.PeerOf(end), To: end}] = 0.1
	})
	add("pair", func(w *worldtest.World) {
		for e := range w.Paths {
			from, to := e.Endpoints()
			a, _ := w.Graph.LeafOf(from)
			b, _ := w.Graph.LeafOf(to)
			if a == "leaf1-2" && b == "leaf3-5" {
				w.FlowDelay[e] = slow
			}
		}
	})
	return out
}

// matrixScene is a matrix to look at. fault changes a world, and returns what verdicts name.
type matrixScene struct {
	name, path string
	dark       bool
	make       func() *worldtest.World
	fault      func(*worldtest.World) []fabric.Direction
}

func TestMatrixScreenshots(t *testing.T) {
	for _, sc := range matrixScenes(t) {
		t.Run(sc.name, func(t *testing.T) {
			w := sc.make()
			h := matrixHandler(w, sc.fault(w)...)
			if seen := colours(shoot(t, h, sc.name, sc.path, sc.dark)); len(seen) < 50 {
				t.Errorf("%d colours: the page is blank", len(seen))
			}
		})
	}
}

// The page that is left open follows the analyzer, and says so when it cannot.
func TestRefreshInABrowser(t *testing.T) {
	g, bad := demoFault(t)
	good := healthy(g)
	var cycles atomic.Int64
	h := handler(g, good)
	h.Snapshot = func() snapshot.Snapshot {
		if cycles.Add(1) == 1 {
			return good
		}
		return bad
	}
	srv := httptest.NewServer(h)
	defer srv.Close()
	dom := chromium(t, "--dump-dom", "--virtual-time-budget=5000", srv.URL)
	contains(t, dom, "<title>Suspect: leaf1:up1--spine1:dn1, adds 2.0 ms from spine1 to leaf1 – Graylink demo</title>", `data-verdict="id0"`, `data-mark="suspect"`)
	if !strings.Contains(dom, `role="alert" hidden=`) {
		t.Error("the page says that the analyzer does not answer, but it does")
	}

	gone := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("fragment") {
			http.Error(w, "gone", http.StatusBadGateway)
			return
		}
		h.ServeHTTP(w, r)
	})
	srv2 := httptest.NewServer(gone)
	defer srv2.Close()
	dom = chromium(t, "--dump-dom", "--virtual-time-budget=5000", srv2.URL)
	if strings.Contains(dom, `role="alert" hidden=`) || !strings.Contains(dom, `class="offline"`) {
		t.Error("the analyzer is gone, and the page does not say so")
	}
}
