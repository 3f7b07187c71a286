package style

import (
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	shellBlock  = regexp.MustCompile("(?s)\n *```sh\n(.*?)\n *```\n")
	documented  = regexp.MustCompile("(?s)\n##+ [^`\n]*`(graylink[^`]*)`[^\n]*\n(.*?)(?:\n##|$)")
	flagInTable = regexp.MustCompile(`--(?:\[no-\])?([a-z][a-z0-9.-]*)`)
	program     = regexp.MustCompile(`^(?:\S*/)?(graylink(?:-[a-z]+)?)$`)
)

// documentedFlags returns the flags of each program and command, by docs/reference/flags.md.
func documentedFlags(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	for text := "\n" + readDocument(t, "docs/reference/flags.md"); ; {
		m := documented.FindStringSubmatchIndex(text)
		if m == nil {
			return out
		}
		flags := map[string]bool{"help": true, "version": true}
		for _, row := range strings.Split(text[m[4]:m[5]], "\n") {
			cell, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
			for _, f := range flagInTable.FindAllStringSubmatch(cell, -1) {
				flags[strings.TrimRight(f[1], ".")] = true
			}
		}
		out[text[m[2]:m[3]]] = flags
		text = text[m[5]:]
	}
}

// TestShellBlocks: the shell accepts every block of commands of the documents, and our programs have the commands and flags
// that the blocks use.
func TestShellBlocks(t *testing.T) {
	flags := documentedFlags(t)
	if len(flags["graylink-node"]) < 20 || len(flags["graylink join-token"]) < 3 {
		t.Fatalf("flags of %d commands were read", len(flags))
	}
	files := []string{"README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md", "deploy/*/*.md", "receivers/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			name, err := filepath.Rel(root, f)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, name)
		}
	}
	blocks, uses := 0, 0
	for _, file := range files {
		for _, m := range shellBlock.FindAllStringSubmatch(readDocument(t, file), -1) {
			blocks++
			if out, err := exec.CommandContext(t.Context(), "sh", "-n", "-c", m[1]).CombinedOutput(); err != nil {
				t.Errorf("%s: the shell does not accept this block: %s\n%s", file, out, m[1])
			}
			for _, line := range strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n") {
				line, _, _ = strings.Cut(line, "  #")
				line, _, _ = strings.Cut(line, " # ")
				for _, command := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune("|&;()<>", r) }) {
					uses += checkCommand(t, file, command, flags)
				}
			}
		}
	}
	if blocks < 20 || uses < 25 {
		t.Errorf("%d blocks with %d uses of our programs: fewer than there were", blocks, uses)
	}
	t.Logf("%d blocks with %d uses of our programs", blocks, uses)
}

// checkCommand checks a command of a document if it runs one of our programs. It returns the number of those that it runs.
func checkCommand(t *testing.T, file, command string, flags map[string]map[string]bool) int {
	t.Helper()
	fields := strings.Fields(command)
	for i, f := range fields {
		m := program.FindStringSubmatch(f)
		if m == nil {
			if i == 0 && (f == "sudo" || f == "exec" || f == "env") {
				continue
			}
			return 0
		}
		name, arguments := m[1], fields[i+1:]
		known := maps.Clone(flags[name])
		for strings.HasPrefix(name, "graylink") {
			for len(arguments) > 1 && strings.HasPrefix(arguments[0], "--") && known[strings.TrimPrefix(arguments[0], "--")] {
				arguments = arguments[2:] // a flag of the group, with its value
			}
			if len(arguments) == 0 {
				break
			}
			longer := name + " " + arguments[0]
			if flags[longer] == nil && !hasPrefix(flags, longer+" ") {
				break
			}
			name, arguments = longer, arguments[1:]
			maps.Copy(known, flags[longer]) // the flags of a group are for its commands, and may stand before their names
		}
		for _, a := range arguments {
			if a == "--" {
				break
			}
			text, is := strings.CutPrefix(a, "--")
			flag, _, _ := strings.Cut(text, "=")
			if is && !known[flag] && !known[strings.TrimPrefix(flag, "no-")] {
				t.Errorf("%s: %q: %s has no flag --%s", file, command, name, flag)
			}
		}
		return 1
	}
	return 0
}

func hasPrefix(flags map[string]map[string]bool, prefix string) bool {
	for name := range flags {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
