// Package chaos plans what happens to Graylink and to the fabric below it in a test, and observes from outside what the
// programs do. It does not trust them: its readings are the kernel's.
package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has of the kernel at a moment.
type Usage struct {
	At      time.Time
	RSS     int64 // octets
	Files   int   // open file descriptors
	Threads int
	CPU     time.Duration // user and system time since its start
}

// ReadUsage reads the usage of a process from procfs, proc(5). It fails if the process does not exist.
func ReadUsage(pid int) (u Usage, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return u, err
	}
	u.At = time.Now()
	rss := false
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		switch {
		case name == "VmRSS" && len(fields) == 2:
			kib, err := strconv.ParseInt(fields[0], 10, 64)
			if err != nil {
				return u, fmt.Errorf("%s/status: VmRSS %q: a number of kB is expected", dir, value)
			}
			u.RSS, rss = kib<<10, true
		case name == "Threads" && len(fields) == 1:
			if u.Threads, err = strconv.Atoi(fields[0]); err != nil {
				return u, fmt.Errorf("%s/status: Threads %q: a number is expected", dir, value)
			}
		}
	}
	if !rss {
		return u, fmt.Errorf("%s/status has no VmRSS: the process has ended", dir)
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return u, err
	}
	u.Files = len(files)
	u.CPU, err = readCPU(dir)
	return u, err
}

// clockTick is the unit of times in /proc/PID/stat, USER_HZ, which is 100 on all architectures that Go supports on Linux.
const clockTick = 10 * time.Millisecond

// readCPU returns the time of processors that a process has used.
func readCPU(dir string) (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	// The second field is the command's name in parentheses, which may contain spaces.
	_, rest, found := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 13 {
		return 0, fmt.Errorf("%s/stat has %d fields after the name, want 13 at least", dir, len(fields))
	}
	var sum time.Duration
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s/stat: %q: a number of clock ticks is expected", dir, f)
		}
		sum += time.Duration(ticks) * clockTick
	}
	return sum, nil
}

// Trend sums up the samples of one value over a span.
type Trend struct {
	First, Last float64 // medians of the first and of the last tenth
	Peak        float64
	PerHour     float64 // slope of the regression line
	Samples     int
	// Grew is set if every sample of the last tenth is above every one of the first.
	Grew bool
}

// Growth returns by how much the value grew from the first to the last tenth.
func (t Trend) Growth() float64 { return t.Last - t.First }

// minTrendSamples is the number of samples below which there is no trend.
const minTrendSamples = 10

// FitTrend fits a trend to samples of equal importance, by least squares. It reports whether there are enough of them.
func FitTrend(at []time.Time, values []float64) (t Trend, ok bool) {
	n := len(values)
	if n < minTrendSamples || len(at) != n {
		return t, false
	}
	tenth := n / 10
	t = Trend{First: median(values[:tenth]), Last: median(values[n-tenth:]), Peak: slices.Max(values), Samples: n, Grew: slices.Min(values[n-tenth:]) > slices.Max(values[:tenth])}
	var meanX, meanY float64
	x := make([]float64, n)
	for i := range values {
		x[i] = at[i].Sub(at[0]).Hours()
		meanX += x[i] / float64(n)
		meanY += values[i] / float64(n)
	}
	var xy, xx float64
	for i := range values {
		xy += (x[i] - meanX) * (values[i] - meanY)
		xx += (x[i] - meanX) * (x[i] - meanX)
	}
	if xx == 0 {
		return t, false
	}
	t.PerHour = xy / xx
	return t, true
}

// median returns the lower median of values, of which there is at least one.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[(len(s)-1)/2]
}
