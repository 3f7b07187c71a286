// Package nichw reads the state of a node's NICs: RDMA devices, network interfaces
// and their PCI functions, from sysfs. It judges nothing. Rules:
//
//  1. What is absent is absent: a nil pointer, an empty string, a counter that is not in its
//     list. It is never 0.
//  2. A file fails by itself. Its error is reported with its path and its sort, and
//     everything else is read. A file that need not be there is no error where it is not.
//  3. A read that hangs is given up after Options.Patience and left alone until it returns. A
//     device of which two files hung in one poll is left for this poll, and one of which
//     maxHanging hang is not read until one of them returns: a driver that is stuck costs a
//     bounded number of threads and of seconds, and no other device.
//  4. A device is gone when the list of devices could be read and it is not in it. A list
//     that could not be read proves nothing.
//  5. What a device has (ports, counters) is looked up when it appears, again whenever a file
//     of it went, and every Options.Relook polls.
//
// Kernel documents: Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-net,
// testing/sysfs-bus-pci.
package nichw
