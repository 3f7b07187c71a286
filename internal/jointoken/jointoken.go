// Package jointoken has the tokens by which nodes without a certificate prove their name, and the record of those that
// were issued and used.
//
// A token is a text that is handed to one node. It names the node, holds a secret, and holds the fingerprint of the
// authority by which the node recognizes the coordinator. The coordinator has only a hash of it.
package jointoken

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/graylink/graylink/internal/fabric"
)

// prefix begins every token. It names the format, and lets scanners for secrets recognize tokens.
const prefix = "gljoin1"

// Token proves the name of a node.
type Token struct {
	Node      string
	Secret    [32]byte
	Authority [32]byte // fingerprint of the authority that the coordinator's certificate comes from
}

// New returns a token of a node, whose coordinator has a certificate of that authority.
func New(node string, authority *x509.Certificate) (Token, error) {
	if err := fabric.CheckName(node); err != nil {
		return Token{}, err
	}
	t := Token{Node: node, Authority: Fingerprint(authority)}
	rand.Read(t.Secret[:])
	return t, nil
}

// Fingerprint returns the SHA-256 hash of a certificate.
func Fingerprint(c *x509.Certificate) [32]byte { return sha256.Sum256(c.Raw) }

// String returns the text of the token, which is a secret.
func (t Token) String() string {
	encode := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{prefix, t.Node, encode(t.Secret[:]), encode(t.Authority[:])}, ".")
}

// errFormat does not quote the text, which may be a secret.
var errFormat = errors.New("not a join token: want " + prefix + ".NODE.SECRET.FINGERPRINT, as graylink join-token prints it")

// Parse parses the text of a token. White space around it is skipped.
func Parse(text string) (Token, error) {
	text = strings.TrimSpace(text)
	rest, ok := strings.CutPrefix(text, prefix+".")
	if !ok {
		return Token{}, errFormat
	}
	var t Token
	for _, field := range []*[32]byte{&t.Authority, &t.Secret} {
		i := strings.LastIndexByte(rest, '.')
		if i < 0 {
			return Token{}, errFormat
		}
		b, err := base64.RawURLEncoding.Strict().DecodeString(rest[i+1:])
		if err != nil || len(b) != len(field) {
			return Token{}, errFormat
		}
		copy(field[:], b)
		rest = rest[:i]
	}
	t.Node = rest
	// The decoder skips the ends of lines.
	if fabric.CheckName(rest) != nil || t.String() != text {
		return Token{}, errFormat
	}
	return t, nil
}

// Hash identifies a token without giving it away: its secret has 256 random bits.
func (t Token) Hash() Hash { return sha256.Sum256([]byte(t.String())) }

// Hash is that of a token.
type Hash [sha256.Size]byte

// String returns the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Equal reports whether two hashes are the same, in constant time.
func (h Hash) Equal(o Hash) bool { return subtle.ConstantTimeCompare(h[:], o[:]) == 1 }

func hashOf(b []byte) Hash { return sha256.Sum256(b) }

func parseHash(text string) (Hash, error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != sha256.Size {
		return Hash{}, fmt.Errorf("%q: want a SHA-256 hash of %d hexadecimal digits", text, 2*sha256.Size)
	}
	return Hash(b), nil
}

// Entry records that a token was issued.
type Entry struct {
	Node    string
	Expires time.Time
	Hash    Hash
}

// String returns the entry's line of a file.
func (e Entry) String() string {
	return fmt.Sprintf("%s %s %s\n", e.Node, e.Expires.UTC().Format(time.RFC3339), e.Hash)
}

// ParseEntries parses the entries of a file, one a line: NODE EXPIRES HASH, with a time of RFC 3339. It skips empty
// lines and text after a #. An error begins with the line's number.
func ParseEntries(text string) ([]Entry, error) {
	var out []Entry
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 3 {
			return nil, fmt.Errorf("%d: %d fields, want NODE EXPIRES HASH, as graylink join-token writes them", number, len(f))
		}
		e := Entry{Node: f[0]}
		err := fabric.CheckName(e.Node)
		if err == nil {
			if e.Expires, err = time.Parse(time.RFC3339, f[1]); err != nil {
				err = fmt.Errorf("%q: want a time such as 2026-01-31T12:00:00Z", f[1])
			}
		}
		if err == nil {
			e.Hash, err = parseHash(f[2])
		}
		if err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
		out = append(out, e)
	}
	return out, nil
}
