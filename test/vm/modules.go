package vm

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// modinfo is what a kernel module says of itself in its section .modinfo: strings that end
// with a zero byte, key=value (include/linux/moduleinfo.h).
type modinfo struct {
	name    string
	depends []string
}

// errNoModinfo is of a file that is an ELF object and no module.
var errNoModinfo = errors.New("no section .modinfo with a name in it: a kernel module is expected")

func parseModinfo(section []byte) (modinfo, error) {
	var m modinfo
	for entry := range bytes.SplitSeq(section, []byte{0}) {
		key, value, ok := strings.Cut(string(entry), "=")
		if !ok {
			continue
		}
		switch key {
		case "name":
			m.name = value
		case "depends":
			for d := range strings.SplitSeq(value, ",") {
				if d != "" {
					m.depends = append(m.depends, moduleName(d))
				}
			}
		}
	}
	if m.name == "" {
		return modinfo{}, errNoModinfo
	}
	return m, nil
}

func readModinfo(file string) (modinfo, error) {
	f, err := elf.Open(file)
	if err != nil {
		return modinfo{}, fmt.Errorf("%s: an uncompressed kernel module is expected: %w", file, err)
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return modinfo{}, fmt.Errorf("%s: %w", file, errNoModinfo)
	}
	b, err := s.Data()
	if err != nil {
		return modinfo{}, fmt.Errorf("%s: %w", file, err)
	}
	m, err := parseModinfo(b)
	if err != nil {
		return modinfo{}, fmt.Errorf("%s: %w", file, err)
	}
	return m, nil
}

// moduleName returns a name as the kernel writes it: it takes - and _ for the same.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// kernel is a kernel as its package has it.
type kernel struct {
	release string
	image   string            // its file
	modules map[string]string // files by name
	builtin map[string]bool
}

// openKernel finds a kernel in the directory that its package was unpacked to.
func openKernel(dir string) (*kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("%s: one file boot/vmlinuz-* is expected, there are %d", dir, len(images))
	}
	k := &kernel{image: images[0], release: strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-"), modules: map[string]string{}, builtin: map[string]bool{}}
	root := filepath.Join(dir, "lib/modules", k.release)
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		root = filepath.Join(dir, "usr/lib/modules", k.release)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, ok := strings.CutSuffix(d.Name(), ".ko"); ok {
			k.modules[moduleName(name)] = path
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	list, err := os.ReadFile(filepath.Join(root, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(list)) {
		k.builtin[moduleName(strings.TrimSuffix(filepath.Base(strings.TrimSpace(line)), ".ko"))] = true
	}
	return k, nil
}

// ErrNoModule is of a module that the kernel's package has not.
var ErrNoModule = errors.New("the kernel has no such module")

// module is one to load: its file, and its parameters.
type module struct{ name, file, parameters string }

// loadOrder lists modules, each after those that it needs. A wanted one is a name, and may have
// parameters: "dummy numdummies=0".
func (k *kernel) loadOrder(wanted []string) ([]module, error) {
	var out []module
	state := map[string]int{} // 1: being looked at, 2: listed
	var add func(name, parameters, from string) error
	add = func(name, parameters, from string) error {
		name = moduleName(name)
		if k.builtin[name] || state[name] == 2 {
			return nil
		}
		if state[name] == 1 {
			return fmt.Errorf("module %s needs itself, by %s", name, from)
		}
		file := k.modules[name]
		if file == "" {
			return fmt.Errorf("%w: %s, for %s, in %s", ErrNoModule, name, from, k.release)
		}
		state[name] = 1
		info, err := readModinfo(file)
		if err != nil {
			return err
		}
		for _, d := range info.depends {
			if err := add(d, "", name); err != nil {
				return err
			}
		}
		state[name] = 2
		out = append(out, module{name, file, parameters})
		return nil
	}
	for _, w := range wanted {
		name, parameters, _ := strings.Cut(w, " ")
		if err := add(name, parameters, "the options"); err != nil {
			return nil, err
		}
	}
	return out, nil
}
