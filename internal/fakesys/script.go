package fakesys

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Script lists changes of a tree and their times.
type Script struct {
	File  string
	Steps []Step
}

// Step is one line of a script, at its time. Those of a repeated block have one for each time.
type Step struct {
	At   time.Duration
	Line int
	Text string
	op   op
}

// op represents the change of a step.
type op struct {
	verb, target, file, value string
	n                         int64
}

// ScriptError is a line that cannot be read, or a step that failed.
type ScriptError struct {
	File string
	Line int
	Err  error
}

func (e *ScriptError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

func (e *ScriptError) Unwrap() error { return e.Err }

// Bounds of a script, so that a mistyped number is an error and no full memory.
const (
	maxSteps = 100_000
	maxTime  = 1000 * time.Hour
)

// ParseScript reads a script; file is for errors, which are *ScriptError.
func ParseScript(file string, r io.Reader) (*Script, error) {
	p := parser{}
	in := bufio.NewScanner(r)
	line := 1
	for ; in.Scan(); line++ {
		if err := p.parseLine(line, strings.TrimSpace(in.Text())); err != nil {
			return nil, &ScriptError{file, line, err}
		}
	}
	if err := in.Err(); err != nil {
		return nil, &ScriptError{file, line, err}
	}
	if n := len(p.blocks); n > 0 {
		return nil, &ScriptError{file, p.blocks[n-1].line, fmt.Errorf("repeat without end")}
	}
	return &Script{file, p.steps}, nil
}

type parser struct {
	now    time.Duration
	steps  []Step
	blocks []repeatBlock
}

// repeatBlock is an open repeat.
type repeatBlock struct {
	line, times int
	first       int           // of its steps
	began       time.Duration // the time at its start
}

func (p *parser) parseLine(number int, text string) error {
	if text == "" || text[0] == '#' {
		return nil
	}
	if !utf8.ValidString(text) {
		return fmt.Errorf("text in UTF-8 is expected")
	}
	word, rest := cutWord(text)
	switch {
	case word == "at":
		if len(p.blocks) > 0 {
			return fmt.Errorf("at in a repeated block: +DURATION is expected there")
		}
		at, err := parseDuration(rest)
		if err != nil {
			return err
		}
		if at < p.now {
			return fmt.Errorf("at %s: it is %s already", at, p.now)
		}
		p.now = at
	case word[0] == '+':
		d, err := parseDuration(text[1:])
		if err != nil {
			return err
		}
		if p.now += d; p.now > maxTime {
			return fmt.Errorf("a script of at most %s is expected", maxTime)
		}
	case word == "repeat":
		n, err := strconv.Atoi(rest)
		if err != nil || n < 1 || n > maxSteps {
			return fmt.Errorf("repeat %s: a number from 1 to %d is expected", rest, maxSteps)
		}
		if len(p.blocks) == 8 {
			return fmt.Errorf("blocks in blocks, eight at most, are expected")
		}
		p.blocks = append(p.blocks, repeatBlock{number, n, len(p.steps), p.now})
	case word == "end":
		if rest != "" {
			return fmt.Errorf("end %s: nothing is expected after end", rest)
		}
		return p.endRepeat()
	default:
		o, err := parseOp(text)
		if err != nil {
			return err
		}
		if len(p.steps) == maxSteps {
			return fmt.Errorf("at most %d steps are expected", maxSteps)
		}
		p.steps = append(p.steps, Step{p.now, number, text, o})
	}
	return nil
}

// endRepeat writes the steps of the innermost block once for each further time.
func (p *parser) endRepeat() error {
	if len(p.blocks) == 0 {
		return fmt.Errorf("end without repeat")
	}
	b := p.blocks[len(p.blocks)-1]
	p.blocks = p.blocks[:len(p.blocks)-1]
	body, span := slices.Clone(p.steps[b.first:]), p.now-b.began
	if len(body)*(b.times-1)+len(p.steps) > maxSteps {
		return fmt.Errorf("repeated %d times it has more than %d steps", b.times, maxSteps)
	}
	if span > maxTime/time.Duration(b.times) {
		return fmt.Errorf("repeated %d times it takes longer than %s", b.times, maxTime)
	}
	for i := 1; i < b.times; i++ {
		for _, s := range body {
			s.At += span * time.Duration(i)
			p.steps = append(p.steps, s)
		}
	}
	if p.now += span * time.Duration(b.times-1); p.now > maxTime {
		return fmt.Errorf("a script of at most %s is expected", maxTime)
	}
	return nil
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > maxTime {
		return 0, fmt.Errorf("%q: a duration such as 1.5s or 2m, up to %s, is expected", s, maxTime)
	}
	return d, nil
}

// verbs are the steps, with what follows each.
var verbs = map[string]string{
	"set":     "TARGET FILE VALUE",
	"add":     "TARGET FILE NUMBER",
	"net":     "INTERFACE FILE VALUE",
	"aer":     "TARGET correctable|nonfatal|fatal ERROR NUMBER",
	"remove":  "TARGET|PATH",
	"restore": "TARGET|PATH",
	"hang":    "PATH",
	"unhang":  "PATH",
	"garble":  "PATH TEXT",
	"fail":    "PATH",
	"chmod":   "PATH MODE",
	"kmsg":    "LEVEL TEXT",
	"boot":    "",
}

// parseOp reads a step.
func parseOp(text string) (op, error) {
	verb, rest := cutWord(strings.TrimSpace(text))
	form, ok := verbs[verb]
	if !ok {
		return op{}, fmt.Errorf("%q: at, +DURATION, repeat, end or one of %s is expected", verb, strings.Join(sortedVerbs(), ", "))
	}
	if strings.ContainsAny(text, "\n\x00") {
		return op{}, fmt.Errorf("%s: a single line is expected", verb)
	}
	usage := func() error { return fmt.Errorf("%s is expected", strings.TrimSpace(verb+" "+form)) }
	o := op{verb: verb}
	var err error
	switch verb {
	case "set", "add", "net":
		o.target, rest = cutWord(rest)
		o.file, rest = cutWord(rest)
		if rest == "" {
			return op{}, usage()
		}
		if err := checkTarget(o.target, false); err != nil {
			return op{}, err
		}
		if err := checkInside(o.file); err != nil {
			return op{}, err
		}
		if verb != "add" {
			o.value, err = unquoteValue(rest)
			break
		}
		o.n, err = parseNumber(rest)
	case "aer":
		o.target, rest = cutWord(rest)
		o.file, rest = cutWord(rest)
		o.value, rest = cutWord(rest)
		if _, ok := aerFiles[o.file]; !ok || rest == "" {
			return op{}, usage()
		}
		if err := checkTarget(o.target, false); err != nil {
			return op{}, err
		}
		o.n, err = parseNumber(rest)
	case "remove", "restore":
		if o.target = strings.TrimPrefix(rest, "/"); o.target == "" || strings.ContainsAny(rest, " \t") {
			return op{}, usage()
		}
		err = checkTarget(o.target, true)
	case "hang", "unhang", "fail", "garble", "chmod":
		o.target, rest = cutWord(rest)
		o.target = strings.TrimPrefix(o.target, "/")
		if o.target == "" || (rest != "") != (verb == "chmod" || verb == "garble") {
			return op{}, usage()
		}
		if err := checkPath(o.target); err != nil {
			return op{}, err
		}
		switch verb {
		case "garble":
			o.value, err = unquoteValue(rest)
		case "chmod":
			var mode uint64
			if mode, err = strconv.ParseUint(rest, 8, 9); err != nil {
				err = fmt.Errorf("%q: an octal mode such as 000 or 644 is expected", rest)
			}
			o.n = int64(mode)
		}
	case "kmsg":
		var level string
		level, o.value = cutWord(rest)
		if len(level) != 1 || level[0] < '0' || level[0] > '7' || o.value == "" {
			return op{}, fmt.Errorf("kmsg LEVEL TEXT is expected, with a level from 0 (emergency) to 7 (debug)")
		}
		o.n = int64(level[0] - '0')
	case "boot":
		if rest != "" {
			return op{}, fmt.Errorf("boot %s: nothing is expected after boot", rest)
		}
	}
	if err != nil {
		return op{}, err
	}
	return o, nil
}

func sortedVerbs() []string {
	var out []string
	for v := range verbs {
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}

// cutWord splits the first word off.
func cutWord(s string) (word, rest string) {
	i := strings.IndexAny(s, " \t")
	if i < 0 {
		return s, ""
	}
	return s[:i], strings.TrimLeft(s[i:], " \t")
}

func parseNumber(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q: a whole number that is not negative is expected", s)
	}
	return n, nil
}

// unquoteValue returns a value that may be a quoted Go string: "a\nb".
func unquoteValue(s string) (string, error) {
	if s[0] != '"' {
		return s, nil
	}
	v, err := strconv.Unquote(s)
	if err != nil {
		return "", fmt.Errorf("%s: a text in double quotes with Go's escapes is expected", s)
	}
	return v, nil
}

// checkTarget allows DEV/PORT, a device, an interface and a PCI address, and where paths are allowed,
// those.
func checkTarget(s string, paths bool) error {
	dev, port, ok := strings.Cut(s, "/")
	if paths && ok {
		return checkPath(s)
	}
	if ok {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || strconv.Itoa(n) != port {
			return fmt.Errorf("%q: DEVICE/PORT, such as mlx5_0/1, is expected", s)
		}
	}
	if !namePattern.MatchString(dev) {
		return fmt.Errorf("%q: a device such as mlx5_0, a port mlx5_0/1, an interface or a PCI address is expected", s)
	}
	return nil
}

// checkInside allows a path below a directory.
func checkInside(s string) error {
	if s == "" || path.Clean(s) != s || s[0] == '/' || strings.HasPrefix(s, "..") || s == "." || strings.Contains(s, "!") {
		return fmt.Errorf("%q: a file below the target's directory is expected", s)
	}
	return nil
}

func checkPath(s string) error {
	top, rest, _ := strings.Cut(s, "/")
	if !slices.Contains([]string{"sys", "proc", "dev"}, top) || rest == "" || checkInside(rest) != nil {
		return fmt.Errorf("%q: a path below /sys, /proc or /dev is expected", s)
	}
	return nil
}
