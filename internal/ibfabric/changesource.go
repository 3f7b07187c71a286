package ibfabric

import "errors"

// ChangeSource reports changes of a fabric: OpenSMLog on the machine of the subnet manager, or internal/ufm's
// Changes wherever UFM is read. Its PollChange can be Watch.PollChange.
type ChangeSource interface {
	// PollChange reports whether there was a change since the last call, or one may have been missed.
	PollChange() (bool, error)
}

// PollAny returns a function for Watch.PollChange that combines several sources. It polls each of them, and
// reports a change if one does, whatever the others return. It returns an error only if none reports a change,
// because a failing source counts as a change as well.
func PollAny(all ...ChangeSource) func() (bool, error) {
	return func() (bool, error) {
		changed := false
		var failed error
		for _, t := range all {
			is, err := t.PollChange()
			changed, failed = changed || is, errors.Join(failed, err)
		}
		if changed {
			return true, nil
		}
		return false, failed
	}
}
