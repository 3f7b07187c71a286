package web

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/graylink/graylink/analyzer/snapshot"
)

// TestPageFollowsEventsInABrowser: in a real browser, below a prefix of a reverse proxy, an event has the page fetched, no event has it rest,
// a hidden page fetches nothing and holds no stream, and what the reader has opened, focused and scrolled stays.
func TestPageFollowsEventsInABrowser(t *testing.T) {
	h, change, _ := liveHandler(t)
	of := h.Snapshot
	h.Snapshot = func() snapshot.Snapshot {
		s := of()
		s.Report.Candidates = demoCandidates()
		return s
	}
	var fetched atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /change", func(http.ResponseWriter, *http.Request) { change() })
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]int64{"fetched": fetched.Load(), "streams": h.streams.Load()})
	})
	mux.Handle("/graylink/", http.StripPrefix("/graylink", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("fragment") == "main" {
			fetched.Add(1)
		}
		h.ServeHTTP(w, r)
	})))
	got := drive(t, mux, "/graylink/", `
	const counts = async () => (await fetch('/counts')).json();
	const change = async () => {
		const shown = document.querySelector('#answer').textContent;
		await fetch('/change', { method: 'POST' });
		return shown;
	};
	const changed = (shown) => until(() => document.querySelector('#answer').textContent !== shown);
	const after = (ms) => new Promise((done) => setTimeout(done, ms));
	while ((await counts()).streams !== 1) await after(50);
	document.getElementById('candidates').open = true;
	document.querySelector('#candidates summary').focus();
	document.body.style.width = '300px';
	const region = () => document.querySelector('#edges .scroll');
	region().scrollLeft = 120;
	const scrolled = region().scrollLeft;
	await changed(await change());
	const out = { scrolled, kept: region().scrollLeft, open: document.getElementById('candidates').open,
		focus: document.activeElement?.localName, problem: !document.getElementById('offline').hidden };
	const before = await counts();
	await after(5000);
	out.rested = (await counts()).fetched - before.fetched;
	let hidden = true;
	Object.defineProperty(document, 'hidden', { get: () => hidden });
	document.dispatchEvent(new Event('visibilitychange'));
	while ((await counts()).streams !== 0) await after(50);
	const shown = await change();
	await after(4000);
	out.whileHidden = (await counts()).fetched - before.fetched;
	hidden = false;
	document.dispatchEvent(new Event('visibilitychange'));
	await changed(shown);
	while ((await counts()).streams !== 1) await after(50);
	await send(out);`)
	for what, want := range map[string]any{"open": true, "focus": "summary", "problem": false, "rested": 0.0, "whileHidden": 0.0, "kept": got["scrolled"]} {
		if got[what] != want {
			t.Errorf("%s is %v, want %v", what, got[what], want)
		}
	}
	if got["scrolled"] == 0.0 {
		t.Error("nothing was scrolled")
	}
}
