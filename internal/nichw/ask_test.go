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
	questions := []*Question{
		{Device: "eth0", Name: "good", Ask: answer(1, nil)},
		{Device: "eth0", Name: "hangs", Ask: func() (any, error) { <-release; return 2, nil }},
		{Device: "eth0", Name: "behind it", Ask: answer(3, nil)},
		{Device: "eth1", Name: "unsupported", Ask: answer(nil, fmt.Errorf("driver: %w", syscall.EOPNOTSUPP))},
		{Device: "eth1", Name: "fails", Ask: answer(nil, syscall.EIO)},
		{Device: "eth1", Name: "malformed", Ask: answer(nil, fmt.Errorf("%w: 7 octets", ErrMalformed))},
		{Device: "eth2", Name: "gone", Ask: answer(nil, syscall.ENODEV)},
	}
	a := NewAsker(time.Second)
	ask := func() string {
		a.Ask(questions)
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
		if n := a.Hanging(); n != 1 {
			t.Errorf("%d hang", n)
		}
	}
	close(release)
	for a.Hanging() != 0 {
		runtime.Gosched() // until the goroutine that hung has returned
	}
	if got, want := ask(), "1 2 3 <nil> unreadable malformed gone"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if !errors.Is(questions[4].Err, syscall.EIO) {
		t.Error(questions[4].Err)
	}
	a.Ask(nil)
}
