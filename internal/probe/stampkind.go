package probe

import "github.com/graylink/graylink/internal/stamp"

// stampKind is the kind of a time: taken by the program, by the kernel or by the NIC, whose clock is translated to the
// system's (hwstamp.go). A higher kind is better.
type stampKind uint8

const (
	userStamps stampKind = iota
	kernelStamps
	hardwareStamps
	stampKinds
)

var kindNames = [stampKinds]string{"user", "kernel", "hardware"}

// stampedTime represents one moment by each kind of stamp; 0 means that the kind is not known.
type stampedTime [stampKinds]int64

// bestSoftware returns the kernel's time, or the program's if the kernel's is not known.
func (t *stampedTime) bestSoftware() int64 {
	if t[kernelStamps] != 0 {
		return t[kernelStamps]
	}
	return t[userStamps]
}

// kindOf translates a method of RFC 8972 section 5.5. Reflectors of this project write HW Assist for the NIC's stamps,
// SW Local for the kernel's and Control Plane for user space.
func kindOf(m stamp.Method) stampKind {
	switch m {
	case stamp.MethodHardware:
		return hardwareStamps
	case stamp.MethodSoftware:
		return kernelStamps
	}
	return userStamps
}

// stampMethod returns the method of RFC 8972 section 5.5 for a kind.
func (k stampKind) stampMethod() stamp.Method {
	return [stampKinds]stamp.Method{stamp.MethodControl, stamp.MethodSoftware, stamp.MethodHardware}[k]
}
