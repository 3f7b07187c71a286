//go:build !rdma || !linux || !cgo

package rdma

// Library is the verbs library of this host; nil: this program was built
// without it, and ErrNotBuilt says how to build it.
func Library() Verbs { return nil }
