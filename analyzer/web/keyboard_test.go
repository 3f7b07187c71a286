package web

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// tabStop is an element that has the focus: its place in the document, what it is, and whether the focus can be seen.
type tabStop struct {
	Place    int
	Text     string
	Visible  bool
	Required bool
}

// listStops defines what the tests of the keyboard need in a page. Elements that act are those that a mouse can use.
const listStops = `window.acting = () => [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
	.filter((e) => e.getClientRects().length > 0 && !e.closest('details:not([open]) > :not(summary)'));
window.stopOf = (e) => {
	const all = [...document.querySelectorAll('*')];
	const style = getComputedStyle(e);
	return { place: all.indexOf(e), text: e.localName + ' ' + (e.id || e.getAttribute('href') || e.getAttribute('aria-label') || e.textContent).slice(0, 60),
		visible: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1 && !style.clipPath.includes('inset'), required: window.acting().includes(e) };
};
null`

// TestPagesByKeyboard: the tab key reaches everything on a page that acts, in the order of the document, and leaves it again. The focus can be
// seen everywhere, and the first stop is a link to the main part.
func TestPagesByKeyboard(t *testing.T) {
	d := startDevtools(t)
	for _, p := range shownPages() {
		t.Run(p.name, func(t *testing.T) {
			d.t = t
			d.setMedia(false, false)
			d.open(p.serve(t, plainName))
			d.eval(nil, listStops)
			var want []tabStop
			d.eval(&want, `window.acting().map(window.stopOf)`)
			var got []tabStop
			reached := map[int]bool{}
			for range len(want) + 20 { // regions that scroll may be stops as well
				d.press("Tab", false)
				var s *tabStop
				d.eval(&s, `document.activeElement && document.activeElement !== document.body ? window.stopOf(document.activeElement) : null`)
				if s == nil || reached[s.Place] {
					break
				}
				if !s.Visible {
					t.Errorf("the focus on %q cannot be seen", s.Text)
				}
				if len(got) > 0 && s.Place < got[len(got)-1].Place {
					t.Errorf("%q comes after %q", s.Text, got[len(got)-1].Text)
				}
				reached[s.Place] = true
				got = append(got, *s)
			}
			for _, s := range want {
				if !reached[s.Place] {
					t.Errorf("%q is not reached", s.Text)
				}
			}
			if len(got) == 0 || got[0].Text != "a #main" {
				t.Fatalf("the first stop is no link to the main part: %v", got)
			}
			d.eval(nil, `document.querySelector('.skip').focus(), null`)
			d.press("Enter", false)
			var at string
			d.eval(&at, `document.activeElement.localName`)
			if at != "main" {
				t.Errorf("the first link leads to %q", at)
			}
			d.press("Tab", false)
			var inside bool
			d.eval(&inside, `document.querySelector('main').contains(document.activeElement)`)
			if !inside && len(want) > 12 {
				t.Error("the next stop is not in the main part")
			}
		})
	}
	d.t = t
}

// TestKeysAct: what a mouse does, keys do: details open, forms are chosen and sent, links of the drawing lead on, and the matrix shows cells
// and changes its size.
func TestKeysAct(t *testing.T) {
	d := startDevtools(t)
	at := d.until
	focus := func(selector string) {
		t.Helper()
		d.eval(nil, fmt.Sprintf(`document.querySelector(%q).focus(), null`, selector))
	}
	crowded := shownPage{path: "/", make: crowdedHandler}
	d.open(crowded.serve(t, plainName))
	focus("#candidates summary")
	d.press("Enter", false)
	at("details open by Enter", `document.getElementById('candidates').open`)
	focus("#fabric a.callout")
	d.press("Enter", false)
	at("a label of the drawing leads to its verdict", `location.hash === '#v-id0'`)
	focus("#running input[type=checkbox]")
	d.press(" ", false)
	at("a box is checked by the space bar", `document.querySelector('#running input[type=checkbox]').checked`)
	focus("#lookup button")
	d.press(" ", false)
	at("a form is sent by the space bar", `location.search.includes('src=')`)
	pods := shownPage{path: "/", make: podsHandler}
	d.open(pods.serve(t, plainName))
	focus("#fabric a[href*='pod=']")
	d.press("Enter", false)
	at("a pod is unfolded", `location.search.startsWith('?pod=')`)

	world := shownPage{path: "/matrix", make: worldHandler}
	d.open(world.serve(t, plainName))
	focus(".matrix")
	for _, key := range []string{"ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"} { // the first one shows the frame
		d.press(key, false)
	}
	d.press("Enter", false)
	at("Enter shows the cell at the frame", `document.querySelector('#cell h2').textContent === 'leaf2 → leaf2'`)
	at("the frame is drawn", `document.querySelector('.cursor').getAttribute('y') === '64'`)
	focus("select[name=of]")
	d.press("ArrowDown", false)
	var chosen string
	d.eval(&chosen, `document.querySelector('select[name=of]').value`)
	if chosen == "" {
		t.Error("the arrow key chooses no quantity")
	}
	focus(".controls button")
	d.press("Enter", false)
	at("the choice is shown", `location.search.includes('of=`+chosen+`')`)
	focus(".matrix")
	d.press("-", false)
	at("a key changes the size of cells", `location.search.includes('zoom=')`)
}

// hostileNames are names that try to be something else than text.
var hostileNames = map[string]string{
	"script":     `"><script>pwned=1</script><img src=x onerror=pwned=1>'onfocus=pwned=1 x='</title></svg></option><iframe srcdoc="<script>top.pwned=1</script>">`,
	"javascript": "javascript:pwned=1",
	"directions": "\u202egnp.exe\u202d \u2066x\u2069 line\nbreak\ttab",
	"long":       strings.Repeat("x", 253),
}

// TestHostileNamesInABrowser: a name runs nothing in any place of a page, makes no link that does, and widens no page, on a large and on a small
// screen.
func TestHostileNamesInABrowser(t *testing.T) {
	d := startDevtools(t)
	for kind, name := range hostileNames {
		for _, p := range []shownPage{{"graph", "/", func(_ *testing.T, name string) *Handler { return hostileHandler(name) }},
			{"graph-matrix", "/matrix", func(_ *testing.T, name string) *Handler { return hostileHandler(name) }},
			{"graph-nics", "/matrix?by=nic", func(_ *testing.T, name string) *Handler { return hostileHandler(name) }}} {
			testHostileName(t, d, kind, name, &p)
		}
		for _, p := range shownPages() {
			if p.name == "job" {
				p.path = "/?job=" + url.QueryEscape(name)
			}
			if p.name == "verdicts" || p.name == "insufficient" || p.name == "job" || p.name == "matrix" {
				testHostileName(t, d, kind, name, &p)
			}
		}
	}
	d.t = t
}

func testHostileName(t *testing.T, d *devtools, kind, name string, p *shownPage) {
	t.Run(kind+"/"+p.name, func(t *testing.T) {
		d.t = t
		d.setMedia(false, false)
		d.open(p.serve(t, name))
		for _, width := range []int{1280, 480} {
			d.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false}, nil)
			var got struct {
				Pwned, Scripts bool
				Width, Shown   int
				Links, Wide    []string
			}
			d.eval(&got, `({ pwned: 'pwned' in window, scripts: [...document.scripts].some((s) => !s.src.includes('/static/')), width: document.documentElement.scrollWidth, shown: document.documentElement.clientWidth,
				links: [...document.querySelectorAll('[href], [src], [action]')].map((e) => e.getAttribute('href') ?? e.getAttribute('src') ?? e.getAttribute('action')).filter((h) => /^\s*(javascript|data):/i.test(h)),
				wide: [...document.querySelectorAll('main *, header *')].filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && !e.parentElement.closest('.scroll, .canvas, .matrix, svg'))
					.slice(0, 3).map((e) => e.localName + '.' + e.className + ' in ' + e.parentElement.localName + '#' + e.parentElement.id + ' ' + e.textContent.slice(0, 40)) })`)
			if got.Pwned || got.Scripts || len(got.Links) > 0 {
				t.Errorf("a name became a script, or a link to one: ran %v, %v, %q", got.Pwned, got.Scripts, got.Links)
			}
			if got.Width > got.Shown {
				t.Errorf("the page is %d pixels wide on a screen of %d: %q", got.Width, got.Shown, got.Wide)
			}
			d.keepScreenshot(fmt.Sprintf("hostile-%s-%s-%d", kind, p.name, width))
		}
	})
}

// TestPagesArePrinted: on paper, nothing is cut at the side, in light colors, and without what only a screen has.
func TestPagesArePrinted(t *testing.T) {
	d := startDevtools(t)
	for _, p := range shownPages() {
		t.Run(p.name, func(t *testing.T) {
			d.t = t
			d.setMedia(true, true)
			d.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": false}, nil) // A4 without margins of 1 cm
			d.open(p.serve(t, plainName))
			var got struct {
				Background string
				Shown      []string
				Cut        []string
			}
			d.eval(&got, `({ background: getComputedStyle(document.body).backgroundColor,
				shown: [...document.querySelectorAll('nav, form, .skip')].filter((e) => e.getClientRects().length > 0).map((e) => e.localName),
				cut: [...document.querySelectorAll('table, .canvas > svg, .matrix')].filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
					.map((e) => e.localName + '.' + (e.className.baseVal ?? e.className) + ' in #' + e.closest('[id]').id + ' ' + e.getBoundingClientRect().right) })`)
			if got.Background != "rgb(255, 255, 255)" || len(got.Shown) > 0 || len(got.Cut) > 0 {
				t.Errorf("background %s, shown %v, cut %q", got.Background, got.Shown, got.Cut)
			}
			d.keepScreenshot("print-" + p.name)
			d.keepPrint("print-" + p.name)
		})
	}
	d.t = t
}
