//go:build race

package gnmi

const raceDetector = true
