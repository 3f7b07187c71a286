package probe

import (
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// loadKeys reads a file of keys, with one "NUMBER SECRET" per line and the secret in hex. The first key sends.
func loadKeys(path string) ([]Key, []byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read keys: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, nil, fmt.Errorf("%s: mode %v lets other users read the keys, want 0600", path, info.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read keys: %w", err)
	}
	keys, err := parseKeys(b)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, b, nil
}

// maxKeys limits the number of keys that a packet is tried with.
const maxKeys = 4

// parseKeys parses the content of a file of keys.
func parseKeys(b []byte) ([]Key, error) {
	var keys []Key
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		// An error never repeats text that may be a secret.
		number, secret, _ := strings.Cut(line, " ")
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("line %d: want a number, a space and the secret in hex", i+1)
		}
		raw, err := hex.DecodeString(strings.TrimSpace(secret))
		if err != nil || len(raw) < minSecret {
			return nil, fmt.Errorf("line %d: key %d: want a secret of at least %d octets in hex", i+1, id, minSecret)
		}
		if slices.ContainsFunc(keys, func(k Key) bool { return k.ID == uint32(id) }) {
			return nil, fmt.Errorf("line %d: key %d is listed twice", i+1, id)
		}
		keys = append(keys, Key{ID: uint32(id), Secret: raw})
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("%d keys, want 1 to %d", len(keys), maxKeys)
	}
	return keys, nil
}
