package bpf

import "github.com/cilium/ebpf"

// runOptions returns the options of a run of a classifier.
func runOptions(frame, out []byte, context *[192]byte) *ebpf.RunOptions {
	return &ebpf.RunOptions{Data: frame, DataOut: out, Context: *context, Repeat: 1}
}
