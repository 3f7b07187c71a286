package ibmad

import (
	"fmt"
	"strconv"
	"strings"
)

// Open attaches to the port that a device names: ibsim:SOCKET/NODE, umad0 or its path, or an RDMA device,
// mlx5_0 or, for its second port, mlx5_0.2.
func Open(device string) (Transport, error) {
	if sim, ok := strings.CutPrefix(device, "ibsim:"); ok {
		socket, node, ok := strings.Cut(sim, "/")
		if !ok {
			return nil, fmt.Errorf("device %q: ibsim:SOCKET/NODE is expected", device)
		}
		return DialIbsim(socket, node)
	}
	const dev = "/dev/infiniband/"
	switch {
	case strings.HasPrefix(device, "/"):
		return OpenUmad(device)
	case strings.HasPrefix(device, "umad"):
		return OpenUmad(dev + device)
	}
	name, number, ok := strings.Cut(device, ".")
	port := 1
	if ok {
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("device %q: umad0, mlx5_0, mlx5_0.2 or ibsim:SOCKET/NODE is expected", device)
		}
		port = n
	}
	path, err := findUmad("/sys", name, port)
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", device, err)
	}
	return OpenUmad(path)
}
