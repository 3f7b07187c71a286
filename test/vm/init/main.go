// Command init is the first program of a machine of package vm. It mounts what programs
// expect, loads the modules that the initramfs lists, and serves the host until the machine
// is switched off. In a system whose first program is systemd it is a service, with the list
// of the modules as its argument, and mounts nothing.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/graylink/graylink/test/vm/guest"
)

// modules is the list that package vm writes: a line is a file and its parameters.
const modules = "/etc/modules"

// portPatience is how long the port of the host may take to appear once its driver is loaded.
const portPatience = 5 * time.Minute

func main() {
	fmt.Fprintln(os.Stderr, "init:", run())
	// A machine whose first program ends panics, and with panic=-1 restarts, which ends QEMU.
	os.Exit(1)
}

// run serves, and returns only with why it cannot.
func run() error {
	if len(os.Args) > 1 {
		return serve(os.Args[1])
	}
	for _, m := range []struct{ kind, dir string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil && !errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	if err := os.Setenv("HOME", "/tmp"); err != nil {
		return err
	}
	if name, err := os.ReadFile("/etc/hostname"); err == nil {
		if err := syscall.Sethostname([]byte(strings.TrimSpace(string(name)))); err != nil {
			return fmt.Errorf("hostname: %w", err)
		}
	}
	return serve(modules)
}

// serve loads the modules of a list, and serves the host.
func serve(list string) error {
	if err := os.Setenv("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return err
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	s := &guest.Service{}
	for line := range strings.Lines(string(text)) {
		file, parameters, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := loadModule(file, parameters); err != nil {
			fmt.Fprintln(os.Stderr, "init:", err)
			s.Problems = append(s.Problems, err.Error())
		}
	}
	port, err := openPort(guest.Port)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "init: serving")
	if err := guest.ServeStream(port, s); err != nil {
		return err
	}
	return errors.New("the host hung up")
}

// loadModule puts a module into the kernel: init_module(2).
func loadModule(file, parameters string) error {
	image, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if len(image) == 0 {
		return fmt.Errorf("module %s: an ELF object is expected, the file is empty", file)
	}
	p, err := syscall.BytePtrFromString(parameters)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(syscall.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&image[0])), uintptr(len(image)), uintptr(unsafe.Pointer(p)))
	if errno != 0 && errno != syscall.EEXIST {
		return fmt.Errorf("module %s: %w", file, errno)
	}
	return nil
}

// openPort finds the virtio-serial port of a name. The driver makes its device, and reports its
// name, from a work queue: it is there soon after the driver was loaded, and not at once.
func openPort(name string) (*os.File, error) {
	deadline := time.Now().Add(portPatience)
	for {
		files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == name {
				port, err := os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(f))), os.O_RDWR, 0)
				if err == nil || !errors.Is(err, fs.ErrNotExist) {
					return port, err
				}
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no virtio-serial port %s after %s: virtio_console has to be loaded", name, portPatience)
		}
		time.Sleep(10 * time.Millisecond) // asked again; no event says when
	}
}
