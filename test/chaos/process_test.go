package chaos

import (
	"math"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestReadUsage compares the usage of a process with what it was made to use.
func TestReadUsage(t *testing.T) {
	before, err := ReadUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const files, octets = 7, 64 << 20
	for range files {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	memory := make([]byte, octets)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		memory[0]++
	}
	after, err := ReadUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if n := after.Files - before.Files; n != files {
		t.Errorf("%d more files, want %d", n, files)
	}
	if n := after.RSS - before.RSS; n < octets*9/10 || n > 2*octets {
		t.Errorf("%d octets more, want about %d", n, octets)
	}
	if d := after.CPU - before.CPU; d <= 0 {
		t.Errorf("%s of a processor more, want some", d)
	}
	if after.Threads < 1 || memory[0] == 0 && memory[4096] == 0 {
		t.Errorf("%d threads", after.Threads)
	}
}

func TestReadUsageOfAnEndedProcess(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // first it may not be waited for yet
		if err := cmd.Wait(); err == nil {
			if u, err := ReadUsage(cmd.Process.Pid); err == nil {
				t.Errorf("%+v of a process that has ended, want an error", u)
			}
		}
	}
}

func TestFitTrend(t *testing.T) {
	at := make([]time.Time, 100)
	line, noise := make([]float64, 100), make([]float64, 100)
	for i := range at {
		at[i] = time.Unix(0, 0).Add(time.Duration(i) * time.Minute)
		line[i] = 50 + 6*float64(i)/60 // 6 an hour
		noise[i] = 50 + float64(i%2)
	}
	got, ok := FitTrend(at, line)
	if !ok || math.Abs(got.PerHour-6) > 1e-9 || math.Abs(got.Growth()-9) > 1e-9 || got.Peak != line[99] || got.Samples != 100 || !got.Grew {
		t.Errorf("%+v, %v; want 6 an hour, and a growth of 9", got, ok)
	}
	if got, ok := FitTrend(at, noise); !ok || math.Abs(got.PerHour) > 0.02 || got.Growth() != 0 || got.Grew {
		t.Errorf("%+v, %v; want no growth", got, ok)
	}
	if _, ok := FitTrend(at[:9], line[:9]); ok {
		t.Error("9 samples have a trend, want none")
	}
	if _, ok := FitTrend(make([]time.Time, 10), line[:10]); ok {
		t.Error("samples of one moment have a trend, want none")
	}
}
