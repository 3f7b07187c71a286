package jointoken

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
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

// Record has the uses of tokens. It is safe for concurrent use.
type Record struct {
	mu    sync.Mutex
	used  map[Hash]use
	lines []string // of all uses, in the order in which they became known
	log   *os.File // to which uses are appended
}

// use is the first use of a token.
type use struct {
	Entry
	key Hash // of the public key
}

// OpenRecord opens the record of used tokens. Its file is created when it is missing, and loses the tokens that have
// expired. An error names the file.
func OpenRecord(file string, now time.Time) (*Record, error) {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	uses, err := parseUses(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s:%w", file, err)
	}
	r := &Record{used: map[Hash]use{}}
	for _, u := range uses {
		if now.Before(u.Expires) {
			r.put(u)
		}
	}
	if err := durable.WriteFile(file, []byte(strings.Join(r.lines, ""))); err != nil {
		return nil, err
	}
	if r.log, err = os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0); err != nil {
		return nil, err
	}
	return r, nil
}

// Close closes the file.
func (r *Record) Close() error { return r.log.Close() }

// put adds a use that is in the file. It needs mu.
func (r *Record) put(u use) {
	r.used[u.Hash] = u
	r.lines = append(r.lines, u.line())
}

// Since returns the uses that became known after the first ones, as lines of the file.
func (r *Record) Since(first int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines[min(first, len(r.lines)):])
}

// Add records uses of another record, which its Since returned. A token whose use is known stays as it is, and so does one
// that has expired. If there is an error, nothing is recorded.
func (r *Record) Add(lines []string, now time.Time) error {
	uses, err := parseUses(strings.Join(lines, ""))
	if err != nil {
		return fmt.Errorf("used join token %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var fresh []use
	var text strings.Builder
	seen := map[Hash]bool{}
	for _, u := range uses {
		if _, known := r.used[u.Hash]; known || seen[u.Hash] || !now.Before(u.Expires) {
			continue
		}
		seen[u.Hash] = true
		fresh = append(fresh, u)
		text.WriteString(u.line())
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := r.append(text.String()); err != nil {
		return err
	}
	for _, u := range fresh {
		r.put(u)
	}
	return nil
}

// Book knows which tokens were issued, and with which key each was used. It is safe for concurrent use.
type Book struct {
	issuedFile string
	record     *Record
}

// NewBook returns a book of the tokens in a file, which belongs to the operator and is read again for each token. An error
// names the file.
func NewBook(issuedFile string, record *Record) (*Book, error) {
	b := &Book{issuedFile, record}
	if _, err := b.issued(); err != nil {
		return nil, err
	}
	return b, nil
}

// OpenBook opens the record of used tokens, and returns a book with it. Close closes the record.
func OpenBook(issuedFile, usedFile string, now time.Time) (*Book, error) {
	r, err := OpenRecord(usedFile, now)
	if err != nil {
		return nil, err
	}
	b, err := NewBook(issuedFile, r)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return b, nil
}

// Close closes the record of used tokens.
func (b *Book) Close() error { return b.record.Close() }

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

// check returns the entry of a token that can be used now with that public key. It needs the record's mu.
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
	if u, ok := b.record.used[e.Hash]; ok && !u.key.Equal(key) {
		return Entry{}, ErrUsed
	}
	return e, nil
}

// Redeem uses a token with a public key. It returns ErrUnknown, ErrExpired or ErrUsed if the token cannot be used, and
// other errors if the files cannot be read or written: then the token is not used. The same key may use the token again,
// because an answer can be lost on its way.
func (b *Book) Redeem(t Token, key []byte, now time.Time) error {
	r := b.record
	r.mu.Lock()
	defer r.mu.Unlock()
	k := hashOf(key)
	e, err := b.check(t, k, now)
	if err != nil {
		return err
	}
	if _, ok := r.used[e.Hash]; ok {
		return nil
	}
	u := use{e, k}
	if err := r.append(u.line()); err != nil {
		return err
	}
	r.put(u)
	return nil
}

// append writes lines to the file, and waits until they are on the disk. When it fails, no part of them stays. It needs mu.
func (r *Record) append(lines string) error {
	info, err := r.log.Stat()
	if err != nil {
		return err
	}
	_, err = r.log.WriteString(lines)
	if err == nil {
		err = r.log.Sync()
	}
	if err != nil {
		return errors.Join(err, r.log.Truncate(info.Size()))
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
