package matrix

import (
	"flag"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
)

var (
	incidentsDir  = flag.String("incidents", "", "write pictures of generated incidents to this directory, with the answers beside them")
	incidentsSeed = flag.Uint64("incidents.seed", 1, "seed of the generated incidents")
)

// incidentKinds returns the kinds of faults of a blind test: each changes a world, and names the nodes that have no evidence.
func incidentKinds() map[string]func(w *worldtest.World, r *rand.Rand) (silent []string) {
	leaves := func(w *worldtest.World) (out []string) {
		for i := range w.Graph.Topo.Switches {
			if s := &w.Graph.Topo.Switches[i]; s.Role == fabric.Leaf {
				out = append(out, s.Name)
			}
		}
		return out
	}
	pick := func(r *rand.Rand, of []string) string { return of[r.IntN(len(of))] }
	size := func(r *rand.Rand) int64 { return 200_000 + r.Int64N(5_000_000) }
	nicFault := func(w *worldtest.World, r *rand.Rand, send, receive bool) {
		nic := pick(r, w.Graph.NICIDs())
		up := fabric.Direction{From: nic, To: w.Graph.PeerOf(nic)}
		lossy := r.IntN(2) == 0
		hurt := func(d fabric.Direction) {
			if lossy {
				w.Loss[d] = 0.05 + 0.3*r.Float64()
			} else {
				w.Delay[d] = size(r)
			}
		}
		if send {
			hurt(up)
		}
		if receive {
			hurt(up.Reverse())
		}
	}
	return map[string]func(*worldtest.World, *rand.Rand) []string{
		"healthy": func(*worldtest.World, *rand.Rand) []string { return nil },
		"spine": func(w *worldtest.World, r *rand.Rand) []string {
			var spines []string
			for i := range w.Graph.Topo.Switches {
				if s := &w.Graph.Topo.Switches[i]; s.Role == fabric.Spine {
					spines = append(spines, s.Name)
				}
			}
			w.Slow[pick(r, spines)] = size(r)
			return nil
		},
		"leaf":   func(w *worldtest.World, r *rand.Rand) []string { w.Slow[pick(r, leaves(w))] = size(r); return nil },
		"nic":    func(w *worldtest.World, r *rand.Rand) []string { nicFault(w, r, true, true); return nil },
		"incast": func(w *worldtest.World, r *rand.Rand) []string { nicFault(w, r, false, true); return nil },
		"pair": func(w *worldtest.World, r *rand.Rand) []string {
			all := leaves(w)
			a, b, added := pick(r, all), pick(r, all), size(r)
			for a == b {
				b = pick(r, all)
			}
			for e := range w.Paths {
				from, to := e.Endpoints()
				x, _ := w.Graph.LeafOf(from)
				y, _ := w.Graph.LeafOf(to)
				if x == a && y == b || x == b && y == a {
					w.FlowDelay[e] = added
				}
			}
			return nil
		},
		"dark": func(w *worldtest.World, r *rand.Rand) []string {
			leaf := pick(r, leaves(w)) // a rack without power: the agents of one leaf
			var silent []string
			for _, nic := range w.Graph.NICIDs() {
				if at, _ := w.Graph.LeafOf(nic); at == leaf {
					silent = append(silent, fabric.OwnerOf(nic))
				}
			}
			return silent
		},
	}
}

// TestIncidents draws incidents of all kinds. Without -incidents it draws one of each, and checks that no picture is like that of a
// healthy fabric. With it, sixty are written for a person who names the kinds: sheets of twelve, row by row, and answers.txt.
func TestIncidents(t *testing.T) {
	graphs := []*fabric.Graph{worldtest.NewClos(t, 4, 16, 8), worldtest.NewClos(t, 8, 24, 8), worldtest.NewPods(t, 4, 8)}
	kinds := incidentKinds()
	names := slices.Sorted(maps.Keys(kinds))
	r := rand.New(rand.NewPCG(*incidentsSeed, 11))
	drawIncident := func(kind string, g *fabric.Graph) (*image.Paletted, string) {
		w := worldtest.NewScheduledWorld(t, g, r.Uint64())
		silent := kinds[kind](w, r)
		snap := measure(w, begin())
		for _, node := range silent {
			snap.Hosts[node] = "its agent does not answer"
		}
		grid := gridOf(t, w, snap, Selection{})
		zoom := Zoom(max(6, 384/len(grid.Groups)))
		side := zoom.Side(len(grid.Groups))
		return grid.Draw(DegradedShare, zoom, image.Rect(0, 0, side, side)), picture(grid, DegradedShare)
	}
	if *incidentsDir == "" {
		for _, kind := range names {
			_, text := drawIncident(kind, graphs[1])
			if abnormal := strings.ContainsAny(text, "?12345678"); abnormal != (kind != "healthy") {
				t.Errorf("%s:\n%s", kind, text)
			}
		}
		return
	}
	writeIncidents(t, names, r, func(kind string) *image.Paletted {
		img, _ := drawIncident(kind, graphs[r.IntN(len(graphs))])
		return img
	})
}

// writeIncidents writes sheets of incidents whose kinds are drawn by chance, and the answers.
func writeIncidents(t *testing.T, kinds []string, r *rand.Rand, drawKind func(kind string) *image.Paletted) {
	const sheets, rows, columns, side, margin = 5, 3, 4, 400, 20
	var answers strings.Builder
	for sheet := range sheets {
		img := image.NewRGBA(image.Rect(0, 0, columns*(side+margin), rows*(side+margin)))
		draw.Draw(img, img.Bounds(), image.White, image.Point{}, draw.Src)
		for i := range rows * columns {
			kind := kinds[r.IntN(len(kinds))]
			one := drawKind(kind)
			at := image.Pt(i%columns*(side+margin), i/columns*(side+margin))
			draw.Draw(img, one.Bounds().Add(at), one, image.Point{}, draw.Over)
			fmt.Fprintf(&answers, "%d %d %s\n", sheet+1, i+1, kind)
		}
		f, err := os.Create(filepath.Join(*incidentsDir, fmt.Sprintf("sheet%d.png", sheet+1)))
		if err != nil {
			t.Fatal(err)
		}
		if err := png.Encode(f, img); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(*incidentsDir, "answers.txt"), []byte(answers.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}
