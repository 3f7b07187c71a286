package ibsubnet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// place copies the files of a tree, as written at a time.
func place(t *testing.T, dir string, written time.Time) *Files {
	t.Helper()
	f := &Files{NetDiscover: filepath.Join(dir, "net"), LFTs: filepath.Join(dir, "lfts")}
	for to, from := range map[string]string{f.NetDiscover: "tree.ibnetdiscover", f.LFTs: "tree.lfts"} {
		text, err := os.ReadFile("../ibfabric/testdata/" + from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(to, written, written); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestFilesConfirmBetweenTheirTimes: without a log, files that were written twice confirm the time between, and not now.
func TestFilesConfirmBetweenTheirTimes(t *testing.T) {
	dir := t.TempDir()
	t1 := time.Now().Add(-20 * time.Minute).Truncate(time.Second)
	f := place(t, dir, t1)
	first, err := f.Read(t.Context())
	if err != nil || !first.Broken || !first.Ended.Equal(t1) {
		t.Fatalf("%+v, %v; a broken reading that ended at %v is expected", first, err, t1)
	}
	if r, err := f.Read(t.Context()); err != nil || r.Fabric != first.Fabric || !r.Ended.Equal(t1) {
		t.Errorf("files that did not change: ended %v, %v; nothing new is expected", r.Ended, err)
	}
	t2 := t1.Add(10 * time.Minute)
	place(t, dir, t2)
	second, err := f.Read(t.Context())
	if err != nil || second.Broken || second.Fabric != first.Fabric || !second.Begun.Equal(t2.Add(-longestWriting)) {
		t.Errorf("written anew: %+v, %v", second, err)
	}
	place(t, dir, t2.Add(filesGap+longestWriting+time.Second))
	if r, err := f.Read(t.Context()); err != nil || !r.Broken {
		t.Errorf("written anew after a long time: broken %v, %v", r.Broken, err)
	}
	if err := os.Remove(f.LFTs); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(t.Context()); err == nil || !strings.Contains(err.Error(), f.LFTs) {
		t.Errorf("%v: the missing file is expected", err)
	}
}

// TestFilesHoldUntilTheLogReportsAChange: with the subnet manager's log, files that are newer than its last change hold now.
func TestFilesHoldUntilTheLogReportsAChange(t *testing.T) {
	dir := t.TempDir()
	f := place(t, dir, time.Now().Add(-time.Hour))
	f.Log = filepath.Join(dir, "opensm.log")
	clock := time.Now()
	f.now = func() time.Time { return clock }
	add := func(line string) {
		log, err := os.OpenFile(f.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if _, err := log.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Read(t.Context()); err == nil {
		t.Error("without the log: an error is expected")
	}
	add("OpenSM starts")
	if _, err := f.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "may be of before a change") {
		t.Errorf("%v: files of before the log was opened say nothing", err)
	}
	clock = clock.Add(2 * longestWriting)
	place(t, dir, clock)
	first, err := f.Read(t.Context())
	if err != nil || !first.Broken {
		t.Fatalf("%+v, %v", first, err)
	}
	clock = clock.Add(time.Second)
	second, err := f.Read(t.Context())
	if err != nil || second.Broken || !second.Begun.Equal(clock) || second.Fabric != first.Fabric {
		t.Errorf("no change: %+v, %v; they hold until now", second, err)
	}
	add("... SUBNET UP")
	clock = clock.Add(time.Second)
	if _, err := f.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "may be of before a change") {
		t.Errorf("%v: files of before the change are no longer believed", err)
	}
}
