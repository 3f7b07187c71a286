package client

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unixServerName is the name in the coordinator's certificate when the address has no host.
const unixServerName = "coordinator"

// coordinatorAt is the address of a coordinator.
type coordinatorAt struct {
	address    string // host:port, or unix:PATH
	serverName string // name in its certificate
	alone      bool   // there is no other address to try
}

// coordinators are the addresses of a fleet's coordinators, of which one leads. They are tried in turn: a round ends when
// one of them accepts the client, or when each has refused.
type coordinators struct {
	list  []coordinatorAt
	at    int   // the one to try
	tried []int // in this round, before it
}

// newCoordinators returns the coordinators at some addresses. serverName is the name in their certificates; if it is
// empty, each has the host of its address.
func newCoordinators(addresses []string, serverName string) (coordinators, error) {
	var c coordinators
	for i, a := range addresses {
		name, err := ServerNameFor(a, serverName)
		if err != nil {
			return c, err
		}
		if slices.Contains(addresses[:i], a) {
			return c, fmt.Errorf("coordinator address %q: it is given twice", a)
		}
		c.list = append(c.list, coordinatorAt{a, name, len(addresses) == 1})
	}
	if len(c.list) == 0 {
		return c, errors.New("coordinator address: none, want host:port or unix:PATH")
	}
	return c, nil
}

// ServerNameFor returns the name that the certificate of a coordinator must have: the given one, or else the host of its
// address.
func ServerNameFor(address, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	if strings.HasPrefix(address, "unix:") {
		return unixServerName, nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return "", fmt.Errorf("coordinator address %q: want host:port or unix:PATH", address)
	}
	return host, nil
}

// current returns the coordinator to try.
func (c *coordinators) current() coordinatorAt { return c.list[c.at] }

// accept ends the round at the present coordinator.
func (c *coordinators) accept() { c.tried = c.tried[:0] }

// next goes on to another coordinator of the round: to the leader if that is the address of one, else to the next one. It
// reports false when each has been tried. The next round then begins behind the present coordinator.
func (c *coordinators) next(leader string) bool {
	c.tried = append(c.tried, c.at)
	follow := (c.at + 1) % len(c.list)
	order := []int{slices.IndexFunc(c.list, func(x coordinatorAt) bool { return x.address == leader })}
	for i := range c.list {
		order = append(order, (follow+i)%len(c.list))
	}
	for _, i := range order {
		if i >= 0 && !slices.Contains(c.tried, i) {
			c.at = i
			return true
		}
	}
	c.accept()
	c.at = follow
	return false
}

// try calls do with one coordinator after the other until one answers. Unavailable, which is also the answer of a standby,
// is no answer. The error is the last one. The next call begins at the coordinator that answered.
func (c *coordinators) try(do func(coordinatorAt) error) error {
	for {
		err := do(c.current())
		if status.Code(err) != codes.Unavailable && status.Code(err) != codes.DeadlineExceeded {
			c.accept()
			return err
		}
		if !c.next("") {
			return err
		}
	}
}
