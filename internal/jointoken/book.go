package jointoken

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/graylink/graylink/internal/durable"
)

// Reasons why a token is refused.
var (
	ErrUnknown = errors.New("the join token was not issued here, or its entry was removed")
	ErrExpired = errors.New("the join token has expired")
	ErrUsed    = errors.New("the join token was used before, with another key")
)

// Book knows which tokens were issued, and with which key each was used. It is safe for concurrent use.
type Book struct {
	issuedFile string

	mu   sync.Mutex
	used map[Hash]use
	log  *os.File // to which uses are appended
}

// use is the first use of a token.
type use struct {
	Entry
	key Hash // of the public key
}

// OpenBook opens the record of tokens. The file of issued tokens belongs to the operator, and is read again for each
// token. The file of used tokens belongs to the book, is created when it is missing, and loses the tokens that have
// expired. An error names the file.
func OpenBook(issuedFile, usedFile string, now time.Time) (*Book, error) {
	b := &Book{issuedFile: issuedFile, used: map[Hash]use{}}
	if _, err := b.issued(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(usedFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	uses, err := parseUses(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s:%w", usedFile, err)
	}
	var kept strings.Builder
	for _, u := range uses {
		if now.Before(u.Expires) {
			b.used[u.Hash] = u
			kept.WriteString(u.line())
		}
	}
	if err := durable.WriteFile(usedFile, []byte(kept.String())); err != nil {
		return nil, err
	}
	if b.log, err = os.OpenFile(usedFile, os.O_WRONLY|os.O_APPEND, 0); err != nil {
		return nil, err
	}
	return b, nil
}

// Close closes the file of used tokens.
func (b *Book) Close() error { return b.log.Close() }

func (b *Book) issued() (map[Hash]Entry, error) {
	text, err := os.ReadFile(b.issuedFile)
	if err != nil {
		return nil, err
	}
	entries, err := ParseEntries(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s:%w", b.issuedFile, err)
	}
	out := make(map[Hash]Entry, len(entries))
	for _, e := range entries {
		out[e.Hash] = e
	}
	return out, nil
}

// check returns the entry of a token that can be used now with that public key.
func (b *Book) check(t Token, key Hash, now time.Time) (Entry, error) {
	issued, err := b.issued()
	if err != nil {
		return Entry{}, err
	}
	e, ok := issued[t.Hash()]
	switch {
	case !ok || e.Node != t.Node:
		return Entry{}, ErrUnknown
	case !now.Before(e.Expires):
		return Entry{}, ErrExpired
	}
	if u, ok := b.used[e.Hash]; ok && !u.key.Equal(key) {
		return Entry{}, ErrUsed
	}
	return e, nil
}

// Redeem uses a token with a public key. It returns ErrUnknown, ErrExpired or ErrUsed if the token cannot be used, and
// other errors if the files cannot be read or written: then the token is not used. The same key may use the token again,
// because an answer can be lost on its way.
func (b *Book) Redeem(t Token, key []byte, now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := hashOf(key)
	e, err := b.check(t, k, now)
	if err != nil {
		return err
	}
	if _, ok := b.used[e.Hash]; ok {
		return nil
	}
	u := use{e, k}
	if err := b.append(u.line()); err != nil {
		return err
	}
	b.used[e.Hash] = u
	return nil
}

// append writes a line to the file of used tokens, and waits until it is on the disk. When it fails, no part of the line
// stays.
func (b *Book) append(line string) error {
	info, err := b.log.Stat()
	if err != nil {
		return err
	}
	_, err = b.log.WriteString(line)
	if err == nil {
		err = b.log.Sync()
	}
	if err != nil {
		return errors.Join(err, b.log.Truncate(info.Size()))
	}
	return nil
}

func (u use) line() string { return strings.TrimSuffix(u.String(), "\n") + " " + u.key.String() + "\n" }

// parseUses parses the lines of a file of used tokens: those of entries, with the hash of the public key as a fourth
// field. A last line without its end was cut off by a crash, before its token counted as used.
func parseUses(text string) ([]use, error) {
	var out []use
	number := 0
	for line := range strings.Lines(text) {
		number++
		if !strings.HasSuffix(line, "\n") {
			break
		}
		entry, key, ok := cutLast(strings.TrimSuffix(line, "\n"))
		if !ok {
			return nil, fmt.Errorf("%d: want NODE EXPIRES HASH KEY", number)
		}
		entries, err := ParseEntries(entry)
		if err != nil || len(entries) != 1 {
			return nil, fmt.Errorf("%d: want NODE EXPIRES HASH KEY", number)
		}
		k, err := parseHash(key)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
		out = append(out, use{entries[0], k})
	}
	return out, nil
}

func cutLast(line string) (before, last string, ok bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return "", "", false
	}
	return line[:i], line[i+1:], true
}
