package analyzer_test

import (
	"testing"

	"github.com/graylink/graylink/analyzer/looptest"
)

// TestScripts runs the scripted cases of testdata/loop, whose language looptest.RunScripts describes.
func TestScripts(t *testing.T) { looptest.RunScripts(t, "testdata/loop/*.txt") }
