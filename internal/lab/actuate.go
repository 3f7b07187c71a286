package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/fabric"
	"github.com/graylink/graylink/internal/unix"
)

// changeRule adds or removes one rule of the mangle table. Removing a rule that
// is not there is no error.
func (x *index) changeRule(ctx context.Context, r rule, add bool) error {
	if !add {
		if err := x.runIptables(ctx, r, append([]string{"-C", r.Chain}, r.Args...)); err != nil {
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return nil
			}
			return err
		}
		return x.runIptables(ctx, r, append([]string{"-D", r.Chain}, r.Args...))
	}
	verb := []string{"-I", r.Chain, "1"}
	if r.Last {
		verb = []string{"-A", r.Chain}
	}
	return x.runIptables(ctx, r, append(verb, r.Args...))
}

// runIptables runs the iptables of the fabric's family, or ip6tables if the rule asks for that, for a rule's element.
func (x *index) runIptables(ctx context.Context, r rule, args []string) error {
	program := x.family().iptables
	if r.IPv6 {
		program = ipv6Family.iptables
	}
	path, err := needTool(program, "iptables")
	if err != nil {
		return err
	}
	// -w: wait for others that hold the tables' lock, seconds.
	args = append([]string{"-w", "10", "-t", "mangle"}, args...)
	return unix.InNetns(x.byElement[r.Element].Netns, func() error {
		cmd := exec.CommandContext(ctx, path, args...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %q in %s: %w: %s", program, args, r.Element, err, bytes.TrimSpace(out))
		}
		return nil
	})
}

// setLink sets both ends of a link up, with their neighbours, or down.
func (x *index) setLink(link string, up bool) error {
	a, b, _ := fabric.SplitLink(link)
	for _, end := range []string{a, b} {
		i := *x.byEnd[end]
		err := x.onInterface(end, func(h *netlink.Handle, l netlink.Link) error {
			if up {
				return raiseInterface(h, l, i)
			}
			return h.LinkSetDown(l)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// setNetem delays what leaves a port; 0 takes the delay away.
func (x *index) setNetem(end string, delay time.Duration) error {
	return x.onInterface(end, func(h *netlink.Handle, l netlink.Link) error {
		q := netemQdisc(l.Attrs().Index, uint32(delay/time.Microsecond))
		if delay > 0 {
			return h.QdiscReplace(q)
		}
		if err := h.QdiscDel(q); err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) {
			return err
		}
		return nil
	})
}

func (x *index) onInterface(end string, fn func(h *netlink.Handle, l netlink.Link) error) error {
	i := x.byEnd[end]
	err := unix.InNetns(x.byElement[fabric.OwnerOf(end)].Netns, func() error {
		return withHandle(func(h *netlink.Handle) error {
			l, err := h.LinkByName(i.Name)
			if err != nil {
				return err
			}
			return fn(h, l)
		})
	})
	if err != nil {
		return fmt.Errorf("interface %s of %s: %w", i.Name, end, err)
	}
	return nil
}
