package vm

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// libraryDirs are where Debian's dynamic linker looks (its multiarch directories first).
var libraryDirs = []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib"}

// search looks for files of programs: in unpacked packages, and then in the host's root.
type search struct{ roots []string }

func (s search) findFile(names ...string) (string, bool) {
	for _, root := range s.roots {
		for _, n := range names {
			file := filepath.Join(root, n)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				return file, true
			}
		}
	}
	return "", false
}

// addProgram adds a program, its dynamic linker and the libraries that it is linked with, and
// theirs. at is where it is in the machine.
func (s search) addProgram(a *archive, at, file string) error {
	interpreter, needed, err := linkedLibraries(file)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := a.addFile(at, 0o755, data); err != nil {
		return err
	}
	if interpreter != "" {
		linker, ok := s.findFile(interpreter)
		if !ok {
			return fmt.Errorf("%s: its dynamic linker %s was not found", file, interpreter)
		}
		if data, err = os.ReadFile(linker); err != nil {
			return err
		}
		if err := a.addFile(interpreter, 0o755, data); err != nil {
			return err
		}
	}
	for _, n := range needed {
		at := "/lib/x86_64-linux-gnu/" + n
		if name, err := cleanName(at); err != nil || a.names[name] {
			continue
		}
		var names []string
		for _, d := range libraryDirs {
			names = append(names, filepath.Join(d, n))
		}
		library, ok := s.findFile(names...)
		if !ok {
			return fmt.Errorf("%s: its library %s was not found in %v", file, n, s.roots)
		}
		if err := s.addProgram(a, at, library); err != nil {
			return err
		}
	}
	return nil
}

// linkedLibraries returns the dynamic linker and the libraries of a program or library; a static one,
// and a script, have none.
func linkedLibraries(file string) (interpreter string, needed []string, err error) {
	f, err := elf.Open(file)
	var format *elf.FormatError
	if errors.As(err, &format) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		if p.Filesz < 2 || p.Filesz > 4096 {
			return "", nil, fmt.Errorf("%s: the name of its dynamic linker has %d bytes", file, p.Filesz)
		}
		b := make([]byte, p.Filesz-1) // without the zero byte
		if _, err := p.ReadAt(b, 0); err != nil {
			return "", nil, fmt.Errorf("%s: %w", file, err)
		}
		interpreter = string(b)
	}
	needed, err = f.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", file, err)
	}
	return interpreter, needed, nil
}
