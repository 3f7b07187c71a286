package jointoken

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/pki"
)

var now = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func newToken(t *testing.T, node string) Token {
	t.Helper()
	p, err := pki.NewAuthority("test", time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	token, err := New(node, pki.ParseCertificates(p.Cert)[0])
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokensKeepTheirFields(t *testing.T) {
	for _, node := range []string{"h1", "gpu-1.rack7.example.net", "10.0.0.1"} {
		token := newToken(t, node)
		got, err := Parse("\n " + token.String() + "\n")
		if err != nil || got != token {
			t.Errorf("%s: %v %v", node, got, err)
		}
		if newToken(t, node).Hash() == token.Hash() {
			t.Errorf("%s: two tokens are equal", node)
		}
	}
}

func TestOtherTextsAreNoTokens(t *testing.T) {
	text := newToken(t, "h1").String()
	for what, s := range map[string]string{
		"empty":             "",
		"another format":    strings.Replace(text, "gljoin1", "gljoin2", 1),
		"no fingerprint":    text[:strings.LastIndexByte(text, '.')],
		"a shorter secret":  text[:len(text)-2],
		"a longer one":      text + "AA",
		"no node":           strings.Replace(text, ".h1.", "..", 1),
		"a node with space": strings.Replace(text, ".h1.", ".h 1.", 1),
		"bits left over":    text[:len(text)-1] + "_",
	} {
		_, err := Parse(s)
		if err == nil {
			t.Errorf("%s: accepted", what)
		} else if s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("%s: the error has the text, which may be a secret: %v", what, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("gljoin1.h1.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("gljoin1.a.b.c")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := Parse(text)
		if err == nil && token.String() != strings.TrimSpace(text) {
			t.Errorf("%q became %q", text, token.String())
		}
	})
}

func FuzzEntries(f *testing.F) {
	f.Add("# issued\nh1 2026-11-26T12:00:00Z " + strings.Repeat("0a", 32) + "\n\n")
	f.Add("h1 2026-11-26T12:00:00+01:00 00")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := ParseEntries(text)
		if err != nil {
			return
		}
		var again strings.Builder
		for _, e := range entries {
			again.WriteString(e.String())
		}
		same, err := ParseEntries(again.String())
		if err != nil || len(same) != len(entries) {
			t.Fatalf("%q: %v", again.String(), err)
		}
		for i, e := range entries {
			if same[i].Node != e.Node || same[i].Hash != e.Hash || !same[i].Expires.Equal(e.Expires.Truncate(time.Second)) {
				t.Errorf("%v became %v", e, same[i])
			}
		}
	})
}

func FuzzUses(f *testing.F) {
	f.Add("h1 2026-11-26T12:00:00Z " + strings.Repeat("0a", 32) + " " + strings.Repeat("0b", 32) + "\nh2 2026")
	f.Fuzz(func(t *testing.T, text string) {
		uses, err := parseUses(text)
		if err != nil {
			return
		}
		for _, u := range uses {
			if again, err := parseUses(u.line()); err != nil || len(again) != 1 || again[0].key != u.key {
				t.Errorf("%q: %v %v", u.line(), again, err)
			}
		}
	})
}

func TestEntriesWithErrors(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for text, want := range map[string]string{
		"h1 2026-11-26T12:00:00Z\n":                         "1: 2 fields",
		"\nh1 tomorrow " + hash:                             `2: "tomorrow"`,
		"h1 2026-11-26T12:00:00Z 0a":                        "1: \"0a\": want a SHA-256",
		"# fine\n\na/b 2026-11-26T12:00:00Z " + hash + "\n": "3: name",
	} {
		if _, err := ParseEntries(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// bench has the files of a book.
type bench struct {
	*testing.T
	issued, used string
}

func newBench(t *testing.T, tokens ...Token) *bench {
	b := &bench{t, filepath.Join(t.TempDir(), "issued"), filepath.Join(t.TempDir(), "used")}
	b.issue(tokens...)
	return b
}

func (b *bench) issue(tokens ...Token) {
	b.Helper()
	var text strings.Builder
	for _, t := range tokens {
		text.WriteString(Entry{t.Node, now.Add(time.Hour), t.Hash()}.String())
	}
	if err := os.WriteFile(b.issued, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) open(at time.Time) *Book {
	b.Helper()
	book, err := OpenBook(b.issued, b.used, at)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { book.Close() })
	return book
}

func TestATokenIsGoodOnceForOneNode(t *testing.T) {
	h1, h2 := newToken(t, "h1"), newToken(t, "h2")
	b := newBench(t, h1)
	book := b.open(now)
	renamed := h1
	renamed.Node = "h2"
	for _, tc := range []struct {
		what  string
		token Token
		key   string
		at    time.Time
		want  error
	}{
		{"a token that was not issued", h2, "a", now, ErrUnknown},
		{"the token with another name in it", renamed, "a", now, ErrUnknown},
		{"after its end", h1, "a", now.Add(time.Hour), ErrExpired},
		{"the first use", h1, "a", now, nil},
		{"the same key", h1, "a", now.Add(time.Minute), nil},
		{"another key", h1, "b", now, ErrUsed},
	} {
		if err := book.Redeem(tc.token, []byte(tc.key), tc.at); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.what, err, tc.want)
		}
	}
	// Tokens that are issued or removed later count at once.
	b.issue(h2)
	if err := book.Redeem(h2, []byte("c"), now); err != nil {
		t.Error(err)
	}
	if err := book.Redeem(h1, []byte("a"), now); !errors.Is(err, ErrUnknown) {
		t.Errorf("a token whose entry was removed: %v", err)
	}
}

func TestUsesOutliveARestart(t *testing.T) {
	h1, h2 := newToken(t, "h1"), newToken(t, "h2")
	b := newBench(t, h1, h2)
	if err := b.open(now).Redeem(h1, []byte("a"), now); err != nil {
		t.Fatal(err)
	}
	// A crash while the use of h2's token was written: the node got no certificate.
	text, err := os.ReadFile(b.used)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.used, append(text, "h2 2026-11-25T13:0"...), 0o600); err != nil {
		t.Fatal(err)
	}
	book := b.open(now)
	if err := book.Redeem(h1, []byte("b"), now); !errors.Is(err, ErrUsed) {
		t.Errorf("a used token after a restart: %v", err)
	}
	if err := book.Redeem(h2, []byte("b"), now); err != nil {
		t.Errorf("a token whose use was not recorded: %v", err)
	}
	if err := b.open(now).Redeem(h2, []byte("a"), now); !errors.Is(err, ErrUsed) {
		t.Errorf("a token that was used after the crash: %v", err)
	}
	b.open(now.Add(2 * time.Hour))
	if text, err := os.ReadFile(b.used); err != nil || len(text) != 0 {
		t.Errorf("uses of expired tokens are kept: %q %v", text, err)
	}
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	h1 := newToken(t, "h1")
	b := newBench(t, h1)
	if _, err := OpenBook(b.issued+".missing", b.used, now); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without issued tokens: %v", err)
	}
	book := b.open(now)
	if err := os.WriteFile(b.issued, []byte("h1 now 00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := book.Redeem(h1, []byte("a"), now); err == nil || !strings.HasPrefix(err.Error(), b.issued+":1: ") {
		t.Errorf("%v, want the file and the line", err)
	}
	if err := os.WriteFile(b.used, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.issue(h1)
	if _, err := OpenBook(b.issued, b.used, now); err == nil || !strings.HasPrefix(err.Error(), b.used+":1: ") {
		t.Errorf("%v, want the file and the line", err)
	}
}

// Two records that exchange their uses have the same ones in the end, in any order, and again after they are opened again. What
// a record knows of a token stays.
func TestRecordsThatExchangeUses(t *testing.T) {
	h1, h2, h3 := newToken(t, "h1"), newToken(t, "h2"), newToken(t, "h3")
	a, b := newBench(t, h1, h2, h3), newBench(t, h1, h2, h3)
	one, two := a.open(now), b.open(now)
	redeem := func(book *Book, token Token, key string) {
		t.Helper()
		if err := book.Redeem(token, []byte(key), now); err != nil {
			t.Fatal(err)
		}
	}
	redeem(one, h1, "a")
	redeem(one, h2, "a")
	redeem(two, h2, "b") // at the same time, which nothing can prevent
	redeem(two, h3, "b")
	for range 2 {
		if err := errors.Join(two.record.Add(one.record.Since(0), now), one.record.Add(two.record.Since(0), now)); err != nil {
			t.Fatal(err)
		}
	}
	if one, two := len(one.record.Since(0)), len(two.record.Since(1)); one != 3 || two != 2 {
		t.Errorf("%d uses, and %d behind the first, want 3 and 2", one, two)
	}
	for range 2 {
		for what, c := range map[string]struct {
			book  *Book
			token Token
			key   string
			want  error
		}{
			"used here":  {one, h1, "b", ErrUsed},
			"used there": {two, h1, "b", ErrUsed},
			"same key":   {two, h1, "a", nil},
			"both, a":    {one, h2, "b", ErrUsed},
			"both, b":    {two, h2, "a", ErrUsed},
			"only b":     {one, h3, "a", ErrUsed},
		} {
			if err := c.book.Redeem(c.token, []byte(c.key), now); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", what, err, c.want)
			}
		}
		one, two = a.open(now), b.open(now)
	}
	if err := two.record.Add([]string{"h1 now\n"}, now); err == nil || len(two.record.Since(0)) != 3 {
		t.Errorf("a line that is no use: %v", err)
	}
	later := now.Add(2 * time.Hour)
	if fresh := newBench(t).open(later); fresh.record.Add(one.record.Since(0), later) != nil || len(fresh.record.Since(0)) != 0 {
		t.Error("uses of expired tokens were added")
	}
}
