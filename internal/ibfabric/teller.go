package ibfabric

import "errors"

// ChangeSource tells of changes of a fabric: OpenSMLog on the machine of the subnet manager,
// internal/ufm's Changes from anywhere that UFM is read. It is Watch.Unrest of one.
type ChangeSource interface {
	// PollChange reports whether it heard of a change since it was last asked, or may have
	// missed one.
	PollChange() (bool, error)
}

// PollAny is Watch.Unrest of several: each is asked, and one that heard of a change is
// enough, whatever the others have. An error is one only where nobody heard anything:
// unrest is what a silent teller would be taken for as well.
func PollAny(all ...ChangeSource) func() (bool, error) {
	return func() (bool, error) {
		told := false
		var failed error
		for _, t := range all {
			is, err := t.PollChange()
			told, failed = told || is, errors.Join(failed, err)
		}
		if told {
			return true, nil
		}
		return false, failed
	}
}
