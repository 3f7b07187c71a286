package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/unix"
)

// Daemons of FRR run in the namespace of their switch, where Down finds and ends them. Their configuration, sockets, logs and
// process numbers are in the lab's directory. Nothing of FRR's own directories is read or written.
//
// Verified with FRR 8.4.4 of Debian 12: bgpd --help lists the options, and strings libfrr.so.0 | grep /var/tmp shows the
// directory that is compiled in.

// frrDaemons are the programs of FRR that every switch runs, in the order in which they start.
var frrDaemons = []string{"zebra", "bfdd", "bgpd"}

// frrPlaces are the directories in which distributions install daemons of FRR: Debian, Fedora. They are not in PATH.
var frrPlaces = []string{"/usr/lib/frr", "/usr/libexec/frr"}

// frrUser is the user that FRR's packages add, and that its daemons become.
const frrUser = "frr"

// daemonStart bounds the time that a daemon takes to read its configuration and to go into the background.
const daemonStart = 30 * time.Second

// maxConvergence bounds the wait for routes of all switches. Two tiers take 5 s; a machine that is busy takes longer.
const maxConvergence = 90 * time.Second

// convergencePoll is how often routes are compared meanwhile.
const convergencePoll = 100 * time.Millisecond

// CheckRouting returns an error if there is no such routing, or if this machine lacks what it needs.
func CheckRouting(routing string) error {
	switch routing {
	case "", RoutingStatic:
		return nil
	case RoutingFRR:
		_, err := findDaemons()
		return err
	}
	return fmt.Errorf("routing %q: want one of %s", routing, strings.Join(RoutingKinds(), ", "))
}

// findDaemons returns the paths of frrDaemons, in their order.
func findDaemons() ([]string, error) {
	var paths []string
	for _, name := range frrDaemons {
		path := ""
		for _, dir := range frrPlaces {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil && path == "" {
				path = filepath.Join(dir, name)
			}
		}
		if path == "" {
			var err error
			if path, err = exec.LookPath(name); err != nil {
				return nil, fmt.Errorf("routing %q needs the program %q, which is neither in %s nor in PATH: apt-get install frr",
					RoutingFRR, name, strings.Join(frrPlaces, " nor in "))
			}
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// maxSocketPath is the most octets that the path of a unix socket can have (unix(7): sun_path is 108 with the last zero).
const maxSocketPath = 107

// VTYSockets returns the directory of the vty sockets of a switch's daemons, or "" if FRR does not route in the lab.
func (l *Lab) VTYSockets(sw string) string {
	if l.x.Routing != RoutingFRR {
		return ""
	}
	return daemonDir(l.root, l.name, sw)
}

// daemonDir returns the directory of a switch's daemons.
func daemonDir(root, name, element string) string {
	if len(element) > 24 {
		element = element[:15] + "~" + hexDigest(element)[:8]
	}
	return filepath.Join(labDir(root, name), "frr", element)
}

// checkDaemonDirs returns an error if daemons could not work in their directories: before anything is built.
func (x *index) checkDaemonDirs(root, name string) error {
	for _, ns := range x.Namespaces {
		if s := filepath.Join(daemonDir(root, name, ns.Element), "zserv.api"); ns.Switch && len(s) > maxSocketPath {
			return fmt.Errorf("the socket %s would have a path of %d octets, and at most %d are possible: choose another directory by %s, or a shorter name of the lab",
				s, len(s), maxSocketPath, StateDirEnv)
		}
	}
	if rel, err := filepath.Rel("/var/tmp", root); err == nil && !strings.HasPrefix(rel, "..") {
		return fmt.Errorf("labs are remembered in %s, which daemons of FRR cannot see: choose a directory outside /var/tmp by %s", root, StateDirEnv)
	}
	for dir := root; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("checking the labs' directory: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("the user %s of FRR's daemons cannot enter %s (%s): choose another directory for labs by %s", frrUser, dir, info.Mode(), StateDirEnv)
		}
	}
	return nil
}

// startDaemons starts the daemons of every switch.
func (x *index) startDaemons(ctx context.Context, root, name string) error {
	paths, err := findDaemons()
	if err != nil {
		return err
	}
	uid, gid, err := lookUpOwner(frrUser)
	if err != nil {
		return err
	}
	for i := range x.Namespaces {
		ns := &x.Namespaces[i]
		if !ns.Switch {
			continue
		}
		dir := daemonDir(root, name, ns.Element)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making the directory of FRR: %w", err)
		}
		if err := os.Chown(dir, uid, gid); err != nil {
			return fmt.Errorf("giving the user %s the directory of FRR: %w", frrUser, err)
		}
		configs := map[string]string{"zebra": zebraConfig(ns), "bfdd": bfddConfig(ns), "bgpd": x.bgpdConfig(ns)}
		for n, daemon := range frrDaemons {
			if err := os.WriteFile(filepath.Join(dir, daemon+".conf"), []byte(configs[daemon]), 0o644); err != nil {
				return fmt.Errorf("writing the configuration of FRR: %w", err)
			}
			if err := startDaemon(ctx, ns, paths[n], dir); err != nil {
				return fmt.Errorf("%s: %w", ns.Element, err)
			}
		}
	}
	return nil
}

func lookUpOwner(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, fmt.Errorf("FRR's daemons run as the user %s: %w", name, err)
	}
	if uid, err = strconv.Atoi(u.Uid); err != nil {
		return 0, 0, fmt.Errorf("user %s: number %q: %w", name, u.Uid, err)
	}
	if gid, err = strconv.Atoi(u.Gid); err != nil {
		return 0, 0, fmt.Errorf("group of user %s: number %q: %w", name, u.Gid, err)
	}
	return uid, gid, nil
}

// daemonScript runs the command of its arguments. "ip netns exec" gives it mounts of its own. Every daemon keeps buffers of
// its log in /var/tmp/frr, which no option changes, and leaves them there when it is killed: these end with the mount.
//
// BFD of a real switch runs on hardware or before other work. Without a priority in real time, a busy machine would end
// sessions of links that work. Where that priority is not permitted, bfdd runs without it.
const daemonScript = `mount -t tmpfs tmpfs /var/tmp || exit
case "$1" in */bfdd) if chrt --rr 1 true 2>/dev/null; then exec chrt --rr 1 "$@"; fi;; esac
exec "$@"`

// startDaemon starts one daemon of a switch, and returns when it works in the background.
func startDaemon(ctx context.Context, ns *Namespace, path, dir string) error {
	name := filepath.Base(path)
	at := func(file string) string { return filepath.Join(dir, file) }
	out, err := os.Create(at(name + ".out"))
	if err != nil {
		return fmt.Errorf("making a file for the output of %s: %w", name, err)
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(ctx, daemonStart)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", ns.Netns, "sh", "-c", daemonScript, "sh", path, "--daemon", "--vty_socket", dir, "--pid_file", at(name+".pid"),
		"--config_file", at(name+".conf"), "--socket", at("zserv.api"), "--vty_port", "0", "--log", "file:"+at(name+".log"))
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, "/"
	// A Ctrl-C meant for the command that builds the lab is not for its daemons.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		return fmt.Errorf("starting %s: %w: %s", path, errors.Join(err, ctx.Err()), bytes.TrimSpace(said))
	}
	return nil
}

// rtprotBGP is RTPROT_BGP of rtnetlink.h: routes that zebra installs for bgpd.
const rtprotBGP = 186

// awaitConvergence waits until the kernel of every switch has the next hops that the topology has: all shortest paths.
func (x *index) awaitConvergence(ctx context.Context) error {
	want := x.computeRoutes(nil, nil)
	ctx, cancel := context.WithTimeoutCause(ctx, maxConvergence, errors.New("routing did not converge"))
	defer cancel()
	for i := range x.Namespaces {
		ns := &x.Namespaces[i]
		if !ns.Switch {
			continue
		}
		for {
			differs, err := x.compareRoutes(ns, want[ns.Element])
			if err != nil {
				return fmt.Errorf("%s: %w", ns.Element, err)
			}
			if differs == "" {
				break
			}
			if sleepContext(ctx, convergencePoll) != nil {
				return fmt.Errorf("%w: after %s at most, %s: %s", context.Cause(ctx), maxConvergence, ns.Element, differs)
			}
		}
	}
	return nil
}

// compareRoutes returns the first difference between the routes that BGP has to bring to a switch and those of its kernel,
// and "" if there is none.
func (x *index) compareRoutes(ns *Namespace, want []route) (differs string, err error) {
	var have map[netip.Prefix][]string
	err = unix.InNetns(ns.Netns, func() error {
		return withHandle(func(h *netlink.Handle) (err error) {
			have, err = learnedRoutes(h, x.family())
			return err
		})
	})
	if err != nil {
		return "", err
	}
	for _, r := range want {
		if r.isLocal() {
			continue
		}
		var ports []string
		for _, h := range r.hops {
			ports = append(ports, x.byEnd[h.end].Name)
		}
		slices.Sort(ports)
		if !slices.Equal(have[r.dst], ports) {
			return fmt.Sprintf("the route to %s leads to interfaces %v, want %v", r.dst, have[r.dst], ports), nil
		}
	}
	return "", nil
}

// learnedRoutes returns, for each prefix that the kernel of the thread's namespace has by BGP, the names of the interfaces of
// its next hops, sorted. A blackhole has none.
func learnedRoutes(h *netlink.Handle, family *addressFamily) (map[netip.Prefix][]string, error) {
	ids, err := interfaceIDs(h)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for name, id := range ids {
		names[id] = name
	}
	entries, err := bgpEntries(h, family)
	if err != nil {
		return nil, err
	}
	out := map[netip.Prefix][]string{}
	for dst, r := range entries {
		out[dst] = []string{}
		for _, n := range entryHops(&r) {
			out[dst] = append(out[dst], names[n.LinkIndex])
		}
		slices.Sort(out[dst])
	}
	return out, nil
}
