// Package fakesys builds directory trees that look like a node's /sys, /proc and /dev, and plays
// scripts on them. Tests of what reads those files use it, and graylink fakesys gives it to users.
//
// A tree has the roots sys, proc and dev, and .fakesys, which marks the tree as made here and
// keeps what a script took away. Rules:
//
//  1. The layout is that of a Linux 6.x kernel: real directories under sys/devices, and relative
//     symbolic links everywhere else, none of which leaves the tree.
//  2. A reader sees the old value of a file or the new one, never a part and never none: files are
//     replaced by renaming, and nothing temporary lies in a directory that a reader lists.
//  3. A file that cannot be read is a symbolic link to itself. Reading it fails for root too, and not
//     as if it were absent. So are attributes that a kernel lists and refuses to read, such as the
//     type of an empty GID.
//  4. A file that hangs is a FIFO without a writer.
//  5. hang, garble, fail and remove only hide a file: set and add still change it, and it is as they
//     left it when it comes back.
//  6. The same node gives the same tree, byte for byte: what is not given comes from names.
package fakesys
