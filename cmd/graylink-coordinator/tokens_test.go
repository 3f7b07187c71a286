package main

import (
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylink/graylink/internal/agentapi"
	"github.com/graylink/graylink/internal/enroll"
	"github.com/graylink/graylink/internal/pki"
)

// newTokenPair returns two coordinators that accept the same join tokens, which have not been started.
func newTokenPair(t *testing.T) (a, b *rig) {
	t.Helper()
	a, b, _ = newRigPair(t, nil)
	a.write("ca.key", a.ca.Key)
	a.write("tokens", nil)
	at := func(name string) string { return filepath.Join(a.dir, name) }
	a.enroll = enrollFlags{certFile: at("ca.crt"), keyFile: at("ca.key"), tokenFile: at("tokens"), life: enroll.DefaultLife,
		account: "graylink/graylink-node", audience: enroll.DefaultAudience}
	b.enroll = a.enroll
	return a, b
}

// requestBy returns a request with a token and a key of its own.
func requestBy(t *testing.T, node, token string) *agentapi.EnrollRequest {
	t.Helper()
	key, _, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	q := &agentapi.EnrollRequest{Node: node, Credential: &agentapi.EnrollRequest_JoinToken{JoinToken: token}}
	if q.SigningRequest, err = pki.NewSigningRequest(key); err != nil {
		t.Fatal(err)
	}
	return q
}

func (r *rig) enrolls(q *agentapi.EnrollRequest) codes.Code {
	r.t.Helper()
	_, err := r.ask(q, nil)
	return status.Code(err)
}

// A join token that was used at one coordinator is refused by the other one, whoever leads, and also if the standby was away
// when the token was used.
func TestAUsedTokenIsUsedAtBothCoordinators(t *testing.T) {
	a, b := newTokenPair(t)
	a.start()
	defer func() { a.stop() }()
	until(t, "a leads", func() bool { return a.c.Leads() })
	early := requestBy(t, "h0", a.token("h0", time.Hour)) // the standby gets this use with all others
	if code := a.enrolls(early); code != codes.OK {
		t.Fatal(code)
	}
	b.start()
	defer func() { b.stop() }()
	until(t, "b follows", following(b))
	next := requestBy(t, "h1", a.token("h1", time.Hour)) // and this one by itself
	if code := a.enrolls(next); code != codes.OK {
		t.Fatal(code)
	}
	if code := b.enrolls(requestBy(t, "h2", a.token("h2", time.Hour))); code != codes.Unavailable {
		t.Errorf("a standby: %v", code)
	}
	a.stop()
	if err := b.c.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, q := range []*agentapi.EnrollRequest{early, next} {
		if code := b.enrolls(requestBy(t, q.Node, q.GetJoinToken())); code != codes.PermissionDenied {
			t.Errorf("a token that was used at the other coordinator: %v", code)
		}
		if code := b.enrolls(q); code != codes.OK {
			t.Errorf("the same request again: %v", code)
		}
	}
	// b accepts a token while a is away. Then a leads by itself, and accepts another one, while b is away.
	lone := requestBy(t, "h3", a.token("h3", time.Hour))
	if code := b.enrolls(lone); code != codes.OK {
		t.Fatal(code)
	}
	b.stop()
	a.start()
	if err := a.c.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := requestBy(t, "h4", a.token("h4", time.Hour))
	if code := a.enrolls(other); code != codes.OK {
		t.Fatal(code)
	}
	if err := a.c.Promote(t.Context()); err != nil { // beyond the epoch of b
		t.Fatal(err)
	}
	b.start()
	until(t, "b follows", following(b))
	for who, r := range map[string]*rig{"the leader": a, "the standby": b} {
		for _, q := range []*agentapi.EnrollRequest{lone, other} {
			until(t, who+" knows all uses", func() bool { return len(r.options.UsedTokens.Since(0)) == 4 })
			if r == a {
				if code := a.enrolls(requestBy(t, q.Node, q.GetJoinToken())); code != codes.PermissionDenied {
					t.Errorf("a token that was used at the other coordinator: %v", code)
				}
			}
		}
	}
}
