package fabric

import (
	"fmt"
	"strings"
)

// ExpandHosts expands a list of hosts as Slurm writes it: "n[01-03,7],login".
func ExpandHosts(list string) ([]string, error) {
	var out []string
	for _, part := range splitOutsideBrackets(list) {
		open := strings.IndexByte(part, '[')
		if open < 0 {
			if part != "" {
				out = append(out, part)
			}
			continue
		}
		end := strings.IndexByte(part, ']')
		if end < open || strings.ContainsAny(part[end+1:], "[]") || strings.ContainsAny(part[open+1:end], "[") {
			return nil, fmt.Errorf("hosts %q: one list in brackets is expected, such as n[01-03,7]", truncateText(part))
		}
		for _, item := range strings.Split(part[open+1:end], ",") {
			from, to, ranged := strings.Cut(item, "-")
			if !ranged {
				to = from
			}
			a, err := parseDigits(from)
			b, err2 := parseDigits(to)
			if err != nil || err2 != nil || b < a || b-a >= maxHosts-len(out) {
				return nil, fmt.Errorf("hosts %q: numbers or ranges of them are expected in the brackets, of at most %d hosts", truncateText(part), maxHosts)
			}
			for n := a; n <= b; n++ {
				out = append(out, fmt.Sprintf("%s%0*d%s", part[:open], len(from), n, part[end+1:]))
			}
		}
		if len(out) > maxHosts {
			return nil, fmt.Errorf("hosts: more than %d", maxHosts)
		}
	}
	return out, nil
}

// maxHosts bounds what one list may name.
const maxHosts = 100_000

// splitOutsideBrackets splits a list at the commas that are in no brackets.
func splitOutsideBrackets(list string) []string {
	var out []string
	deep, from := 0, 0
	for i := range len(list) {
		switch list[i] {
		case '[':
			deep++
		case ']':
			deep--
		case ',':
			if deep == 0 {
				out = append(out, list[from:i])
				from = i + 1
			}
		}
	}
	return append(out, list[from:])
}

func parseDigits(s string) (n int, err error) {
	if s == "" || len(s) > 9 {
		return 0, fmt.Errorf("%q: digits are expected", truncateText(s))
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%q: digits are expected", truncateText(s))
		}
		n = n*10 + int(c-'0')
	}
	return n, nil
}

// truncateText returns the beginning of a text that may be long.
func truncateText(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
