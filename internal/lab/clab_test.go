package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/graylink/graylink/internal/fabric"
)

// clabDir has the topologies for containerlab that TestContainerlab writes with -update.
const clabDir = "../../deploy/lab/clab"

// sonicPort returns the name that SONiC has for the n-th port of a container, which is cabled as eth<n>.
func sonicPort(n int) string { return fmt.Sprintf("Ethernet%d", 4*(n-1)) }

// clabFRR returns a switch's configuration of all of FRR's daemons, with the addresses that a lab gives it by itself.
func clabFRR(x *index, ns *Namespace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "! Written by TestContainerlab of internal/lab.\nhostname %s\n", ns.Element)
	for _, part := range []string{zebraConfig(ns), bfddConfig(ns), x.bgpdConfig(ns)} {
		for line := range strings.Lines(part) {
			if !strings.HasPrefix(line, "! ") && (!strings.HasPrefix(line, "frr defaults") || !strings.Contains(b.String(), "frr defaults")) {
				b.WriteString(line)
			}
		}
	}
	b.WriteString("interface lo\n")
	for _, a := range ns.Loopback {
		fmt.Fprintf(&b, " ip address %s/32\n", a)
	}
	b.WriteString("exit\n")
	for _, i := range ns.Interfaces {
		fmt.Fprintf(&b, "interface %s\n ip address %s\nexit\n", i.Name, i.Address)
	}
	return b.String()
}

// clabTopology returns a topology file of containerlab. With sonic, the spines are nodes of the kind sonic-vs.
func clabTopology(x *index, name string, sonic bool) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Written by TestContainerlab of internal/lab, and not run here: README.md.")
	line("name: %s\nprefix: \"\"\nmgmt: {network: graylink, ipv4-subnet: 172.20.20.0/24}\ntopology:", name)
	line("  defaults:\n    kind: linux\n    image: quay.io/frrouting/frr:8.5.4\n  nodes:")
	line("    site:\n      mgmt-ipv4: 172.20.20.100\n      entrypoint: /graylink")
	line("      cmd: serve --topology.file /etc/graylink/topology.yaml --config.file /etc/graylink/site.yaml --agents.address 172.20.20.100 --web.listen-address :9872 --web.allowed-hosts localhost")
	topology := "topology.yaml"
	if sonic {
		topology = "topology-sonic.yaml"
	}
	line("      ports: [\"127.0.0.1:9872:9872\"]\n      binds:\n        - ../../../bin/graylink:/graylink:ro\n        - %s:/etc/graylink/topology.yaml:ro\n        - site.yaml:/etc/graylink/site.yaml:ro", topology)
	for i := range x.Namespaces {
		ns := &x.Namespaces[i]
		switch {
		case !ns.Switch:
			clabNode(line, x, ns)
		case sonic && x.graph.SwitchTier(ns.Element) == 2:
			line("    %s:\n      kind: sonic-vs\n      image: docker-sonic-vs:latest\n      binds: [\"frr/%s-sonic.conf:/graylink.conf:ro\"]", ns.Element, ns.Element)
			line("      exec:\n        - sysctl -w net.ipv4.fib_multipath_hash_policy=1")
			for _, in := range ns.Interfaces {
				line("        - config interface startup %s", in.Name)
			}
			line("        - vtysh -f /graylink.conf")
			clabSwitchAgent(line, ns.Element, "--ports=Ethernet*")
		default:
			line("    %s:\n      binds:\n        - frr/daemons:/etc/frr/daemons:ro\n        - frr/%s.conf:/etc/frr/frr.conf", ns.Element, ns.Element)
			line("      sysctls: {net.ipv4.ip_forward: 1, net.ipv6.conf.all.disable_ipv6: 0, net.ipv6.conf.all.forwarding: 1, net.ipv4.fib_multipath_hash_policy: 1, net.ipv4.conf.all.rp_filter: 0, net.ipv4.icmp_ratelimit: 0, net.ipv4.icmp_errors_use_inbound_ifaddr: 1}")
			clabSwitchAgent(line, ns.Element, "--ports=up*", "--ports=dn*")
		}
	}
	line("  links:")
	for _, l := range x.Topology.Links {
		line("    - endpoints: [\"%s\", \"%s\"]", clabEnd(x, l.A, sonic), clabEnd(x, l.B, sonic))
	}
	return b.String()
}

// clabEnd returns an end of a link as containerlab has it.
func clabEnd(x *index, end string, sonic bool) string {
	owner := fabric.OwnerOf(end)
	if sonic && x.graph.SwitchTier(owner) == 2 {
		for n := range x.byElement[owner].Interfaces {
			if portOf(end) == sonicPort(n+1) {
				return fmt.Sprintf("%s:eth%d", owner, n+1)
			}
		}
	}
	return owner + ":" + x.byEnd[end].Name
}

// clabNode writes a host, and its agent in the same network namespace.
func clabNode(line func(string, ...any), x *index, ns *Namespace) {
	line("    %s:\n      entrypoint: sleep\n      cmd: infinity\n      exec:", ns.Element)
	for _, i := range ns.Interfaces {
		line("        - ip addr add %s dev %s\n        - ip link set %s up", i.Address, i.Name, i.Name)
		line("        - ip route add 10.0.0.0/16 via %s\n        - ip route add 172.16.0.0/16 via %s", i.PeerAdr, i.PeerAdr)
	}
	line("    %[1]s-agent:\n      network-mode: container:%[1]s\n      startup-delay: 10\n      entrypoint: /graylink-node", ns.Element)
	line("      cmd: --node.name %s --enroll --enroll.join-token-file /tokens/%s --enroll.directory /tmp/pki --coordinator.address 172.20.20.100:9870 --web.listen-address :9868", ns.Element, ns.Element)
	line("      binds:\n        - ../../../bin/graylink-node:/graylink-node:ro\n        - tokens:/tokens:ro")
}

// clabSwitchAgent writes the agent of a switch, in the same network namespace.
func clabSwitchAgent(line func(string, ...any), element string, ports ...string) {
	line("    %[1]s-agent:\n      network-mode: container:%[1]s\n      startup-delay: 10\n      entrypoint: /graylink-switch", element)
	line("      cmd: --switch %[1]s %[2]s --lldp.send 1s --web.listen-address :9871 --web.allowed-hosts %[1]s", element, strings.Join(ports, " "))
	line("      binds: [\"../../../bin/graylink-switch:/graylink-switch:ro\"]")
}

// TestContainerlab compares the files for containerlab with the demo's topology, and writes them with -update.
func TestContainerlab(t *testing.T) {
	topo := load(t, demoFile)
	x, err := planLayout("clab", topo)
	if err != nil {
		t.Fatal(err)
	}
	x.setRouting(RoutingFRR)
	files := map[string]string{"graylink.clab.yml": clabTopology(x, "graylink", false)}
	for i := range x.Namespaces {
		if ns := &x.Namespaces[i]; ns.Switch {
			files["frr/"+ns.Element+".conf"] = clabFRR(x, ns)
		}
	}
	// The same with the names that SONiC has for the ports of spines.
	text, err := os.ReadFile(demoFile)
	if err != nil {
		t.Fatal(err)
	}
	renamed := string(text)
	for n := 1; n <= 4; n++ {
		for _, spine := range []string{"spine1", "spine2"} {
			renamed = strings.ReplaceAll(renamed, fmt.Sprintf("%s:dn%d", spine, n), spine+":"+sonicPort(n))
		}
	}
	files["topology.yaml"] = string(text)
	files["topology-sonic.yaml"] = renamed
	s, err := planLayout("clab", parse(t, renamed))
	if err != nil {
		t.Fatal(err)
	}
	s.setRouting(RoutingFRR)
	files["graylink-sonic.clab.yml"] = clabTopology(s, "graylink-sonic", true)
	for _, spine := range []string{"spine1", "spine2"} {
		files["frr/"+spine+"-sonic.conf"] = clabFRR(s, s.byElement[spine])
	}
	for name, want := range files {
		if *update {
			if err := os.WriteFile(filepath.Join(clabDir, name), []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, want := range files {
		file := filepath.Join(clabDir, name)
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s differs from the topology: see with go test ./internal/lab -run Containerlab -update && git diff", file)
		}
		if strings.HasSuffix(name, ".clab.yml") {
			checkClab(t, name, want)
		}
	}
}

// checkClab checks what containerlab would refuse: ends at nodes that are not there, or twice, and files to bind that are missing.
func checkClab(t *testing.T, name, text string) {
	t.Helper()
	var clab struct {
		Topology struct {
			Nodes map[string]struct {
				Binds       []string
				NetworkMode string `yaml:"network-mode"`
			}
			Links []struct{ Endpoints []string }
		}
	}
	if err := yaml.Unmarshal([]byte(text), &clab); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	used := map[string]bool{}
	for _, l := range clab.Topology.Links {
		for _, end := range l.Endpoints {
			node, port, _ := strings.Cut(end, ":")
			if _, ok := clab.Topology.Nodes[node]; !ok || port == "" || used[end] {
				t.Errorf("%s: the end %q is at no node, or it is there twice", name, end)
			}
			used[end] = true
		}
	}
	for node, n := range clab.Topology.Nodes {
		if of, ok := strings.CutPrefix(n.NetworkMode, "container:"); ok && of+"-agent" != node {
			t.Errorf("%s: %s joins %s", name, node, of)
		}
		for _, bind := range n.Binds {
			if file, _, _ := strings.Cut(bind, ":"); !strings.HasPrefix(file, "../../../bin/") && file != "tokens" {
				if _, err := os.Stat(filepath.Join(clabDir, file)); err != nil {
					t.Errorf("%s: %s binds %v", name, node, err)
				}
			}
		}
	}
}
