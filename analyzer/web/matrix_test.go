package web

import (
	"bytes"
	"fmt"
	"image"
	_ "image/png" // decodes the tiles
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/evidence/evidencetest"
	"github.com/graylink/graylink/analyzer/maintenance"
	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/snapshot"
	"github.com/graylink/graylink/analyzer/worldtest"
	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/judge"
)

// measureWorld returns a snapshot of a world after one cycle, and the matrix of it.
func measureWorld(w *worldtest.World, hosts map[string]string) (snapshot.Snapshot, *matrix.Store) {
	s := healthy(w.Graph)
	s.Edges = snapshot.ViewEdges(judge.FindingsOf(w.Observe(0), judge.DefaultParameters()), maintenance.NewExcluder())
	s.FreshFor, s.Hosts = 5*time.Second, hosts
	store := matrix.NewStore()
	store.Record(w.Graph, &s)
	return s, store
}

// matrixHandler returns a handler of a world after one cycle, with an incident for each given direction.
func matrixHandler(w *worldtest.World, blamed ...fabric.Direction) *Handler {
	s, store := measureWorld(w, nil)
	for _, d := range blamed {
		blame(&s, d, 2_000_000, 0)
	}
	h := handler(w.Graph, s)
	h.Matrix = store
	return h
}

// TestMatrixPage: the page has the picture, frames around what verdicts name, and what stands out as text.
func TestMatrixPage(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
	slow := fabric.Direction{From: "h3/eth1", To: "leaf2:dn1"}
	w.Delay[slow] = 2_000_000
	h := matrixHandler(w, slow)
	_, all := page(t, h, "/matrix")
	cells := one(t, all, "id", "cells")
	if cells.attr["data-rows"] != "4" || cells.attr["data-cell"] != "64" || cells.attr["width"] != "256" {
		t.Errorf("the picture has %v", cells.attr)
	}
	mark := one(t, all, "data-mark", "id0")
	if got := mark.attr["y"] + " " + mark.attr["height"] + " " + mark.attr["width"]; got != "64 64 256" {
		t.Errorf("the frame of the verdict has y, height and width %s, want the row of leaf2: 64 64 256", got)
	}
	contains(t, mark.text, "h3/eth1")
	contains(t, with(all, "data-outlier", "leaf2")[0].text, "leaf2")
	if found := with(all, "data-outlier", "leaf2 → leaf1"); len(found) != 1 {
		t.Errorf("the cell from leaf2 to leaf1 is not listed")
	}

	_, all = page(t, h, "/matrix?by=nic&of=shift&row=h3/eth1&column=h5/eth1")
	mark = one(t, all, "data-mark", "id0")
	if got := mark.attr["y"] + " " + mark.attr["height"]; got != "128 64" {
		t.Errorf("the frame has y and height %s, want the row of h3/eth1: 128 64", got)
	}
	flow := one(t, all, "data-cell-flow", "h3/eth1>h5/eth1#0")
	contains(t, flow.text, "degraded", "2.0 ms", "0 %")

	_, all = page(t, h, "/matrix?fragment=cell&by=nic&r=2&c=4")
	one(t, all, "data-cell-flow", "h3/eth1>h5/eth1#0")
}

// TestMatrixTiles: the parts of a picture together are the picture.
func TestMatrixTiles(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 20, 2), 3)
	w.Slow["leaf2"] = 2_000_000
	h := matrixHandler(w)
	_, all := page(t, h, "/matrix?zoom=32")
	side := 20 * 32
	pixels := 0
	for _, e := range all {
		if e.name != "image" {
			continue
		}
		got := get(t, h, "/"+e.attr["href"])
		img, kind, err := image.Decode(bytes.NewReader(got.Body.Bytes()))
		if err != nil || kind != "png" {
			t.Fatalf("GET %s: status %d, %v", e.attr["href"], got.Code, err)
		}
		if size := fmt.Sprintf("%d %d", img.Bounds().Dx(), img.Bounds().Dy()); size != e.attr["width"]+" "+e.attr["height"] {
			t.Errorf("a tile of %s pixels, want %s %s", size, e.attr["width"], e.attr["height"])
		}
		pixels += img.Bounds().Dx() * img.Bounds().Dy()
	}
	if pixels != side*side {
		t.Errorf("the tiles have %d pixels, want %d", pixels, side*side)
	}
}

// TestMatrixRequests: wrong requests are refused with a reason.
func TestMatrixRequests(t *testing.T) {
	h := matrixHandler(worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3))
	for url, want := range map[string]string{
		"/matrix?of=color":                       "no quantity",
		"/matrix?zoom=0":                         "expected the pixels of a cell",
		"/matrix?zoom=65":                        "expected the pixels of a cell",
		"/matrix?direction=up":                   "no direction",
		"/matrix?class=gold":                     "no flow is of a class",
		"/matrix?plane=z":                        "no NIC is in a plane",
		"/matrix?by=nic&pod=p9":                  "no NIC is in a pod",
		"/matrix/tile?zoom=4":                    "expected zoom, and x and y",
		"/matrix/tile?zoom=4&x=-1&y=0":           "expected zoom, and x and y",
		"/matrix/tile?zoom=4&x=0&y=100000000":    "expected zoom, and x and y",
		"/matrix/tile?x=0&y=0":                   "expected zoom, and x and y",
		"/matrix/tile?of=color&zoom=4&x=0&y=0":   "no quantity",
		"/matrix/tile?class=gold&zoom=4&x=0&y=0": "no flow is of a class",
	} {
		got := get(t, h, url)
		if got.Code != http.StatusBadRequest || !strings.Contains(got.Body.String(), want) {
			t.Errorf("GET %s: status %d, want 400 with %q: %.200s", url, got.Code, want, got.Body)
		}
	}
	if got := get(t, h, "/matrix/tile?zoom=4&x=512&y=0"); got.Code != http.StatusNotFound {
		t.Errorf("a part outside of the matrix: status %d, want 404", got.Code)
	}
	_, all := page(t, h, "/matrix?row=leaf1&column=leaf9")
	contains(t, one(t, all, "data-error", "cell").text, `"leaf9" is no row`)
	without := handler(loadDemo(t), healthy(loadDemo(t)))
	if got := get(t, without, "/matrix"); got.Code != http.StatusNotFound {
		t.Errorf("without a matrix: status %d, want 404", got.Code)
	}
}

// TestPastMatrixPage: the page shows a past moment, with a warning that it may be incomplete, and without what is known of now alone.
func TestPastMatrixPage(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 4, 2), 3)
	slow := fabric.Direction{From: "h3/eth1", To: "leaf2:dn1"}
	h := matrixHandler(w, slow)
	if got := get(t, h, "/matrix?of=loss&at=10m"); got.Code != http.StatusBadRequest || !strings.Contains(got.Body.String(), "past moments are not known here") {
		t.Errorf("without Prometheus: status %d: %.200s", got.Code, got.Body)
	}
	series := evidencetest.NewQuerier(t, `load 1m
		fabric:leafpair_probe_lost:ratio_2s{leaf="leaf1", peer_leaf="leaf3", side="source", class="a", tier="2", plane="a"} 0.5x30
		fabric:leafpair_probe_sent:rate_2s{leaf="leaf1", peer_leaf="leaf3", side="source", class="a", tier="2", plane="a"} 100x30`)
	h.Past = &matrix.Past{DB: series, Graph: func() *fabric.Graph { return w.Graph }}
	h.Now = func() time.Time { return time.Unix(20*60, 0) }
	for _, at := range []string{"5m", "1970-01-01T00:15:00Z"} {
		_, all := page(t, h, "/matrix?of=loss&row=leaf1&column=leaf3&at="+at)
		contains(t, one(t, all, "id", "cell").text, "leaf1 → leaf3", "50 %")
		if marks := with(all, "data-mark", ""); len(marks) > 0 {
			t.Errorf("verdicts of now are marked in the past: %d", len(marks))
		}
		for _, e := range all {
			if e.name == "image" && !strings.Contains(e.attr["href"], "at=1970-01-01T00%3A15%3A00Z") {
				t.Errorf("a tile of another moment: %s", e.attr["href"])
			}
		}
	}
	for at, want := range map[string]string{"1970-01-01T01:00:00Z": "a past time", "-5m": "a past time", "yesterday": "a past time"} {
		if got := get(t, h, "/matrix?of=loss&at="+at); got.Code != http.StatusBadRequest || !strings.Contains(got.Body.String(), want) {
			t.Errorf("at=%s: status %d, want 400 with %q", at, got.Code, want)
		}
	}
}
