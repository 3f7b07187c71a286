package web

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylink/graylink/analyzer/matrix"
	"github.com/graylink/graylink/analyzer/worldtest"
)

// drive runs a script in each page of a handler that a headless Chromium opens, and returns what the script sends to /result. The script
// is a module of the page's own site, so that the page's policy holds.
func drive(t *testing.T, h http.Handler, path, script string) map[string]any {
	t.Helper()
	browser := findChromium(t)
	results := make(chan []byte, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /result", func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case results <- body:
		default:
		}
	})
	mux.HandleFunc("GET /static/drive.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = io.WriteString(w, "(async () => { try { "+script+" } catch (e) { await fetch('/result', { method: 'POST', body: JSON.stringify({ failed: String(e.stack) }) }); } })();\n"+
			"function send(v) { return fetch('/result', { method: 'POST', body: JSON.stringify(v) }); }\n"+
			"function until(test) { return new Promise((done) => { const look = () => (test() ? done() : setTimeout(look, 20)); look(); }); }\n")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			h.ServeHTTP(w, r) // it does not end
			return
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		body := rec.Body.String()
		if strings.HasPrefix(rec.Header().Get("Content-Type"), "text/html") {
			body = strings.Replace(body, "</head>", `<script src="/static/drive.js" defer="defer"></script></head>`, 1)
		}
		rec.Header().Del("Content-Length") // which is that of the page without the script
		for name, v := range rec.Header() {
			w.Header()[name] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = io.WriteString(w, body)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// Processes of the browser may write to the profile for a moment after it was killed, so that this is no t.TempDir.
	profile, err := os.MkdirTemp("", "graylink-chromium")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(profile)
	cmd := exec.CommandContext(ctx, browser, append(chromiumFlags(profile), "--remote-debugging-port=0", srv.URL+path)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	select {
	case body := <-results:
		var out map[string]any
		if err := json.Unmarshal(body, &out); err != nil {
			t.Fatal(err)
		}
		if out["failed"] != nil {
			t.Fatalf("the script failed: %v", out["failed"])
		}
		return out
	case <-ctx.Done():
		t.Fatal("the script has sent nothing")
		return nil
	}
}

// TestMatrixInABrowser: a click shows the cell, a key enlarges the cells, and a drag zooms to a part, in the real browser.
func TestMatrixInABrowser(t *testing.T) {
	w := worldtest.NewWorld(worldtest.NewClos(t, 2, 20, 1), 3)
	w.Slow["leaf2"] = 2_000_000
	h := matrixHandler(w)
	var cycles atomic.Int64
	h.Matrix = matrix.NewStore()
	snap, _ := measureWorld(w, nil)
	h.Now = func() time.Time { // a cycle has ended whenever somebody looks
		next := snap
		next.At = noon().Add(time.Duration(cycles.Add(1)) * time.Second)
		h.Matrix.Record(w.Graph, &next)
		return next.At.Add(time.Hour)
	}
	got := drive(t, h, "/matrix", `
	const press = (type, x, y) => {
		const box = document.getElementById('cells').getBoundingClientRect();
		const target = type === 'pointerdown' ? document.getElementById('cells') : window;
		target.dispatchEvent(new PointerEvent(type, { clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, button: 0 }));
	};
	const state = JSON.parse(sessionStorage.getItem('state') || '{"step": 0}');
	const go = (change) => { state.step++; sessionStorage.setItem('state', JSON.stringify(state)); change(); };
	const size = () => Number(document.getElementById('cells').dataset.cell);
	await until(() => document.readyState === 'complete');
	if (state.step === 0) {
		state.first = size();
		press('pointerdown', 1.5 * size(), 4.5 * size());
		press('pointerup', 1.5 * size(), 4.5 * size());
		await until(() => document.querySelector('#cell h2'));
		state.cell = document.querySelector('#cell h2').textContent;
		const answered = window.fetch;
		window.fetch = async () => new Response('refused', { status: 503 });
		press('pointerdown', 1.5 * size(), 4.5 * size());
		press('pointerup', 1.5 * size(), 4.5 * size());
		await new Promise((done) => setTimeout(done, 100));
		state.refused = document.getElementById('cell').textContent;
		window.fetch = answered;
		document.querySelector('.matrix').focus();
		const shown = document.getElementById('cells');
		await until(() => document.getElementById('cells') !== shown); // the page was refreshed
		state.kept = document.querySelector('#cell h2').textContent;
		state.focused = document.activeElement === document.querySelector('.matrix');
		go(() => document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '+', bubbles: true })));
	} else if (state.step === 1) {
		state.second = size();
		go(() => { press('pointerdown', 2 * size(), 2 * size()); press('pointermove', 4 * size(), 4 * size()); press('pointerup', 4 * size(), 4 * size()); });
	} else {
		state.third = size();
		await send(state);
	}`)
	if got["cell"] != "leaf5 → leaf2" {
		t.Errorf("a click on the fifth row and second column shows %v", got["cell"])
	}
	if refused := got["refused"].(string); !strings.Contains(refused, "leaf5 → leaf2") {
		t.Errorf("a cell that cannot be read is shown as %q", refused)
	}
	if got["kept"] != got["cell"] || got["focused"] != true {
		t.Errorf("after a refresh the cell is %v, and the matrix has the focus: %v", got["kept"], got["focused"])
	}
	first, second, third := got["first"].(float64), got["second"].(float64), got["third"].(float64)
	if second != 2*first || third <= second {
		t.Errorf("cells have %g pixels, %g after the key and %g after the drag", first, second, third)
	}
}

// TestMatrixIsFluent: a large matrix is panned by the browser itself. The frames of two seconds of panning are counted, and the weight of the
// first view; both are reported, and only the weight is judged, since frames depend on the machine.
func TestMatrixIsFluent(t *testing.T) {
	g := clos{pods: 32, leaves: 16, spines: 4, cores: 4, nodesPerLeaf: 2}.graph(t)
	w := worldtest.NewScheduledWorld(t, g, 3)
	w.Slow["leaf2-3"] = 2_000_000
	h := matrixHandler(w)
	const limit = 300_000
	body, all := page(t, h, "/matrix")
	weight := len(body)
	for _, e := range all {
		if e.name == "image" {
			weight += get(t, h, "/"+e.attr["href"]).Body.Len()
		}
	}
	for _, name := range []string{"page.css", "matrix.js", "icon.svg"} {
		weight += get(t, h, "/static/"+name).Body.Len()
	}
	if weight > limit {
		t.Errorf("the first view has %d bytes, want at most %d", weight, limit)
	}
	got := drive(t, h, "/matrix?zoom=8", `
	await until(() => document.readyState === 'complete');
	const box = document.querySelector('.matrix');
	let frames = 0;
	const begin = performance.now();
	await new Promise((done) => {
		const step = (now) => {
			frames++;
			box.scrollBy(12, 9);
			if (now - begin > 2000) done(); else requestAnimationFrame(step);
		};
		requestAnimationFrame(step);
	});
	await send({ frames: frames / ((performance.now() - begin) / 1000), left: box.scrollLeft, memory: performance.memory ? performance.memory.usedJSHeapSize : 0 });`)
	t.Logf("first view: %d bytes; panning: %.0f frames a second; heap of the page: %.1f MB", weight, got["frames"], got["memory"].(float64)/1e6)
	if got["left"].(float64) == 0 {
		t.Error("the matrix was not panned")
	}
}
