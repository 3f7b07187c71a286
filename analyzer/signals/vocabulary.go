package signals

import (
	"slices"
	"strconv"

	"github.com/graylink/graylink/analyzer/evidence"
	"github.com/graylink/graylink/internal/fabric"
)

// Locator identifies the locator of a tag, as the labels of series have it.
type Locator struct{ Format, Number string }

// LocatorOf returns the locator in the labels of a series.
func LocatorOf(labels map[string]string) Locator { return Locator{labels["format"], labels["locator"]} }

// PortsOfLocators returns the ports of each locator, by samples of fabric_csig_locator_info.
func PortsOfLocators(samples []evidence.Sample) map[Locator][]string {
	out := map[Locator][]string{}
	for _, s := range samples {
		l := LocatorOf(s.Labels)
		out[l] = append(out[l], s.Labels["switch"]+":"+s.Labels["port"])
	}
	return out
}

// FlowOf returns the directed flow that the labels of a series are about.
func FlowOf(labels map[string]string) fabric.Flow {
	n, _ := strconv.Atoi(labels["flow"])
	return fabric.Flow{Src: labels["src"], Dst: labels["dst"], Number: n, Reply: labels["direction"] == "reverse"}
}

// PortsOnPath returns which of some ports are egress ports of a path.
func PortsOnPath(path fabric.Path, ports []string) (out []string) {
	for _, h := range path {
		if port := h.Switch + ":" + h.Out; slices.Contains(ports, port) && !slices.Contains(out, port) {
			out = append(out, port)
		}
	}
	return out
}
