package ibagent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/graylink/graylink/internal/ibfabric"
	"github.com/graylink/graylink/internal/ibmad"
	"github.com/graylink/graylink/internal/ibmad/madsim"
)

// TestTrapsAreCounted checks that the traps in OpenSM's log are counted at the ports that they are about, from the log
// of an agent that runs, with a log that appears after the agent has started.
func TestTrapsAreCounted(t *testing.T) {
	f := madsim.FatTree(2, 2, 2, madsim.Options{})
	path := filepath.Join(t.TempDir(), "opensm.log")
	c := DefaultConfig()
	c.Name, c.Interval, c.Listen, c.Tables, c.OpenSMLog = "s", 200*time.Millisecond, "127.0.0.1:0", true, path
	a := inMemory(t, f, "h0", c)
	var leaf, nic ibfabric.LID
	until(t, "ports", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, p := range a.ports {
			switch p.Element {
			case "leaf1:1":
				leaf = ibfabric.LID(p.LID)
			case "h3/hca":
				nic = ibfabric.LID(p.LID)
			}
		}
		return leaf != 0 && nic != 0
	})
	a.countTraps([]ibfabric.Trap{{Number: 128, LID: leaf}, {Number: 129, LID: leaf, Port: 3}, {Number: 129, LID: leaf, Port: 3}, {Number: 144, LID: nic}, {Number: 131, LID: 40000, Port: 1}})
	for _, want := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"fabric_switch_port_traps_total", []string{"leaf1", "0", "128"}, 1},
		{"fabric_switch_port_traps_total", []string{"leaf1", "3", "129"}, 2},
		{"fabric_nic_port_traps_total", []string{"h3/hca", "144"}, 1},
		{"graylink_ib_unattributed_traps_total", nil, 1},
	} {
		if got, ok := sample(a, want.name, want.labels...); !ok || got != want.value {
			t.Errorf("%s %v: %v, %v; want %v", want.name, want.labels, got, ok, want.value)
		}
	}
	if _, there := sample(a, "fabric_switch_port_traps_total", "leaf0", "0", "128"); there {
		t.Error("a switch that sent no trap has a counter")
	}
	// What a log has when it is opened was before. The next line is counted.
	const line = "log_trap_info: Received Generic Notice type:1 num:130 (Excessive Buffer overrun threshold reached) Producer:2 (Switch) from LID:"
	until(t, "a trap of the log", func() bool {
		log, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if _, err := fmt.Fprintf(log, "%s%d Port 4 TID:0x00\n", line, leaf); err != nil {
			t.Fatal(err)
		}
		n, ok := sample(a, "fabric_switch_port_traps_total", "leaf1", "4", "130")
		return ok && n > 0
	})
}

// TestWaitTick checks the length of a tick by device and speed, by NVIDIA's table, and that it is unknown for others.
func TestWaitTick(t *testing.T) {
	for _, tt := range []struct {
		name   string
		vendor uint32
		device uint16
		width  uint8
		speed  ibfabric.Speed
		want   float64
	}{
		{"HDR on Quantum: 64 bits at 200 Gbit/s", mellanox, quantum, 4, ibfabric.HDR, 0.32e-9},
		{"NDR on Quantum-2", mellanox, quantum2, 4, ibfabric.NDR, 0.16e-9},
		{"two lanes on Quantum", mellanox, quantum, 2, ibfabric.HDR, 0.64e-9},
		{"EDR on Switch-IB 2: 32 octets a lane at 25 Gbit/s", mellanox, switchIB2, 4, ibfabric.EDR, 10.24e-9},
		{"SDR on SwitchX: 32 symbols of 4 ns", mellanox, switchX, 4, ibfabric.SDR, 128e-9},
		{"another device", mellanox, 0x1234, 4, ibfabric.HDR, 0},
		{"another vendor", 0x00066a, quantum, 4, ibfabric.HDR, 0},
		{"an unknown rate", mellanox, quantum, 0, ibfabric.HDR, 0},
	} {
		n := ibfabric.Node{Type: ibmad.NodeSwitch, Vendor: tt.vendor, Device: tt.device}
		p := ibfabric.Port{Width: tt.width, Speed: tt.speed}
		if got := waitTick(&n, &p); got < tt.want*0.9999 || got > tt.want*1.0001 {
			t.Errorf("%s: %v s, want %v", tt.name, got, tt.want)
		}
	}
}

// TestDescriptions checks that connection_info has the descriptions of both nodes as they are.
func TestDescriptions(t *testing.T) {
	if got := descriptionText(&ibfabric.Node{Description: "MF0;sw 1:MQM8700/U1\xff\x00\x00"}); got != "MF0;sw 1:MQM8700/U1?" {
		t.Errorf("%q", got)
	}
	f := madsim.FatTree(2, 1, 1, madsim.Options{})
	c := DefaultConfig()
	c.Name, c.Interval = "s", 200*time.Millisecond
	a := inMemory(t, f, "h0", c)
	until(t, "both descriptions", func() bool {
		for _, p := range a.CollectPoints(time.Now()) {
			if p.Name != "fabric_switch_port_connection_info" || p.Values[0] != "leaf0" || p.Values[1] != "2" {
				continue
			}
			labels := map[string]string{}
			for i, l := range p.Labels {
				labels[l] = p.Values[i]
			}
			if labels["description"] != "leaf0" || labels["remote"] != "spine0:1" || labels["remote_description"] != "spine0" {
				t.Fatalf("%v", labels)
			}
			return true
		}
		return false
	})
}
