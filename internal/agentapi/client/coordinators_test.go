package client

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func three(t *testing.T) *coordinators {
	t.Helper()
	c, err := newCoordinators([]string{"a:1", "b:1", "c:1"}, "")
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// Each round tries every address once, a leader that is one of them first. An address that was not given is never tried.
func TestARoundOfCoordinators(t *testing.T) {
	for name, tc := range map[string]struct {
		leaders []string // that the coordinators name, in the order in which they are tried
		want    string   // addresses that are tried in the first round, and the first one of the next
	}{
		"in turn":                    {[]string{"", "", ""}, "a b c | a"},
		"the leader is next":         {[]string{"c:1", "", ""}, "a c b | c"},
		"a stranger is named":        {[]string{"evil:1", "evil:1", "evil:1"}, "a b c | a"},
		"each names the one before":  {[]string{"", "a:1", "b:1"}, "a b c | a"},
		"the same one, under a name": {[]string{"a:1", "a:1", "a:1"}, "a b c | a"},
	} {
		c, got := three(t), []string{}
		for _, leader := range tc.leaders {
			got = append(got, c.current().serverName)
			if !c.next(leader) {
				break
			}
		}
		if text := strings.Join(got, " ") + " | " + c.current().serverName; text != tc.want {
			t.Errorf("%s: %s, want %s", name, text, tc.want)
		}
	}
	c := three(t)
	c.next("")
	c.accept()
	if c.current().address != "b:1" || !c.next("") || !c.next("") || c.next("") {
		t.Error("after an accepted session the next round does not begin at the same coordinator")
	}
}

func TestTryEndsWithAnAnswer(t *testing.T) {
	standby := status.Error(codes.Unavailable, "a standby")
	denied := status.Error(codes.PermissionDenied, "no")
	for name, tc := range map[string]struct {
		answers map[string]error
		want    string
		err     error
	}{
		"the leader answers": {map[string]error{"a": standby, "b": nil}, "a b", nil},
		"a refusal counts":   {map[string]error{"a": standby, "b": denied}, "a b", denied},
		"none answers":       {map[string]error{"a": standby, "b": standby, "c": standby}, "a b c", standby},
	} {
		c, tried := three(t), []string{}
		err := c.try(func(at coordinatorAt) error {
			tried = append(tried, at.serverName)
			return tc.answers[at.serverName]
		})
		if got := strings.Join(tried, " "); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: tried %s (%v), want %s (%v)", name, got, err, tc.want, tc.err)
		}
		if tc.err == nil && c.current().address != "b:1" {
			t.Errorf("%s: the next call begins at %s", name, c.current().address)
		}
	}
}

func TestAddressesOfCoordinatorsAreChecked(t *testing.T) {
	for _, bad := range [][]string{nil, {"a"}, {"a:1", ":2"}, {"a:1", "a:1"}} {
		if _, err := newCoordinators(bad, ""); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
	c, err := newCoordinators([]string{"unix:/run/a", "b:1"}, "")
	if err != nil || !slices.Equal([]string{c.list[0].serverName, c.list[1].serverName}, []string{"coordinator", "b"}) || c.list[0].alone {
		t.Errorf("%+v (%v)", c, err)
	}
}
