package fakesys

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseScript(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string // time, line and step
	}{
		{"empty", "", nil},
		{"comments", "# a\n\n   # b\n", nil},
		{"times", "boot\nat 2s\n+500ms\nboot\n+0s\nset mlx5_0/1 state 1: DOWN\n", []string{"0s 1 boot", "2.5s 4 boot", "2.5s 6 set mlx5_0/1 state 1: DOWN"}},
		{"repeat", "at 1s\nrepeat 3\n+1s\nboot\n+2s\nend\nboot\n", []string{"2s 4 boot", "5s 4 boot", "8s 4 boot", "10s 7 boot"}},
		{"nested", "repeat 2\nrepeat 2\nboot\n+1s\nend\n+10s\nend\n", []string{"0s 3 boot", "1s 3 boot", "12s 3 boot", "13s 3 boot"}},
		{"repeat without time", "repeat 2\nboot\nend", []string{"0s 2 boot", "0s 2 boot"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := ParseScript("x", strings.NewReader(test.text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range s.Steps {
				got = append(got, fmt.Sprintf("%s %d %s", s.At, s.Line, s.Text))
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestParseOp(t *testing.T) {
	for text, want := range map[string]op{
		"set mlx5_0/1 state 1: DOWN":                              {verb: "set", target: "mlx5_0/1", file: "state", value: "1: DOWN"},
		"set  mlx5_0\tfw_ver   28.1  ":                            {verb: "set", target: "mlx5_0", file: "fw_ver", value: "28.1"},
		`set mlx5_0 x "a\nb"`:                                     {verb: "set", target: "mlx5_0", file: "x", value: "a\nb"},
		`set mlx5_0 x ""`:                                         {verb: "set", target: "mlx5_0", file: "x"},
		"set 0000:18:00.0 current_link_width 8":                   {verb: "set", target: "0000:18:00.0", file: "current_link_width", value: "8"},
		"add mlx5_0/1 counters/link_downed 1":                     {verb: "add", target: "mlx5_0/1", file: "counters/link_downed", n: 1},
		"net eth0 operstate down":                                 {verb: "net", target: "eth0", file: "operstate", value: "down"},
		"aer 0000:18:00.0 nonfatal CmpltTO 2":                     {verb: "aer", target: "0000:18:00.0", file: "nonfatal", value: "CmpltTO", n: 2},
		"remove mlx5_0":                                           {verb: "remove", target: "mlx5_0"},
		"remove /sys/class/infiniband/mlx5_0/ports":               {verb: "remove", target: "sys/class/infiniband/mlx5_0/ports"},
		"restore 0000:18:00.0":                                    {verb: "restore", target: "0000:18:00.0"},
		"hang sys/class/net/eth0/speed":                           {verb: "hang", target: "sys/class/net/eth0/speed"},
		"garble proc/stat not a number at all":                    {verb: "garble", target: "proc/stat", value: "not a number at all"},
		`garble proc/stat "\x00\xff"`:                             {verb: "garble", target: "proc/stat", value: "\x00\xff"},
		"chmod sys/class/net/eth0/speed 000":                      {verb: "chmod", target: "sys/class/net/eth0/speed"},
		"chmod sys/class/net/eth0/speed 644":                      {verb: "chmod", target: "sys/class/net/eth0/speed", n: 0o644},
		"kmsg 3 mlx5_core 0000:18:00.0: poll_health:  dead":       {verb: "kmsg", value: "mlx5_core 0000:18:00.0: poll_health:  dead", n: 3},
		"fail sys/class/infiniband/mlx5_0/ports/1/counters/a.b-c": {verb: "fail", target: "sys/class/infiniband/mlx5_0/ports/1/counters/a.b-c"},
	} {
		if got, err := parseOp(text); err != nil || got != want {
			t.Errorf("%s: %+v %v, want %+v", text, got, err, want)
		}
	}
}

func TestScriptErrors(t *testing.T) {
	for text, want := range map[string]string{
		"bot":                               `s:1: "bot": at, +DURATION, repeat, end or one of add, aer, boot, chmod, fail, garble, hang, kmsg, net, remove, restore, set, unhang is expected`,
		"boot\n\nboot now":                  "s:3: boot now: nothing is expected after boot",
		"at 3s\nat 2s":                      "s:2: at 2s: it is 3s already",
		"at soon":                           `s:1: "soon": a duration such as 1.5s or 2m, up to 1000h0m0s, is expected`,
		"+-1s":                              `s:1: "-1s": a duration`,
		"at":                                `s:1: "": a duration`,
		"+999h\n+2h":                        "s:2: a script of at most 1000h0m0s is expected",
		"repeat 0\nend":                     "s:1: repeat 0: a number from 1 to 100000 is expected",
		"boot\nrepeat 2\nboot":              "s:2: repeat without end",
		"end":                               "s:1: end without repeat",
		"repeat 2\nat 3s\nend":              "s:2: at in a repeated block",
		"repeat 100000\nboot\nboot\nend":    "s:4: repeated 100000 times it has more than 100000 steps",
		"repeat 2000\n+1h\nend":             "s:3: repeated 2000 times it takes longer than",
		"set mlx5_0/1 state":                "s:1: set TARGET FILE VALUE is expected",
		"set mlx5_0/x state 1":              `s:1: "mlx5_0/x": DEVICE/PORT, such as mlx5_0/1, is expected`,
		"set mlx5_0/1 ../../x 1":            `s:1: "../../x": a file below the target's directory is expected`,
		"set ../x state 1":                  "s:1: ",
		`set mlx5_0 x "a`:                   `s:1: "a: a text in double quotes with Go's escapes is expected`,
		"add mlx5_0/1 counters/x one":       `s:1: "one": a whole number that is not negative is expected`,
		"add mlx5_0/1 counters/x -1":        `s:1: "-1": a whole number`,
		"aer mlx5_0 serious DLP 1":          "s:1: aer TARGET correctable|nonfatal|fatal ERROR NUMBER is expected",
		"remove":                            "s:1: remove TARGET|PATH is expected",
		"remove a b":                        "s:1: remove TARGET|PATH is expected",
		"hang mlx5_0":                       `s:1: "mlx5_0": a path below /sys, /proc or /dev is expected`,
		"hang sys/../../etc/passwd":         `s:1: "sys/../../etc/passwd": a path below`,
		"hang /etc/passwd":                  `s:1: "etc/passwd": a path below`,
		"hang sys/a b":                      "s:1: hang PATH is expected",
		"garble sys/a":                      "s:1: garble PATH TEXT is expected",
		"chmod sys/a 888":                   `s:1: "888": an octal mode such as 000 or 644 is expected`,
		"kmsg 9 x":                          "s:1: kmsg LEVEL TEXT is expected, with a level from 0 (emergency) to 7 (debug)",
		"kmsg 3":                            "s:1: kmsg LEVEL TEXT is expected",
		"kmsg 3 \xff":                       "s:1: text in UTF-8 is expected",
		"boot\n" + strings.Repeat("x", 1e5): "s:2: bufio.Scanner: token too long",
	} {
		_, err := ParseScript("s", strings.NewReader(text))
		var se *ScriptError
		if !errors.As(err, &se) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

func FuzzScript(f *testing.F) {
	for _, seed := range []string{
		"at 0s\nset mlx5_0/1 state 1: DOWN\n+1s\nadd mlx5_0/1 counters/link_downed 1\n",
		"repeat 3\n+1s\nkmsg 3 mlx5_core 0000:18:00.0: dead\nend\n",
		"remove mlx5_0\n+3s\nrestore mlx5_0\nboot\n",
		"hang sys/class/net/eth0/speed\n+1m\nunhang sys/class/net/eth0/speed\ngarble proc/stat \"\\n\"\nchmod sys/a 000\nfail dev/kmsg\n",
		"aer 0000:18:00.0 fatal DLP 1\nnet eth0 operstate down\n",
		"repeat 100000\nrepeat 100000\nend\nend\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScript("s", strings.NewReader(text))
		if err != nil {
			var se *ScriptError
			if !errors.As(err, &se) || se.Line < 1 || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%v", err)
			}
			return
		}
		last, parsed := time.Duration(0), map[int]bool{}
		for _, step := range s.Steps {
			if step.At < last || step.At > maxTime {
				t.Fatalf("at %s after %s", step.At, last)
			}
			last = step.At
			if parsed[step.Line] {
				continue
			}
			parsed[step.Line] = true
			again, err := parseOp(step.Text)
			if err != nil || again != step.op {
				t.Fatalf("%q: %+v, and alone %+v %v", step.Text, step.op, again, err)
			}
		}
	})
}
