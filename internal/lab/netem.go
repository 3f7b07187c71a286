package lab

import (
	"github.com/vishvananda/netlink"

	"github.com/graylink/graylink/internal/unix"
)

// haveNetem reports whether the kernel has the netem queueing discipline. It tries in a namespace of its own.
func haveNetem() bool {
	err := unix.InNewNetns(func() error {
		return withHandle(func(h *netlink.Handle) error {
			lo, err := h.LinkByName("lo")
			if err != nil {
				return err
			}
			return h.QdiscAdd(netemQdisc(lo.Attrs().Index, 0))
		})
	})
	return err == nil
}

// netemLimit is how many packets may wait: 2 ms of them at 10 Mpps.
const netemLimit = 20_000

func netemQdisc(ifindex int, delayUS uint32) *netlink.Netem {
	return netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{Latency: delayUS, Limit: netemLimit})
}
