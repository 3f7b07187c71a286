package fabric

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

const smallList = `# a small fabric
A Device,A_Port,B Device,b_port,a_role,b_role,speed_gbps,plane,pod,a_rail,a_address,B Address,remark
h1,eth1,leaf1,1,server,leaf,400,a,p1,0,10.0.1.2/24,10.0.1.1/24,x
leaf1,2,h2,eth1,leaf,host,400,a,p1,,,,
leaf1,9,spine1,1,leaf,spine,800,a,p1,,,,"a, b"
`

func TestReadCableList(t *testing.T) {
	topo, problems, err := ReadCableList("cables.csv", strings.NewReader(smallList), nil)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	text, err := yaml.Marshal(topo)
	if err != nil {
		t.Fatal(err)
	}
	read, found := ParseTopology("topology.yaml", text)
	if len(found) > 0 {
		t.Fatalf("%v\n%s", found, text)
	}
	for i, want := range []string{"h1/eth1 leaf1:1 400 10.0.1.2/24 10.0.1.1/24", "h2/eth1 leaf1:2 400 invalid Prefix invalid Prefix", "leaf1:9 spine1:1 800 invalid Prefix invalid Prefix"} {
		if l := read.Links[i]; fmt.Sprint(l.A, " ", l.B, " ", l.SpeedGbps, " ", l.AAddress, " ", l.BAddress) != want {
			t.Errorf("link %d is %+v, want %s", i, l, want)
		}
	}
	if len(read.Switches) != 2 || read.Switches[0].Role != Leaf || read.Switches[1].Role != Spine || read.Switches[0].Plane != "a" || read.Switches[0].Pod != "p1" {
		t.Errorf("switches %+v", read.Switches)
	}
	if n := read.Nodes; len(n) != 2 || n[0].NICs[0].Rail == nil || *n[0].NICs[0].Rail != 0 || n[0].NICs[0].Plane != "a" || n[1].NICs[0].Rail != nil {
		t.Errorf("nodes %+v", n)
	}
}

// TestCableListOfNetBox has the columns of NetBox's export of cables, which has no roles.
func TestCableListOfNetBox(t *testing.T) {
	list := `"Label","Termination A","Device A","Termination B","Device B","Status","Type"
"c1","eth1","h1","Ethernet1","leaf1","Connected","DAC"
"c2","eth1","h2","Ethernet1","leaf2","Connected","DAC"
"c3","Ethernet9","leaf1","Ethernet1","spine1","Connected","SMF"
"c4","Ethernet2","spine1","Ethernet9","leaf2","Connected","SMF"
"c5","Ethernet31","spine1","Ethernet1","core1","Connected","SMF"
"c6","Ethernet1","lonely","Ethernet2","lonely2","Connected","SMF"
`
	topo, problems, err := ReadCableList("netbox.csv", strings.NewReader(list), []string{"leaf*", "spine?", "core1", "lonely*"})
	if err != nil {
		t.Fatal(err)
	}
	var roles []string
	for _, s := range topo.Switches {
		roles = append(roles, s.Name+" "+string(s.Role))
	}
	if want := []string{"core1 core", "leaf1 leaf", "leaf2 leaf", "spine1 spine"}; !reflect.DeepEqual(roles, want) {
		t.Errorf("%q, want %q", roles, want)
	}
	if len(topo.Links) != 5 || len(problems) != 2 || !problems[0].Warning || !strings.Contains(problems[0].String(), "netbox.csv:7: warning: no cable leads from lonely to a NIC") {
		t.Errorf("%d links, %v", len(topo.Links), problems)
	}
}

func TestCableListProblems(t *testing.T) {
	const header = "a_device,a_port,b_device,b_port,a_role,b_role,speed_gbps,a_rail,a_address\n"
	for _, tc := range []struct {
		rows, want string
		links      int
	}{
		{"h1,e1,l1,1,host,leaf,,,\nl1,1,h1,e1,leaf,host,,,\n", "x.csv:3: warning: l1:1 has a cable in line 2 already", 1},
		{"h1,e1,l1,1,host,leaf,,,\nh2,e1,l1,1,host,leaf,,,\n", "x.csv:3: error: l1:1 has a cable in line 2 already", 1},
		{"l1,1,l1,1,leaf,leaf,,,\n", "x.csv:2: error: both ends are on l1", 0},
		{"l1,1,l1,2,leaf,host,,,\n", "x.csv:2: error: both ends are on l1", 0},
		{"h1,e1,h2,e1,host,host,,,\n", "x.csv:2: error: no end is at a switch: h1/e1 and h2/e1", 0},
		{"h1,e1,l1,1,host,leaf,fast,,\n", `x.csv:2: error: speed_gbps: "fast": a number above 0 is expected`, 0},
		{"h1,e1,l1,1,host,leaf,NaN,,\n", `x.csv:2: error: speed_gbps: "NaN": a number above 0 is expected`, 0},
		{"h1,e1,l1,1,host,leaf,,-1,\n", `x.csv:2: error: a_rail: "-1": a number from 0 on is expected`, 0},
		{"h1,e1,l1,1,host,leaf,,,10.0.0.1\n", `x.csv:2: error: a_address: "10.0.0.1": an address with the length of its prefix is expected`, 0},
		{",e1,l1,1,host,leaf,,,\n", "x.csv:2: error: a_device: name is empty", 0},
		{"h1,e1,l1,,host,leaf,,,\n", "x.csv:2: error: b_port: device or port is empty", 0},
		{"h1,e 1,l1,1,host,leaf,,,\n", `x.csv:2: error: a_port: device or port "e 1" holds ' '`, 0},
		{"h1,e1,l1,1,host,leaf,,,\nh2,e1,l1,2,host,spine,,,\n", "x.csv:3: error: b_role: l1 is a leaf in earlier lines, and a spine here", 1},
		{"h1,e1,l1,1,host,leaf,,,\nl1,e1,s1,2,host,spine,,,\n", "x.csv:3: error: l1 is a switch in earlier lines", 1},
		{"h1,e1,l1,1,host,leaf,,,\nh1,2,l1,2,leaf,leaf,,,\n", "x.csv:3: error: h1 is a host in earlier lines", 1},
		{"h1,e1,l1,1\nh2,e1,l1,2,host,leaf,,,\n", "x.csv:2: error: 4 fields, and the header has 9", 1},
	} {
		topo, problems, err := ReadCableList("x.csv", strings.NewReader(header+tc.rows), nil)
		if err != nil || len(problems) == 0 || problems[0].String() != tc.want || len(topo.Links) != tc.links {
			t.Errorf("%q: %v, %v, %d links; want %q and %d", tc.rows, err, problems, len(topo.Links), tc.want, tc.links)
		}
	}
	for text, want := range map[string]string{
		"": "no header",
		"a_device,a_port,b_device,a_role,b_role\n":             "x.csv:1: no column b_port",
		"a_device,Device A,a_port,b_device,b_port\n":           "x.csv:1: two columns are a_device",
		"a_device,a_port,b_device,b_port\n":                    "what is a switch is not known",
		"a_device,a_port,b_device,b_port,a_role,b_role\na,\"b": "x.csv: ",
	} {
		if _, _, err := ReadCableList("x.csv", strings.NewReader(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, _, err := ReadCableList("x.csv", strings.NewReader(header), []string{"["}); err == nil {
		t.Error("a pattern that is none is accepted")
	}
}

// FuzzCableList: whatever is read can be written, and the parser of topology files has nothing against it but that there
// may be too little, and that addresses may not fit each other.
func FuzzCableList(f *testing.F) {
	f.Add([]byte(smallList))
	f.Add([]byte("a_device,a_port,b_device,b_port\nh1,e1,l1,1\n\"h2\",e1,l1,\"2\"\n"))
	f.Fuzz(func(t *testing.T, list []byte) {
		topo, _, err := ReadCableList("list", bytes.NewReader(list), []string{"l*", "s*"})
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, l := range topo.Links {
			for _, end := range []string{l.A, l.B} {
				if seen[end] {
					t.Errorf("two cables at %q", end)
				}
				seen[end] = true
			}
		}
		text, err := yaml.Marshal(topo)
		if err != nil {
			t.Fatal(err)
		}
		_, found := ParseTopology("topology", text)
		for _, p := range found.OnlyErrors() {
			if !strings.Contains(p.Message, "needed") && !strings.Contains(p.Field, "address") {
				t.Errorf("%v, in\n%s", p, text)
			}
		}
	})
}

// TestASwitchOfSeveralPods has a core switch whose cables are of different pods: it belongs to none of them.
func TestASwitchOfSeveralPods(t *testing.T) {
	list := "a_device,a_port,b_device,b_port,a_role,b_role,a_pod,b_pod,plane\nh1,e,l1,1,host,leaf,p1,p1,a\ns1,1,c1,1,spine,core,p1,p1,a\ns2,1,c1,2,spine,core,p2,p2,a\ns3,1,c1,3,spine,core,p2,p2,a\n"
	topo, problems, err := ReadCableList("x.csv", strings.NewReader(list), nil)
	if err != nil || len(problems) != 1 || problems[0].String() != "x.csv:4: warning: pod: c1 has several: none is used" {
		t.Errorf("%v, %v", err, problems)
	}
	for _, s := range topo.Switches {
		if want := map[string]string{"l1": "p1", "s1": "p1", "s2": "p2", "s3": "p2"}[s.Name]; s.Pod != want || s.Plane != "a" {
			t.Errorf("%s: pod %q, plane %q, want pod %q", s.Name, s.Pod, s.Plane, want)
		}
	}
}
