package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/rpc"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/graylink/graylink/test/vm/guest"
)

// unpackCPIO reads an archive as the kernel does: init/initramfs.c.
func unpackCPIO(t *testing.T, b []byte) (names []string, content map[string]string, modes map[string]uint64) {
	t.Helper()
	content, modes = map[string]string{}, map[string]uint64{}
	for at := 0; ; {
		if len(b) < at+110 || string(b[at:at+6]) != "070701" {
			t.Fatalf("no header at byte %d of %d", at, len(b))
		}
		field := func(i int) int {
			v, err := strconv.ParseUint(string(b[at+6+8*i:at+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(v)
		}
		size, nameSize, mode := field(6), field(11), field(1)
		name := string(b[at+110 : at+110+nameSize-1])
		data := (at + 110 + nameSize + 3) &^ 3
		if name == "TRAILER!!!" {
			return names, content, modes
		}
		names, content[name], modes[name] = append(names, name), string(b[data:data+size]), uint64(mode)
		at = (data + size + 3) &^ 3
	}
}

func TestArchive(t *testing.T) {
	var buf bytes.Buffer
	a := newArchive(&buf)
	for _, err := range []error{
		a.addFile("/etc/deep/one", 0o600, []byte("1")), a.addFile("/etc/deep/three", 0o755, []byte("333")), a.addFile("etc/deep/one", 0o644, []byte("not this")),
		a.addLink("/bin/sh", "busybox"), a.addCharDevice("/dev/console", 0o600, 5, 1), a.addFile("/empty", 0o644, nil), a.close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	names, content, modes := unpackCPIO(t, buf.Bytes())
	if want := []string{"etc", "etc/deep", "etc/deep/one", "etc/deep/three", "bin", "bin/sh", "dev", "dev/console", "empty"}; !reflect.DeepEqual(names, want) {
		t.Errorf("names %v, expected %v", names, want)
	}
	if content["etc/deep/one"] != "1" || content["etc/deep/three"] != "333" || content["bin/sh"] != "busybox" || content["empty"] != "" {
		t.Errorf("%q", content)
	}
	if modes["etc"] != 0o040755 || modes["etc/deep/one"] != 0o100600 || modes["bin/sh"] != 0o120777 || modes["dev/console"] != 0o020600 {
		t.Errorf("modes %v", modes)
	}
	for _, name := range []string{"", "/", "..", "a\x00b"} {
		if err := a.addFile(name, 0o644, nil); err == nil {
			t.Errorf("%q: an error is expected", name)
		}
	}
	if err := a.addFile("../up", 0o644, nil); err != nil || !a.names["up"] {
		t.Errorf("a name does not leave the root: %v, %v", err, a.names)
	}
}

// A machine with a system of its own has the system's archive as it is, and nothing behind it replaces a link of Debian's.
func TestSystemArchive(t *testing.T) {
	var root, out bytes.Buffer
	a := newArchive(&root)
	if err := errors.Join(a.addLink("/lib", "usr/lib"), a.addFile("/etc/hosts", 0o644, []byte("old")), a.close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, ko := filepath.Join(dir, "root"), filepath.Join(dir, "a.ko")
	if err := errors.Join(os.WriteFile(file, root.Bytes(), 0o600), os.WriteFile(ko, []byte("module"), 0o600)); err != nil {
		t.Fatal(err)
	}
	o := Options{Name: "h1", Root: file, Files: map[string][]byte{"/etc/hosts": []byte("new")}}
	if err := o.fillSystem(&out, []byte("first"), []module{{name: "a", file: ko, parameters: "x=1"}}); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(out.Bytes(), root.Bytes()) {
		t.Error("the archive of the system is changed")
	}
	names, content, modes := unpackCPIO(t, out.Bytes()[root.Len():])
	for name, want := range map[string]string{"init": "/lib/systemd/systemd", "usr/local/lib/vm/init": "first", "usr/local/lib/vm/a.ko": "module",
		"usr/local/lib/vm/modules": "/usr/local/lib/vm/a.ko x=1\n", "etc/hosts": "new", "etc/hostname": "h1\n"} {
		if content[name] != want {
			t.Errorf("%s holds %q, want %q", name, content[name], want)
		}
	}
	if !strings.Contains(content["etc/systemd/system/vm.service"], "ExecStart=/usr/local/lib/vm/init /usr/local/lib/vm/modules\n") || modes["usr/local/lib/vm/init"] != 0o100755 {
		t.Errorf("unit %q, mode %o", content["etc/systemd/system/vm.service"], modes["usr/local/lib/vm/init"])
	}
	for _, name := range names {
		if top, _, _ := strings.Cut(name, "/"); top == "lib" || top == "bin" || top == "sbin" {
			t.Errorf("%s replaces a link", name)
		}
	}
}

var modinfos = []struct {
	section string
	want    modinfo
	err     error
}{
	{"license=GPL\x00depends=ib_core,udp_tunnel,ip6-udp-tunnel\x00name=rdma_rxe\x00", modinfo{"rdma_rxe", []string{"ib_core", "udp_tunnel", "ip6_udp_tunnel"}}, nil},
	{"depends=\x00\x00\x00name=ib_core\x00vermagic=6.1.0 SMP", modinfo{"ib_core", nil}, nil},
	{"", modinfo{}, errNoModinfo},
	{"depends=a\x00junk\x00", modinfo{}, errNoModinfo},
}

func TestParseModinfo(t *testing.T) {
	for _, test := range modinfos {
		got, err := parseModinfo([]byte(test.section))
		if !reflect.DeepEqual(got, test.want) || !errors.Is(err, test.err) {
			t.Errorf("%q: %+v, %v; expected %+v, %v", test.section, got, err, test.want, test.err)
		}
	}
}

func FuzzParseModinfo(f *testing.F) {
	for _, test := range modinfos {
		f.Add([]byte(test.section))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseModinfo(b)
		if err == nil && m.name == "" {
			t.Error("a module without a name")
		}
		for _, d := range m.depends {
			if d == "" || strings.ContainsAny(d, ",\x00") {
				t.Errorf("dependency %q", d)
			}
		}
	})
}

var controls = []struct {
	text string
	want map[string]string
	err  string
}{
	{"Package: a\nVersion: 1:2-3\nDescription: x\n more\n .\nDepends: b, c\n\nPackage: other\n", map[string]string{"Package": "a", "Version": "1:2-3", "Description": "x", "Depends": "b, c"}, ""},
	{"\n\nPackage: a\r\n", map[string]string{"Package": "a"}, ""},
	{"Package: a\nnonsense\n", nil, `control file, line 2: a field and its value are expected, not "nonsense"`},
	{"Package: a\nPackage: b\n", nil, "control file, line 2: a second Package"},
	{"", nil, "control file: fields are expected, there are none"},
}

func TestParseControl(t *testing.T) {
	for _, test := range controls {
		got, err := parseControl([]byte(test.text))
		if !reflect.DeepEqual(got, test.want) || fmt.Sprint(err) != test.err && (err != nil || test.err != "") {
			t.Errorf("%q: %v, %v; expected %v, %q", test.text, got, err, test.want, test.err)
		}
	}
}

func FuzzParseControl(f *testing.F) {
	for _, test := range controls {
		f.Add([]byte(test.text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseControl(b)
		if (err == nil) != (len(m) > 0) {
			t.Errorf("%v, %v", m, err)
		}
	})
}

// What a package holds stays below its directory, and only what is wanted is there.
func TestUntar(t *testing.T) {
	build := func(headers ...tar.Header) *bytes.Buffer {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, h := range headers {
			h.Size = int64(len(h.Name))
			if h.Typeflag != tar.TypeReg {
				h.Size = 0
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				if _, err := w.Write([]byte(h.Name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &buf
	}
	reg := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	top := t.TempDir()
	dir := filepath.Join(top, "tree")
	err := extractTar(build(reg("./usr/lib/a"), reg("../../escape"), reg("./no/b"), tar.Header{Name: "./usr/lib/l", Typeflag: tar.TypeSymlink, Linkname: "a"}), dir, func(n string) bool { return !strings.HasPrefix(n, "no/") })
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "usr/lib/l")); err != nil || string(b) != "./usr/lib/a" {
		t.Errorf("%q, %v", b, err)
	}
	for _, absent := range []string{filepath.Join(top, "escape"), filepath.Join(dir, "no")} {
		if _, err := os.Lstat(absent); err == nil {
			t.Errorf("%s is there", absent)
		}
	}
	// A file below a link that leaves the directory.
	err = extractTar(build(tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: ".."}, reg("out/x")), filepath.Join(top, "second"), func(string) bool { return true })
	if err == nil {
		t.Error("a link led out of the directory")
	}
	if err := extractTar(strings.NewReader("no archive at all, and long enough to be none"), filepath.Join(top, "third"), nil); err == nil {
		t.Error("an error is expected")
	}
}

func TestWhatIsKeptOfAKernel(t *testing.T) {
	const m = "lib/modules/6.1.0-56-amd64/kernel/"
	for name, want := range map[string]bool{
		"boot/vmlinuz-6.1.0-56-amd64": true, m + "drivers/infiniband/sw/rxe/rdma_rxe.ko": true, m + "drivers/net/dummy.ko": true, m + "net/sched/sch_netem.ko": true,
		m + "drivers/net/wireless/ath/ath.ko": false, m + "drivers/gpu/drm/drm.ko": false, "usr/share/doc/x": false, "boot/System.map-6.1.0-56-amd64": false,
	} {
		if got := isOf(keepPatterns, name) && !isOf(excludePatterns, name); got != want {
			t.Errorf("%s: kept %v, expected %v", name, got, want)
		}
	}
}

// Without apt, what was unpacked last is taken, when it is whole.
func TestKeptParts(t *testing.T) {
	cache := t.TempDir()
	file := filepath.Join(cache, latestFile)
	if _, err := lastUnpacked(cache, file); !errors.Is(err, ErrMissing) {
		t.Errorf("an empty cache: %v", err)
	}
	names := map[string]string{}
	for _, p := range append([]string{kernelPackage}, packages...) {
		names[p] = p + "_1"
		if err := os.Mkdir(filepath.Join(cache, names[p]), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(names)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if dirs, err := lastUnpacked(cache, file); err != nil || len(dirs) != len(names) || dirs["busybox-static"] != filepath.Join(cache, "busybox-static_1") {
		t.Errorf("%v, %v", dirs, err)
	}
	if err := os.Remove(filepath.Join(cache, "busybox-static_1")); err != nil {
		t.Fatal(err)
	}
	if _, err := lastUnpacked(cache, file); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "busybox-static") {
		t.Errorf("%v: what is missing is expected", err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lastUnpacked(cache, file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%v: the file is expected to be named", err)
	}
}

func TestCheckSum(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.deb")
	if err := os.WriteFile(file, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if err := checkSum(file, abc); err != nil {
		t.Error(err)
	}
	if err := checkSum(file, strings.Repeat("0", 64)); err == nil || !strings.Contains(err.Error(), "a.deb") || !strings.Contains(err.Error(), abc) {
		t.Errorf("%v", err)
	}
}

func TestOptionsValidate(t *testing.T) {
	for want, o := range map[string]Options{
		"": {Name: "h-1", Modules: []string{"dummy numdummies=0"}},
		`name: 1 to 63 letters, digits and hyphens are expected, not ""`:    {},
		`name: 1 to 63 letters, digits and hyphens are expected, not "a,b"`: {Name: "a,b"},
		"cpus: 0 to 64 are expected, not -1":                                {Name: "h", CPUs: -1},
		"memory: 0, or 256 MiB and more are expected, not 64":               {Name: "h", Memory: 64},
		"networks: one of them is nil":                                      {Name: "h", Networks: []*Network{nil}},
		`modules: a name and parameters are expected, not "../x"`:           {Name: "h", Modules: []string{"../x"}},
	} {
		if err := o.Validate(); (err != nil || want != "") && fmt.Sprint(err) != want {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

func frame(to, from byte, payload string) []byte {
	b := append([]byte{2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5}, payload...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// A frame goes to all until it is known where its destination is, and to that port then.
func TestNetwork(t *testing.T) {
	n := network(t)
	var ports []net.Conn
	for range 3 {
		c, err := net.Dial("unix", n.socketPath())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		ports = append(ports, c)
	}
	until(t, "three ports", func() (string, bool) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return fmt.Sprint(len(n.ports)), len(n.ports) == 3
	})
	send := func(i int, b []byte) {
		if _, err := ports[i].Write(b); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(i int, want string) {
		t.Helper()
		b, err := readFrame(ports[i], make([]byte, 4+maxFrame))
		if err != nil || string(b[18:]) != want {
			t.Fatalf("port %d has %q, %v; %q is expected", i, b, err, want)
		}
	}
	send(0, frame(9, 1, "to all"))
	expect(1, "to all")
	expect(2, "to all")
	send(1, frame(1, 2, "to one"))
	expect(0, "to one")
	send(0, frame(2, 1, "and back"))
	expect(1, "and back")
	send(2, frame(1, 3, "third")) // had the last two gone to port 2, it would read them first
	expect(0, "third")
	send(0, frame(3, 1, "last"))
	expect(2, "last")
	if n.FrameCount() != 5 {
		t.Errorf("%d frames, five were sent", n.FrameCount())
	}
	send(0, []byte{0xff, 0xff, 0xff, 0xff}) // no frame is that long: the port is closed
	if _, err := ports[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%v: the port is expected to be closed", err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(frame(1, 2, "x"))
	f.Add([]byte{0, 0, 0, 13})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readFrame(bytes.NewReader(b), make([]byte, 4+maxFrame))
		if err == nil && (len(got) < 18 || !bytes.HasPrefix(b, got)) {
			t.Errorf("%x of %x", got, b)
		}
	})
}

// The service of a machine, without one.
func TestService(t *testing.T) {
	here, there := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- guest.ServeStream(there, &guest.Service{}) }()
	m := &Machine{Name: "h1", client: rpc.NewClient(here), ended: make(chan struct{})}
	t.Cleanup(func() {
		m.client.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := m.Run(ctx, "sh", "-c", "echo out; echo err >&2; exit 3")
	if err != nil || r.Code != 3 || r.Stdout != "out\n" || r.Stderr != "err\n" || r.Ended.Before(r.Began) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := m.MustRun(ctx, "sh", "-c", "echo why >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "machine h1") || !strings.Contains(err.Error(), "why") {
		t.Errorf("%v", err)
	}
	if r, err := m.Run(ctx, "sh", "-c", "kill -9 $$"); err != nil || r.Code != 137 {
		t.Errorf("%+v, %v: 137 is expected", r, err)
	}
	if _, err := m.Run(ctx, "/no/such/program"); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("%v", err)
	}
	if _, err := m.Run(ctx); err == nil {
		t.Error("a command without a program ran")
	}
	short, cancelShort := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelShort()
	if _, err := m.Run(short, "sleep", "1000"); err == nil {
		t.Error("a program that takes too long is an error")
	}
	file := filepath.Join(t.TempDir(), "deep", "file")
	if err := m.WriteFile(ctx, file, []byte("text"), 0o640); err != nil {
		t.Error(err)
	}
	if b, err := m.ReadFile(ctx, file); err != nil || string(b) != "text" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := m.ReadFile(ctx, file+"x"); err == nil {
		t.Error("a file that is not there was read")
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ok" {
			w.WriteHeader(http.StatusTeapot)
		}
		fmt.Fprint(w, r.URL.Path)
	}))
	defer server.Close()
	if b, err := m.HTTPGet(ctx, server.URL+"/ok"); err != nil || string(b) != "/ok" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := m.HTTPGet(ctx, server.URL+"/no"); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("%v", err)
	}

	p, err := m.Start(ctx, "sh", "-c", "echo one; echo two; read x; exit 5")
	if err != nil {
		t.Fatal(err)
	}
	if at, err := p.WaitForLine(ctx, 0, func(l string) bool { return l == "two" }); err != nil || at != 1 {
		t.Errorf("line %d, %v", at, err)
	}
	if _, err := p.WaitForLine(ctx, 2, func(string) bool { return true }); err == nil || !strings.Contains(err.Error(), "exit code 5") || !strings.Contains(err.Error(), "two") {
		t.Errorf("%v: how it ended, and what it wrote, are expected", err)
	}
	q, err := m.Start(ctx, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if err := q.SendSignal(ctx, 15); err != nil {
		t.Error(err)
	}
	if code, err := q.WaitForExit(ctx); err != nil || code != 143 {
		t.Errorf("%d, %v: 143 is expected", code, err)
	}
	if err := m.callGuest(ctx, "Output", guest.Read{ID: 7}, &guest.Output{}); err == nil || !strings.Contains(err.Error(), "7") {
		t.Errorf("%v", err)
	}
}

func TestOrderOfModules(t *testing.T) {
	k := &kernel{release: "1", modules: map[string]string{}, builtin: map[string]bool{"core": true}}
	if got, err := k.loadOrder([]string{"core"}); err != nil || len(got) != 0 {
		t.Errorf("%v, %v: what is built in is not loaded", got, err)
	}
	if _, err := k.loadOrder([]string{"no-such"}); !errors.Is(err, ErrNoModule) || !strings.Contains(err.Error(), "no_such") {
		t.Errorf("%v", err)
	}
	file := filepath.Join(t.TempDir(), "text.ko")
	if err := os.WriteFile(file, []byte("no module"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.modules["text"] = file
	if _, err := k.loadOrder([]string{"text"}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%v: the file is expected to be named", err)
	}
}
