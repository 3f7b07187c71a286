// Package nicethtool reads network interfaces through ethtool: statistics of the driver,
// FEC, pause frames, the link, and the memory of the plugged module. It only reads, and judges
// nothing. Rules:
//
//  1. What is absent is absent: a nil pointer, or not in a list. It is never 0. What the kernel
//     or the driver does not support (EOPNOTSUPP) is absent, and no error.
//  2. A part of an interface fails by itself. Its error is reported with interface and part, and
//     everything else is read.
//  3. A request that hangs in the driver is given up after Options.Patience and left alone until
//     it returns, as nichw does with files (nichw.Querier).
//  4. Names of statistics are read when an interface appears, and when its driver, its place
//     on the bus or their number changes.
//  5. Identity and thresholds of a module are read when it appears or has another serial number;
//     after that, only what changes.
//
// Kernel documents: Documentation/networking/ethtool-netlink.rst, include/uapi/linux/ethtool.h and
// ethtool_netlink.h.
package nicethtool
