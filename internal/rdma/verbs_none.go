//go:build !rdma || !linux || !cgo

package rdma

// Library returns nil, because this program was built without RDMA. ErrNotBuilt describes which program has it.
func Library() Verbs { return nil }

// CheckLibrary returns ErrNotBuilt.
func CheckLibrary() error { return ErrNotBuilt }
