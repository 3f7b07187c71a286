package web

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// devtools drives a tab of a headless Chromium by the DevTools protocol, over a pipe. Its keys are real ones, and its scripts run beside
// those of the page, whose policy stays in force.
type devtools struct {
	t       *testing.T
	to      *os.File
	session string
	pid     int

	mu      sync.Mutex
	next    int
	waiting map[int]chan devtoolsAnswer
	events  func(method string) // is called for each event; it may be nil
}

type devtoolsAnswer struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// startDevtools starts a browser with an empty tab. It ends with the test.
func startDevtools(t *testing.T) *devtools {
	t.Helper()
	browser := findChromium(t)
	// Processes of the browser may write to the profile for a moment after it was killed, so that this is no t.TempDir.
	profile, err := os.MkdirTemp("", "graylink-chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(profile) })
	theirs, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirAnswers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, browser, append(chromiumFlags(profile), "--remote-debugging-pipe", "about:blank")...)
	cmd.ExtraFiles = []*os.File{theirs, theirAnswers} // which are 3 and 4 there
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	theirAnswers.Close()
	d := &devtools{t: t, to: to, pid: cmd.Process.Pid, waiting: map[int]chan devtoolsAnswer{}}
	read := make(chan struct{})
	go func() { defer close(read); d.readAnswers(from) }()
	t.Cleanup(func() { cancel(); _ = cmd.Wait(); to.Close(); from.Close(); <-read })
	var target struct{ TargetID string }
	d.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	d.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	d.session = attached.SessionID
	d.call("Page.enable", nil, nil)
	return d
}

// readAnswers passes on what the browser writes: texts that end with a zero octet.
func (d *devtools) readAnswers(from *os.File) {
	for r := bufio.NewReader(from); ; {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var a devtoolsAnswer
		if json.Unmarshal(text[:len(text)-1], &a) != nil {
			continue
		}
		d.mu.Lock()
		waiting, event := d.waiting[a.ID], d.events
		delete(d.waiting, a.ID)
		d.mu.Unlock()
		switch {
		case waiting != nil:
			waiting <- a
		case event != nil && a.Method != "":
			event(a.Method)
		}
	}
}

// call calls a method, and reads its result into out unless that is nil.
func (d *devtools) call(method string, params, out any) {
	d.t.Helper()
	if err := d.tryCall(method, params, out); err != nil {
		d.t.Fatalf("%s: %v", method, err)
	}
}

// tryCall calls a method as call does, and returns its error.
func (d *devtools) tryCall(method string, params, out any) error {
	answer := make(chan devtoolsAnswer, 1)
	d.mu.Lock()
	d.next++
	id := d.next
	d.waiting[id] = answer
	d.mu.Unlock()
	message := map[string]any{"id": id, "method": method}
	if params != nil {
		message["params"] = params
	}
	if d.session != "" {
		message["sessionId"] = d.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := d.to.Write(append(text, 0)); err != nil {
		return err
	}
	select {
	case a := <-answer:
		switch {
		case a.Error != nil:
			return errors.New(a.Error.Message)
		case out != nil:
			return json.Unmarshal(a.Result, out)
		}
		return nil
	case <-time.After(3 * time.Minute):
		return errors.New("the browser does not answer")
	}
}

// until waits until an expression is true in the page, which may be another one by then.
func (d *devtools) until(what, expression string) {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var answer struct{ Result struct{ Value any } }
		err := d.tryCall("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &answer)
		if err == nil && answer.Result.Value == true {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("%s: not within a minute: %v", what, err)
		}
	}
}

// eval evaluates an expression in the page, waits for it if it is a promise, and reads its value into out unless that is nil.
func (d *devtools) eval(out any, expression string) {
	d.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	d.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &answer)
	if e := answer.ExceptionDetails; e != nil {
		d.t.Fatalf("a script of the test failed: %s %s", e.Text, e.Exception.Description)
	}
	if out != nil {
		if err := json.Unmarshal(answer.Result.Value, out); err != nil {
			d.t.Fatalf("%.200s: %v", expression, err)
		}
	}
}

// open opens a page and waits until it is loaded.
func (d *devtools) open(url string) {
	d.t.Helper()
	d.call("Page.navigate", map[string]any{"url": url}, nil)
	d.until("the page is loaded", `document.readyState === 'complete'`)
}

// setMedia sets what style sheets see: the color scheme, and print or screen.
func (d *devtools) setMedia(dark, printed bool) {
	d.t.Helper()
	scheme, media := "light", "screen"
	if dark {
		scheme = "dark"
	}
	if printed {
		media = "print"
	}
	d.call("Emulation.setEmulatedMedia", map[string]any{"media": media, "features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// realKeys are the keys that tests press, with their code and the text that they write.
var realKeys = map[string]struct {
	code int
	text string
}{"Tab": {9, ""}, "Enter": {13, "\r"}, " ": {32, " "}, "Escape": {27, ""}, "ArrowLeft": {37, ""}, "ArrowUp": {38, ""}, "ArrowRight": {39, ""}, "ArrowDown": {40, ""}, "+": {187, "+"}, "-": {189, "-"}}

// press presses a key, with the shift key or not.
func (d *devtools) press(key string, shift bool) {
	d.t.Helper()
	k, known := realKeys[key]
	if !known {
		d.t.Fatalf("no key %q", key)
	}
	down := map[string]any{"type": "rawKeyDown", "key": key, "code": key, "windowsVirtualKeyCode": k.code, "nativeVirtualKeyCode": k.code}
	if k.text != "" {
		down["type"], down["text"] = "keyDown", k.text
	}
	if shift {
		down["modifiers"] = 8
	}
	d.call("Input.dispatchKeyEvent", down, nil)
	down["type"] = "keyUp"
	delete(down, "text")
	d.call("Input.dispatchKeyEvent", down, nil)
}

// keepScreenshot keeps a picture of the whole page in the directory of GRAYLINK_SCREENSHOTS, if that is set.
func (d *devtools) keepScreenshot(name string) {
	d.t.Helper()
	dir := os.Getenv("GRAYLINK_SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	d.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot)
	d.keepFile(dir, name+".png", shot.Data)
}

// keepPrint keeps the page as it is printed, likewise.
func (d *devtools) keepPrint(name string) {
	d.t.Helper()
	dir := os.Getenv("GRAYLINK_SCREENSHOTS")
	if dir == "" {
		return
	}
	var printed struct{ Data string }
	d.call("Page.printToPDF", map[string]any{"paperWidth": 8.27, "paperHeight": 11.69}, &printed)
	d.keepFile(dir, name+".pdf", printed.Data)
}

func (d *devtools) keepFile(dir, name, text string) {
	d.t.Helper()
	data, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

// shownPage is a page that the tests of a browser open: the accessibility, the keyboard, print and names of each are checked.
type shownPage struct {
	name, path string
	make       func(t *testing.T, name string) *Handler
}

// serve serves a page whose elements have a name, and returns its address.
func (p *shownPage) serve(t *testing.T, name string) string {
	t.Helper()
	srv := httptest.NewServer(p.make(t, name))
	t.Cleanup(srv.Close)
	return srv.URL + p.path
}
