package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/graylink/graylink/internal/unix"
)

// pair is two hosts, each in a network namespace, under one leaf, which is a
// third and routes, or on one virtual cable.
type pair struct {
	hosts [2]string
	leaf  string // "" if there is none
}

const maxAddresses = 250 // per host

// hostAddress returns the i-th address of a host, from 0.
func hostAddress(host, i int) string { return fmt.Sprintf("10.%d.0.%d", 1+host, 1+i) }

func runIP(args string, a ...any) error {
	line := strings.Fields(fmt.Sprintf(args, a...))
	if out, err := exec.Command("ip", line...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(line, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// buildPair makes the pair with n addresses on each host.
func buildPair(n int, direct bool) (_ *pair, err error) {
	name := fmt.Sprintf("peers%d", os.Getpid())
	p := &pair{hosts: [2]string{name + "h1", name + "h2"}}
	namespaces := p.hosts[:]
	if !direct {
		p.leaf = name + "leaf"
		namespaces = append([]string{p.leaf}, namespaces...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.removeNamespaces())
		}
	}()
	for _, ns := range namespaces {
		if err := unix.CreateNetns(ns); err != nil {
			return p, err
		}
		if err := runIP("-n %s link set lo up", ns); err != nil {
			return p, err
		}
	}
	if direct {
		if err := runIP("-n %s link add eth0 type veth peer name eth0 netns %s", p.hosts[0], p.hosts[1]); err != nil {
			return p, err
		}
	}
	for i, ns := range p.hosts {
		if !direct {
			if err := p.plugHost(i); err != nil {
				return p, err
			}
		}
		if err := runIP("-n %s link set eth0 up", ns); err != nil {
			return p, err
		}
		for j := range n {
			if err := runIP("-n %s addr add %s/16 dev eth0", ns, hostAddress(i, j)); err != nil {
				return p, err
			}
		}
	}
	for i, ns := range p.hosts {
		via := "dev eth0"
		if !direct {
			via = fmt.Sprintf("via 10.%d.255.254", 1+i)
		}
		if err := runIP("-n %s route add default %s", ns, via); err != nil {
			return p, err
		}
	}
	if direct {
		return p, nil
	}
	return p, unix.InNetns(p.leaf, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	})
}

// plugHost connects a host to the leaf.
func (p *pair) plugHost(host int) error {
	port := fmt.Sprintf("dn%d", host+1)
	return errors.Join(
		runIP("-n %s link add eth0 type veth peer name %s netns %s", p.hosts[host], port, p.leaf),
		runIP("-n %s addr add 10.%d.255.254/16 dev %s", p.leaf, 1+host, port),
		runIP("-n %s link set %s up", p.leaf, port))
}

func (p *pair) removeNamespaces() error {
	err := errors.Join(unix.RemoveNetns(p.hosts[0]), unix.RemoveNetns(p.hosts[1]))
	if p.leaf != "" {
		err = errors.Join(err, unix.RemoveNetns(p.leaf))
	}
	return err
}

// packetsOut returns how many packets a host's link has sent.
func (p *pair) packetsOut(host int) (n uint64, err error) {
	err = unix.InNetns(p.hosts[host], func() error {
		b, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			device, counts, _ := strings.Cut(strings.TrimSpace(line), ":")
			if f := strings.Fields(counts); device == "eth0" && len(f) > 9 {
				n, err = strconv.ParseUint(f[9], 10, 64) // the tenth is of packets sent
				return err
			}
		}
		return errors.New("/proc/net/dev: no eth0")
	})
	return n, err
}

// usage holds what a process has used, by proc(5).
type usage struct {
	// cpu is in seconds, user and kernel mode together: their sum is exact,
	// while how the kernel divides it rests on what its tick finds running, and
	// what runs here runs in step with the tick.
	cpu      float64
	rss, hwm uint64 // bytes
}

const ticksPerSecond = 100 // USER_HZ, fixed by the kernel's ABI

func usageOf(pid int) (u usage, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return u, err
	}
	// The name, in parentheses, may hold blanks; utime is field 14, stime 15.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return u, fmt.Errorf("%s/stat: %d fields after the name, want 13 at least", dir, len(f))
	}
	for _, s := range f[11:13] {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return u, fmt.Errorf("%s/stat: %w", dir, err)
		}
		u.cpu += float64(v) / ticksPerSecond
	}
	if b, err = os.ReadFile(filepath.Join(dir, "status")); err != nil {
		return u, err
	}
	for line := range strings.Lines(string(b)) {
		key, rest, _ := strings.Cut(line, ":")
		to := map[string]*uint64{"VmRSS": &u.rss, "VmHWM": &u.hwm}[key]
		if to == nil {
			continue
		}
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return u, fmt.Errorf("%s/status: %s: %w", dir, key, err)
		}
		*to = kb << 10
	}
	return u, nil
}
