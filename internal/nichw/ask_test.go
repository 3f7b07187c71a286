package nichw

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestQuestions: the rules of files hold for questions.
func TestQuestions(t *testing.T) {
	answer := func(v any, err error) func() (any, error) { return func() (any, error) { return v, err } }
	release := make(chan struct{})
	questions := []*Query{
		{Device: "eth0", Name: "good", Run: answer(1, nil)},
		{Device: "eth0", Name: "hangs", Run: func() (any, error) { <-release; return 2, nil }},
		{Device: "eth0", Name: "behind it", Run: answer(3, nil)},
		{Device: "eth1", Name: "unsupported", Run: answer(nil, fmt.Errorf("driver: %w", syscall.EOPNOTSUPP))},
		{Device: "eth1", Name: "fails", Run: answer(nil, syscall.EIO)},
		{Device: "eth1", Name: "malformed", Run: answer(nil, fmt.Errorf("%w: 7 octets", ErrMalformed))},
		{Device: "eth2", Name: "gone", Run: answer(nil, syscall.ENODEV)},
	}
	a := NewQuerier(time.Second)
	ask := func() string {
		a.QueryAll(questions)
		var s []string
		for _, q := range questions {
			switch {
			case q.Err != nil:
				if q.Answer != nil || q.Err.Device != q.Device || q.Err.Path != q.Name {
					t.Errorf("%+v", q)
				}
				s = append(s, string(q.Err.Sort))
			case q.Gone:
				s = append(s, "gone")
			default:
				s = append(s, fmt.Sprint(q.Answer))
			}
		}
		return strings.Join(s, " ")
	}
	const want = "1 hanging 3 <nil> unreadable malformed gone"
	for range 2 {
		if got := ask(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if n := a.HangingCount(); n != 1 {
			t.Errorf("%d hang", n)
		}
	}
	close(release)
	for a.HangingCount() != 0 {
		runtime.Gosched() // until the goroutine that hung has returned
	}
	if got, want := ask(), "1 2 3 <nil> unreadable malformed gone"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if !errors.Is(questions[4].Err, syscall.EIO) {
		t.Error(questions[4].Err)
	}
	a.QueryAll(nil)
}
