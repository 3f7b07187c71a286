package plan

import (
	"fmt"
	"io"
	"strings"
)

// WriteTable writes the rates of the jobs, the fullest links and what is not placed.
func (p *Plan) WriteTable(w io.Writer) error {
	out := errWriter{w: w}
	number := func(v *float64) string {
		if v == nil {
			return "unknown"
		}
		return fmt.Sprintf("%.1f", *v)
	}
	out.print("%-24s %12s %12s %8s\n", "JOB", "BUSBW_GBPS", "IDEAL_GBPS", "RATIO")
	for _, j := range p.Jobs {
		ratio := "unknown"
		if j.Ratio != nil {
			ratio = fmt.Sprintf("%.3f", *j.Ratio)
		}
		out.print("%-24s %12s %12s %8s\n", j.Job, number(j.BusbwGbps), number(j.IdealGbps), ratio)
	}
	full := 0
	for _, l := range p.Links {
		if l.PlannedGbps >= l.CapacityGbps*0.999 {
			full++
		}
	}
	out.print("%d queue pairs are placed on %d directions of links, of which %d are full.\n", len(p.Assignments), len(p.Links), full)
	for _, u := range p.Unplaced {
		out.print("%s from %s to %s, queue pair %d has no port: %s\n", u.Job, u.Src, u.Dst, u.QP, u.Reason)
	}
	return out.err
}

// WritePorts writes one line for each queue pair: what a plugin or a patch of a library sets.
func (p *Plan) WritePorts(w io.Writer) error {
	out := errWriter{w: w}
	out.print("# job src dst qp sport flow_label lag_port (- where there is no bond)\n")
	for _, a := range p.Assignments {
		lag := "-"
		if a.LagPort > 0 {
			lag = fmt.Sprint(a.LagPort)
		}
		out.print("%s %s %s %d %d %d %s\n", a.Job, a.Src, a.Dst, a.QP, a.SPort, a.FlowLabel, lag)
	}
	return out.err
}

// WriteNCCL writes what an unmodified NCCL can be given, which is no port.
func (p *Plan) WriteNCCL(w io.Writer) error {
	out := errWriter{w: w}
	out.print("# NCCL 2.30.7 has no variable for the UDP source port, and sets the flow label of its queue pairs to 0.\n")
	out.print("# The ports of the plan need a network plugin or a patch of NCCL: see --format ports. What can be set:\n")
	count := map[string]int{}
	for _, a := range p.Assignments {
		count[a.Job] = max(count[a.Job], a.QP+1)
	}
	for _, j := range p.Jobs {
		if count[j.Job] > 0 {
			out.print("# job %s\nNCCL_IB_QPS_PER_CONNECTION=%d\nNCCL_IB_SPLIT_DATA_ON_QPS=1\n", j.Job, count[j.Job])
		}
	}
	return out.err
}

// WriteUCX writes the parameters of UCX for each pair of NICs whose ports are evenly spaced, as UCX makes them.
func (p *Plan) WriteUCX(w io.Writer) error {
	return p.writePairs(w, func(out *errWriter, ports []uint16) {
		if len(ports) == 1 {
			out.print("not possible: one path of UCX always has port %d, and %d is needed\n", FirstRoCEPort, ports[0])
			return
		}
		step := int(ports[1]) - int(ports[0])
		for i, s := range ports {
			if int(s) != FirstRoCEPort+step*i {
				out.print("not possible: UCX uses ports %d + factor * path, and the ports are not of this form\n", FirstRoCEPort)
				return
			}
		}
		out.print("UCX_RC_ROCE_PATH_FACTOR=%d NUM_PATHS=%d\n", step, len(ports))
	})
}

// WriteMooncake writes the variable of Mooncake for each pair of NICs. A process has one value for all its pairs.
func (p *Plan) WriteMooncake(w io.Writer) error {
	return p.writePairs(w, func(out *errWriter, ports []uint16) {
		text := make([]string, len(ports))
		for i, s := range ports {
			text[i] = fmt.Sprint(s)
		}
		out.print("MC_MLX5_QP_UDP_SPORTS=%s\n", strings.Join(text, ","))
	})
}

// writePairs calls each with the ports of each job and pair of NICs, in the order of their queue pairs.
func (p *Plan) writePairs(w io.Writer, each func(*errWriter, []uint16)) error {
	out := errWriter{w: w}
	type pairOf struct{ job, src, dst string }
	ports := map[pairOf][]uint16{}
	var order []pairOf
	for _, a := range p.Assignments {
		k := pairOf{a.Job, a.Src, a.Dst}
		if ports[k] == nil {
			order = append(order, k)
		}
		ports[k] = append(ports[k], a.SPort)
	}
	for _, k := range order {
		out.print("# job %s, %s to %s\n", k.job, k.src, k.dst)
		each(&out, ports[k])
	}
	return out.err
}
