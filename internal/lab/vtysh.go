package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"time"
)

// vtyshPatience bounds one call of vtysh. It is for a daemon that hangs.
const vtyshPatience = 30 * time.Second

// runVtysh runs commands in the shell of a switch's daemons, in their order, and returns the output. It fails at the first
// command that a daemon refuses. Without --histfile, vtysh would write the commands into a file in the user's home.
func runVtysh(ctx context.Context, root, name, element string, commands ...string) ([]byte, error) {
	path, err := needTool("vtysh", "frr")
	if err != nil {
		return nil, err
	}
	args := []string{"--histfile", "/dev/null", "--vty_socket", daemonDir(root, name, element)}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	ctx, cancel := context.WithTimeout(ctx, vtyshPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("vtysh of %s, commands %q: %w: %s", element, commands, err, bytes.TrimSpace(append(out, stderr.Bytes()...)))
	}
	return out, nil
}

// ribNextHop is a next hop in the routing table of zebra, of which "show ip route json" has a list for each route.
type ribNextHop struct {
	InterfaceName string
	Active        bool
}

// ribRoute is one of several routes to a prefix that zebra knows. It installs the one that is selected.
type ribRoute struct {
	Protocol string
	Selected bool
	NextHops []ribNextHop
}

// selectedRoutes returns, for each prefix that FRR of a switch routes by BGP, the names of the interfaces of its next hops,
// sorted.
func selectedRoutes(ctx context.Context, root, name, element string) (map[netip.Prefix][]string, error) {
	out, err := runVtysh(ctx, root, name, element, "show ip route bgp json")
	if err != nil {
		return nil, err
	}
	rib, err := parseRIB(out)
	if err != nil {
		return nil, fmt.Errorf("routes of FRR at %s: %w", element, err)
	}
	return rib, nil
}

// parseRIB parses the output of "show ip route json". Verified with FRR 8.4.4.
func parseRIB(data []byte) (map[netip.Prefix][]string, error) {
	var routes map[netip.Prefix][]ribRoute
	if err := json.Unmarshal(data, &routes); err != nil {
		return nil, fmt.Errorf("a list of routes by prefix in JSON is expected: %w", err)
	}
	rib := map[netip.Prefix][]string{}
	for prefix, list := range routes {
		for _, r := range list {
			if !r.Selected || r.Protocol != "bgp" {
				continue
			}
			for _, n := range r.NextHops {
				if n.Active {
					rib[prefix] = append(rib[prefix], n.InterfaceName)
				}
			}
		}
		slices.Sort(rib[prefix])
	}
	return rib, nil
}
