//go:build !rdma || !linux || !cgo

package rdma

// Library returns nil, because this program was built without the verbs library. ErrNotBuilt describes how to build it.
func Library() Verbs { return nil }
