package follow

import (
	"os/user"
	"strconv"

	"github.com/graylink/graylink/internal/ccl"
)

const (
	// overflowUser stands for users that this process's user namespace does not have, so that it is the number of several.
	overflowUser = 65534
	maxAccounts  = 1 << 12 // that are remembered
)

// accounts knows the names of users.
type accounts struct{ names map[uint32]string }

// name returns the name of a user by the node's list of users, or the number where it has none. It is empty if the user is not known.
func (a *accounts) name(owner *uint32) string {
	if owner == nil || *owner == overflowUser {
		return ""
	}
	name, known := a.names[*owner]
	if known {
		return name
	}
	name = strconv.FormatUint(uint64(*owner), 10)
	if u, err := user.LookupId(name); err == nil && u.Username != "" && len(u.Username) <= ccl.MaxString {
		name = u.Username
	}
	if a.names == nil || len(a.names) >= maxAccounts {
		a.names = map[uint32]string{}
	}
	a.names[*owner] = name
	return name
}
