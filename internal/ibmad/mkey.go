package ibmad

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ReadMKey reads a file that holds the management key of a subnet. Without a file name it returns no key.
func ReadMKey(file string) (MKey, error) {
	if file == "" {
		return 0, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("M_Key: %w", err)
	}
	key, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(string(text)), "0x"), 16, 64)
	if err != nil {
		return 0, fmt.Errorf("M_Key: %s: up to 16 hexadecimal digits are expected", file)
	}
	return MKey(key), nil
}
