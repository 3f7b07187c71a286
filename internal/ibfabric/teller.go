package ibfabric

import "errors"

// Teller tells of changes of a fabric: OpenSMLog on the machine of the subnet manager,
// internal/ufm's Changes from anywhere that UFM is read. It is Watch.Unrest of one.
type Teller interface {
	// Unrest reports whether it heard of a change since it was last asked, or may have
	// missed one.
	Unrest() (bool, error)
}

// Unrest is Watch.Unrest of several: each is asked, and one that heard of a change is
// enough, whatever the others have. An error is one only where nobody heard anything:
// unrest is what a silent teller would be taken for as well.
func Unrest(all ...Teller) func() (bool, error) {
	return func() (bool, error) {
		told := false
		var failed error
		for _, t := range all {
			is, err := t.Unrest()
			told, failed = told || is, errors.Join(failed, err)
		}
		if told {
			return true, nil
		}
		return false, failed
	}
}
