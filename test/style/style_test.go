package style

import (
	"os"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func sources(t *testing.T) []Source {
	t.Helper()
	s, err := ReadSources(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(s) < 300 {
		t.Fatalf("only %d files were found", len(s))
	}
	return s
}

func TestRule1NamesHaveTwoWords(t *testing.T) {
	all, one := CountOneWord(sources(t))
	t.Logf("%d of %d functions have a name of one word: %.1f %%", one, all, 100*float64(one)/float64(all))
	if 100*one > MaxOneWord*all {
		t.Errorf("%.1f %% of the functions have a name of one word, want less than %d %%", 100*float64(one)/float64(all), MaxOneWord)
	}
}

func TestRules2To6(t *testing.T) {
	for _, s := range sources(t) {
		for _, problems := range [][]Problem{s.CheckNames(), s.CheckWords(), s.CheckFunctionComments(), s.CheckHelp(), s.CheckFunctionLengths()} {
			if s.Dir() != "test/style" { // it has the words that are banned
				reportProblems(t, problems)
			}
		}
	}
	documents, err := Documents(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents {
		problems, err := CheckDocument(root, d)
		if err != nil {
			t.Fatal(err)
		}
		reportProblems(t, problems)
	}
}

func reportProblems(t *testing.T, problems []Problem) {
	for _, p := range problems {
		t.Error(p)
	}
}

// The checks find what they are for.
func TestChecksFindProblems(t *testing.T) {
	dir := t.TempDir()
	const bad = `package bad

// tellAll is a riddle.
func tellAll() {}

// Size is what nobody knows.
func Size() int { return len("whom?") }

var desc = prometheus.NewDesc("a", "no capital letter", nil, nil)

var good = prometheus.NewDesc("a", "Time since the start in seconds.", nil, nil)
`
	long := "\nfunc addMany() {\n" + strings.Repeat("\tx++\n", MaxFunction-1) + "}\n"
	table := "\nfunc listMany() []int {\n\treturn []int{\n" + strings.Repeat("\t\t1,\n", MaxFunction) + "\t}\n}\n"
	if err := os.WriteFile(dir+"/bad.go", []byte(bad+long+table), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/bad.md", []byte(strings.Repeat("long ", 30)+"\nThis tells nothing.\n| "+strings.Repeat("table ", 30)+"|\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := ReadSources(dir)
	if err != nil || len(s) != 1 {
		t.Fatalf("%d files, %v", len(s), err)
	}
	document, err := CheckDocument(dir, "bad.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what  string
		found []Problem
		lines []int
	}{
		{"names", s[0].CheckNames(), []int{4}},
		{"words", s[0].CheckWords(), []int{6, 7}},
		{"comments of functions", s[0].CheckFunctionComments(), []int{3, 6}},
		{"help", s[0].CheckHelp(), []int{9}},
		{"lengths", s[0].CheckFunctionLengths(), []int{13}},
		{"document", document, []int{1, 2}},
	} {
		var lines []int
		for _, p := range c.found {
			lines = append(lines, p.Line)
		}
		if !slices.Equal(lines, c.lines) {
			t.Errorf("%s: problems in lines %v, want %v: %v", c.what, lines, c.lines, c.found)
		}
	}
	if all, one := CountOneWord(s); all != 4 || one != 1 {
		t.Errorf("%d functions, %d of one word; want 4 and 1", all, one)
	}
	for name, want := range map[string]int{"parse": 1, "parseURL": 2, "NICName": 2, "OWD": 1, "read_all": 2, "x": 1} {
		if got := words(name); len(got) != want {
			t.Errorf("%s: %q, want %d words", name, got, want)
		}
	}
}
